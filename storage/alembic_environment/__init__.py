"""Where alembic looks for its env.py."""
