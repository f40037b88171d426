"""Runs have an owner and a priority, by which they wait for their turn."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add the columns; of a run that there is, nobody knows who started it."""
    op.add_column("runs", sa.Column("owner", sa.String(200), nullable=False, server_default=sa.text("''")))
    op.add_column("runs", sa.Column("priority", sa.Integer, nullable=False, server_default="0"))


def downgrade() -> None:
    """Drop them."""
    with op.batch_alter_table("runs") as runs:
        runs.drop_column("owner")
        runs.drop_column("priority")
