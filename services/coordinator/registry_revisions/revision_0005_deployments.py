"""Deployments: models that are kept ready under a name, with their earlier versions."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add their table."""
    op.create_table(
        "deployments",
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("run_id", sa.String(64), nullable=False),
        sa.Column("table_name", sa.String(255), nullable=False),
        sa.Column("current", sa.Boolean, nullable=False),
        sa.Column("deployed_by", sa.String(255), nullable=False),
        sa.Column("deployed", sa.String(40), nullable=False),
    )


def downgrade() -> None:
    """Drop it."""
    op.drop_table("deployments")
