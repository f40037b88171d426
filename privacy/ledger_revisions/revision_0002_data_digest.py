"""A run's head says what data it is about, so that noise is never drawn twice for values that have changed."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add the digest; runs of 0.1.0 have none."""
    op.add_column("ledger_heads", sa.Column("data_digest", sa.Text, nullable=True))


def downgrade() -> None:
    """Drop the digest."""
    op.drop_column("ledger_heads", "data_digest")
