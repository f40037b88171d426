"""The ledger as 0.1.0 made it. A database of 0.1.0 has these tables and no revision: it is taken as it is."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make the tables that are not there."""
    op.create_table(
        "ledger_heads",
        sa.Column("run", sa.Text, primary_key=True),
        sa.Column("length", sa.BigInteger, nullable=False),
        sa.Column("hash", sa.Text, nullable=False),
        sa.Column("records", sa.BigInteger, nullable=False),
        sa.Column("budget_epsilon", sa.Double, nullable=False),
        sa.Column("budget_delta", sa.Double, nullable=False),
        if_not_exists=True,
    )
    op.create_table(
        "ledger_entries",
        sa.Column("run", sa.Text, primary_key=True),
        sa.Column("sequence", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("time", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("mechanism", sa.Text, nullable=False),
        sa.Column("recipients", sa.Text, nullable=False),
        sa.Column("first_release", sa.BigInteger, nullable=False),
        sa.Column("release_count", sa.BigInteger, nullable=False),
        sa.Column("records", sa.BigInteger, nullable=False),
        sa.Column("epsilon", sa.Double, nullable=False),
        sa.Column("delta", sa.Double, nullable=False),
        sa.Column("largest_count", sa.BigInteger, nullable=False),
        sa.Column("charge_hash", sa.Text, nullable=False),
        sa.Column("counters_hash", sa.Text, nullable=False),
        sa.Column("previous_hash", sa.Text, nullable=False),
        sa.Column("hash", sa.Text, nullable=False),
        if_not_exists=True,
    )
    op.create_table(
        "ledger_counters",
        sa.Column("run", sa.Text, primary_key=True),
        sa.Column("mechanism", sa.Text, primary_key=True),
        sa.Column("counts", sa.LargeBinary, nullable=False),
        if_not_exists=True,
    )


def downgrade() -> None:
    """Drop the ledger."""
    for table in ("ledger_counters", "ledger_entries", "ledger_heads"):
        op.drop_table(table)
