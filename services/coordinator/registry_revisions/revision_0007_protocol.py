"""Runs say in which version of the protocol their parties were asked."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Add the column; of a run that there is, nobody noted it."""
    op.add_column("runs", sa.Column("protocol", sa.Integer, nullable=False, server_default="0"))


def downgrade() -> None:
    """Drop it."""
    with op.batch_alter_table("runs") as runs:
        runs.drop_column("protocol")
