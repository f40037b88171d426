"""What an error of a database means: its server is away, its file is damaged, or it does not take a write."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa

_AWAY_STATES = ("08", "57P0", "53300")
"""SQLSTATEs of PostgreSQL, by their beginning: connection lost, shutting down or starting up, too many connections."""


class StorageFailed(OSError):
    """The database did not take a write; what was there before is untouched."""


class StorageAway(StorageFailed):
    """The database does not answer; waiting may help."""


class StorageDamaged(StorageFailed):
    """The database's file is damaged; nothing in it is trusted."""


@contextmanager
def named_failures(what: str, engine: sa.Engine) -> Iterator[None]:
    """Raise errors of the driver by what they mean; `what` says whose database it is."""
    try:
        yield
    except (sa.exc.SQLAlchemyError, sqlite3.Error, UnicodeDecodeError) as error:
        if isinstance(error, sa.exc.IntegrityError):
            raise
        raise named(error, what, engine) from error


def named(error: Exception, what: str, engine: sa.Engine) -> StorageFailed:
    """An error of the driver as what it means."""
    cause = " ".join(str(getattr(error, "orig", None) or type(error).__name__).split())
    where = f"{what}'s database {engine.url.render_as_string(hide_password=True)}"
    if is_away(error):
        return StorageAway(f"{where} does not answer ({cause}): bring its server back; what waits for it goes on then")
    if is_damage(error):
        return damaged(where, cause)
    return StorageFailed(
        f"{where} cannot be used ({cause}): make room on its disk, or correct its permissions, then resume the run"
    )


def damaged(where: str, detail: str) -> StorageDamaged:
    """What to say of a damaged file."""
    return StorageDamaged(
        f"{where} is damaged ({detail}). Nothing in it is trusted any more. Stop the service, move the file away with "
        "its -wal and -shm files, put the newest backup in its place (docs/backups.md), and start again; never start "
        "with an empty one, which would forget what was released"
    )


def is_away(error: Exception) -> bool:
    """Whether the database may answer later: its server is down or restarts, or others keep it busy."""
    if isinstance(error, sa.exc.TimeoutError):  # no connection came free in the pool
        return True
    if not isinstance(error, sa.exc.DBAPIError):
        return False
    cause = error.orig
    if isinstance(cause, sqlite3.Error):
        return _code(cause) in ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_BUSY_SNAPSHOT", "SQLITE_BUSY_RECOVERY")
    state = getattr(cause, "sqlstate", None)
    if state is None:  # no answer of the server at all
        return error.connection_invalidated or isinstance(error, sa.exc.OperationalError)
    return str(state).startswith(_AWAY_STATES)


def is_damage(error: Exception) -> bool:
    """Whether a file's content cannot be what was written: the driver decodes names and texts out of it too."""
    cause = getattr(error, "orig", None) or error
    if isinstance(cause, UnicodeDecodeError):
        return True
    return isinstance(cause, sqlite3.Error) and _code(cause).startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB"))


def _code(error: sqlite3.Error) -> str:
    return getattr(error, "sqlite_errorname", "")
