"""The register of exposure: what was summed over which rows, columns and partners, and the sets of rows."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "exposure_rows",
        sa.Column("digest", sa.Text, primary_key=True),
        sa.Column("count", sa.BigInteger, nullable=False),
        sa.Column("hashes", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "exposure_entries",
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("time", sa.Text, nullable=False),
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("algorithm", sa.Text, nullable=False),
        sa.Column("layout", sa.Text, nullable=False),
        sa.Column("table_name", sa.Text, nullable=False),
        sa.Column("table_digest", sa.Text, nullable=False),
        sa.Column("rows_digest", sa.Text, nullable=False),
        sa.Column("view", sa.Text, nullable=False),
        sa.Column("columns", sa.Text, nullable=False),
        sa.Column("partners", sa.Text, nullable=False),
        sa.Column("seed", sa.BigInteger, nullable=False),
        sa.Column("spec_digest", sa.Text, nullable=False),
        sa.Column("exact", sa.Boolean, nullable=False),
        sa.Column("rank", sa.BigInteger, nullable=True),
        sa.Column("share", sa.Double, nullable=False),
        sa.Column("sums", sa.BigInteger, nullable=False),
        sa.Column("salt", sa.Text, nullable=False),
    )


def downgrade() -> None:
    """Drop the register."""
    for table in ("exposure_entries", "exposure_rows"):
        op.drop_table(table)
