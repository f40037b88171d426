"""Connections to a service's own database: durable on SQLite, and on PostgreSQL such that a restart is survived."""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from parley.storage.failures import damaged

_CONNECT_SECONDS = 5
_POSTGRESQL: dict[str, Any] = {
    "connect_timeout": _CONNECT_SECONDS,
    # a server that vanished from the network is noticed within half a minute
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}


def open_engine(url: str, **settings: str) -> sa.Engine:
    """An engine for a database URL, with settings of libpq; those that the URL itself gives are left alone."""
    parsed = sa.make_url(url)
    if parsed.get_backend_name() == "sqlite":
        engine = sa.create_engine(parsed)
        sa.event.listen(engine, "connect", _make_sqlite_durable)
        return engine
    if parsed.get_backend_name() != "postgresql":
        return sa.create_engine(parsed, pool_pre_ping=True)
    options = {name: value for name, value in {**_POSTGRESQL, **settings}.items() if name not in parsed.query}
    return sa.create_engine(parsed, pool_pre_ping=True, pool_timeout=2 * _CONNECT_SECONDS, connect_args=options)


@contextlib.contextmanager
def write_transaction(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A transaction that will write: on SQLite the write lock is taken first, or two could read the same state."""
    with engine.connect() as connection:
        raw: Any = connection.connection.dbapi_connection
        if connection.dialect.name == "sqlite" and not raw.in_transaction:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        yield connection
        connection.commit()


def require_whole(what: str, url: str) -> None:
    """Read all of a SQLite file once, at the start, and change nothing; `what` says whose database it is.

    Raises:
        StorageDamaged: if a page of it is not what was written.
    """
    parsed = sa.make_url(url)
    if parsed.get_backend_name() != "sqlite" or not parsed.database or not Path(parsed.database).exists():
        return
    where = f"{what}'s database {parsed.database}"
    try:
        readable = f"{Path(parsed.database).resolve().as_uri()}?mode=ro"
        with contextlib.closing(sqlite3.connect(readable, uri=True, timeout=30)) as connection:
            findings = [line for (line,) in connection.execute("PRAGMA quick_check(1)")]
            if findings == ["ok"]:
                return
            tables = _damaged_tables(connection)
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        raise damaged(where, str(error)) from error
    finding = findings[0].splitlines()[-1] if findings else "its check told nothing"
    raise damaged(where, f"{'tables ' + ', '.join(tables) if tables else 'pages'}: {finding}")


def _damaged_tables(connection: sqlite3.Connection) -> list[str]:
    listed = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name").fetchall()
    return [name for (name,) in listed if not _is_whole(connection, name)]


def _is_whole(connection: sqlite3.Connection, table: str) -> bool:
    quoted = '"' + table.replace('"', '""') + '"'
    try:
        return connection.execute(f"PRAGMA quick_check({quoted})").fetchall() == [("ok",)]
    except sqlite3.DatabaseError:
        return False


def _make_sqlite_durable(connection: Any, _record: Any) -> None:
    """Runs and the ledger write to one file; a slow disk makes them queue, not fail."""
    cursor = connection.cursor()
    for setting in ("busy_timeout=30000", "journal_mode=WAL", "synchronous=FULL"):
        cursor.execute(f"PRAGMA {setting}")
    cursor.close()
