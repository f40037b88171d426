"""Runs have tags: words that people file them under."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add the column; a run that there is has none."""
    op.add_column("runs", sa.Column("tags", sa.Text, nullable=False, server_default="[]"))


def downgrade() -> None:
    """Drop it."""
    with op.batch_alter_table("runs") as runs:
        runs.drop_column("tags")
