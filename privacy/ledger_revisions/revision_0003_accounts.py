"""Accounts of data sets: one budget over all runs. Runs from before have none, and what they spent stays with them."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Say which data set a run is charged to, and make the accounts."""
    op.add_column("ledger_heads", sa.Column("dataset", sa.Text, nullable=True))
    op.create_table(
        "account_heads",
        sa.Column("dataset", sa.Text, primary_key=True),
        sa.Column("length", sa.BigInteger, nullable=False),
        sa.Column("hash", sa.Text, nullable=False),
        sa.Column("records", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "account_entries",
        sa.Column("dataset", sa.Text, primary_key=True),
        sa.Column("sequence", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("time", sa.Text, nullable=False),
        sa.Column("run", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("mechanism", sa.Text, nullable=False),
        sa.Column("draw", sa.Text, nullable=False),
        sa.Column("records", sa.BigInteger, nullable=False),
        sa.Column("charged", sa.BigInteger, nullable=False),
        sa.Column("epsilon", sa.Double, nullable=False),
        sa.Column("delta", sa.Double, nullable=False),
        sa.Column("budget_epsilon", sa.Double, nullable=False),
        sa.Column("counters_hash", sa.Text, nullable=False),
        sa.Column("previous_hash", sa.Text, nullable=False),
        sa.Column("hash", sa.Text, nullable=False),
    )
    op.create_table(
        "account_counters",
        sa.Column("dataset", sa.Text, primary_key=True),
        sa.Column("mechanism", sa.Text, primary_key=True),
        sa.Column("draw", sa.Text, primary_key=True),
        sa.Column("counts", sa.LargeBinary, nullable=False),
    )


def downgrade() -> None:
    """Drop the accounts."""
    for table in ("account_counters", "account_entries", "account_heads"):
        op.drop_table(table)
    op.drop_column("ledger_heads", "dataset")
