"""The first register of evaluations."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "evaluation_sets",
        sa.Column("label_table", sa.Text, primary_key=True),
        sa.Column("digest", sa.Text, primary_key=True),
        sa.Column("members", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "evaluation_runs",
        sa.Column("run", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("label_table", sa.Text, nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("row_count", sa.BigInteger, nullable=False),
        sa.Column("evaluations", sa.BigInteger, nullable=False),
        sa.Column("epsilon", sa.Double, nullable=True),
        sa.Column("time", sa.Text, nullable=False),
    )


def downgrade() -> None:
    """Drop the register."""
    for table in ("evaluation_runs", "evaluation_sets"):
        op.drop_table(table)
