"""One coordinator may write, and it is named; runs are found by their state without reading all of them."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add the table and the index."""
    op.create_index("ix_runs_state", "runs", ["state"])
    op.create_table(
        "registry_writer",
        sa.Column("one", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("token", sa.String(64), nullable=False),
    )


def downgrade() -> None:
    """Drop both."""
    op.drop_table("registry_writer")
    op.drop_index("ix_runs_state", "runs")
