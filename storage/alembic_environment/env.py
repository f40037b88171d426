"""What alembic runs for each upgrade: on the caller's own connection, so in the caller's one transaction."""

from alembic import context

context.configure(**context.config.attributes["given"])
context.run_migrations()
