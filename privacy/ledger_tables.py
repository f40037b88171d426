"""Tables of the ledger that runs share: the accounts of data sets. Those of single runs stand in ledger.py."""

import sqlalchemy as sa

metadata = sa.MetaData()

account_heads = sa.Table(
    "account_heads",
    metadata,
    sa.Column("dataset", sa.Text, primary_key=True),
    sa.Column("length", sa.BigInteger, nullable=False),
    sa.Column("hash", sa.Text, nullable=False),
    sa.Column("records", sa.LargeBinary, nullable=False),
)

account_entries = sa.Table(
    "account_entries",
    metadata,
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

account_counters = sa.Table(
    "account_counters",
    metadata,
    sa.Column("dataset", sa.Text, primary_key=True),
    sa.Column("mechanism", sa.Text, primary_key=True),
    sa.Column("draw", sa.Text, primary_key=True),
    sa.Column("counts", sa.LargeBinary, nullable=False),
)
