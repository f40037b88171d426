"""An entry says how rows were chosen for a value, so that two runs which chose nearly the same are told apart."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add the digest; entries from before have none."""
    op.add_column("exposure_entries", sa.Column("drawn", sa.Text, nullable=True))


def downgrade() -> None:
    """Drop the digest."""
    op.drop_column("exposure_entries", "drawn")
