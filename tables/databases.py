"""Read a table from a database by URL: one query in a read-only transaction, streamed into columns.

The password is never part of the URL: it is read from the environment or from a file when the query runs, and texts
of errors name the database without its user or password.
"""

import os
import sqlite3
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from parley.tables.errors import (
    ColumnDuplicated,
    TableEmpty,
    TableNotFound,
    TableTooLarge,
    TableUnreadable,
)
from parley.tables.files import ArrowFile

BATCH_ROWS = 50_000
"""Rows that are fetched at once."""
MOST_ROWS, MOST_BYTES = 10_000_000, 8 << 30
"""Defaults of what one query may bring."""
_COULD_CONNECT = "Check `url`, `password_env` or `password_file`, and that the database accepts this host"


@dataclass(frozen=True)
class SqlSource:
    """Rows of a database."""

    url: str
    """SQLAlchemy URL, without a password."""
    query: str | None = None
    """A SELECT statement."""
    table: str | None = None
    """Or a table (`schema.table` too), of which every column is read."""
    password_env: str | None = None
    """Environment variable with the password."""
    password_file: Path | None = None
    """File with the password."""
    most_rows: int = MOST_ROWS
    """A query that brings more is refused."""
    most_bytes: int = MOST_BYTES
    """The same for the size of its columns in memory."""

    def __str__(self) -> str:
        """What messages call it: no user, no password, no parameters."""
        from sqlalchemy import make_url

        url = make_url(self.url)
        place = f"{url.get_backend_name()}://{url.host or ''}{f':{url.port}' if url.port else ''}/{url.database or ''}"
        return f"{place} ({f'table {self.table}' if self.table else 'query'})"

    @property
    def name(self) -> str:
        """A short name, as a file has one."""
        return self.table or "query"


def open_sql(source: SqlSource, texts: Collection[str], wanted: Collection[str] | None) -> ArrowFile:
    """Run the query and keep the columns in `texts` and `wanted` (all if None)."""
    columns = _fetch(source, texts, wanted)
    return ArrowFile(source, columns[0], columns[1].num_rows, columns[1], None)


def _fetch(source: SqlSource, texts: Collection[str], wanted: Collection[str] | None) -> tuple[list[str], pa.Table]:
    import sqlalchemy as sa  # slow to import, and files do not need it

    engine = _engine(source)
    try:
        with engine.connect() as connection:
            connection = connection.execution_options(stream_results=True, yield_per=BATCH_ROWS)
            if connection.dialect.name == "postgresql":
                connection = connection.execution_options(postgresql_readonly=True)
            elif connection.dialect.name != "sqlite":  # SQLite's file is opened for reading only
                connection.execute(sa.text("SET TRANSACTION READ ONLY"))
            statement = sa.text(source.query) if source.query else _whole(source)
            result = connection.execute(statement)
            if not result.returns_rows:
                raise TableUnreadable(source, "the statement returns no rows", "Write a SELECT as `query`")
            names = list(map(str, result.keys()))
            _refuse_duplicates(source, names)
            batches = list(_batches(source, names, result.partitions(), texts, wanted))
    except sa.exc.SQLAlchemyError as failure:
        remedy = _COULD_CONNECT if isinstance(failure, sa.exc.OperationalError) else "Correct `query` or `table`"
        raise TableUnreadable(source, f"the database refused ({_cause(failure, source)})", remedy) from None
    finally:
        engine.dispose()
    if not batches:
        raise TableEmpty(source, "there are no rows", "A table needs at least one")
    try:
        return names, pa.concat_tables(batches, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as mixed:
        raise TableUnreadable(source, f"a column mixes types ({mixed})", "CAST it in `query`") from None


def _batches(
    source: SqlSource,
    names: list[str],
    partitions: Iterator[Sequence[Any]],
    texts: Collection[str],
    wanted: Collection[str] | None,
) -> Iterator[pa.Table]:
    rows = size = 0
    for partition in partitions:
        columns = dict(zip(names, zip(*partition, strict=True), strict=True))
        kept = {n: v for n, v in columns.items() if wanted is None or n in wanted or n in texts}
        batch = pa.table({name: _column(values) for name, values in kept.items()})
        rows, size = rows + len(partition), size + batch.nbytes
        if rows > source.most_rows or size > source.most_bytes:
            raise TableTooLarge(
                source,
                f"the query brings more than {source.most_rows} rows or {source.most_bytes} bytes",
                "Select fewer rows or columns, or raise `most_rows` and `most_bytes`",
            )
        yield batch


def _column(values: Sequence[Any]) -> pa.Array:
    if any(isinstance(value, Decimal) for value in values):  # NUMERIC: a feature is a float in any case
        values = [float(value) if isinstance(value, Decimal) else value for value in values]
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.array([None if value is None else str(value) for value in values])  # UUIDs and their like


def _engine(source: SqlSource) -> Any:
    import sqlalchemy as sa

    url = sa.make_url(source.url)
    if url.get_backend_name() == "sqlite":
        path = Path(url.database or "")
        if not path.is_file():
            raise TableNotFound(source, "there is no such database file", "Check `url`: sqlite:////absolute/path.db")
        readable = f"file:{quote(str(path.resolve()))}?mode=ro"
        return sa.create_engine("sqlite://", creator=lambda: sqlite3.connect(readable, uri=True))
    try:
        return sa.create_engine(url.set(password=_password(source)))
    except ModuleNotFoundError as missing:
        extra = "pip install 'parley-fl[postgres]'" if missing.name == "psycopg" else f"Install {missing.name}"
        raise TableUnreadable(source, f"there is no driver {missing.name} here", extra) from None
    except sa.exc.SQLAlchemyError as failure:
        raise TableUnreadable(source, f"the URL cannot be used ({_cause(failure, source)})", _COULD_CONNECT) from None


def _password(source: SqlSource) -> str | None:
    if source.password_env is not None:
        if source.password_env not in os.environ:
            raise TableUnreadable(
                source,
                f"the environment has no variable {source.password_env}",
                "Set it where the service starts, or name another one as `password_env`",
            )
        return os.environ[source.password_env]
    if source.password_file is None:
        return None
    try:
        return source.password_file.read_text().strip("\r\n")
    except OSError as error:
        raise TableUnreadable(
            source, f"password_file cannot be read ({error.strerror})", "Check the path and its permissions"
        ) from None


def _whole(source: SqlSource) -> Any:
    import sqlalchemy as sa

    schema, _, name = (source.table or "").rpartition(".")
    return sa.select(sa.text("*")).select_from(sa.table(name, schema=schema or None))


def _refuse_duplicates(source: SqlSource, names: Sequence[str]) -> None:
    repeated = next((name for index, name in enumerate(names) if name in names[:index]), None)
    if repeated is not None:
        raise ColumnDuplicated(source, "two columns have this name", "Name them with AS", column=repeated)


def _cause(failure: Exception, source: SqlSource) -> str:
    """What the driver said, on one line; SQLAlchemy's own text would add the statement and its parameters."""
    text = " ".join(str(getattr(failure, "orig", None) or type(failure).__name__).split())[:200]
    secret = _password(source)
    return text.replace(secret, "***") if secret else text
