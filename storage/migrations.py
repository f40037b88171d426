"""Numbered schemas: a service brings its own database to the revision that it was written for.

A schema is one `History`: its tables, and a folder with one file for each revision, which says how to come from the
revision before it and how to go back. The database says in a table of its own which revision it has. Two schemas may
share one database (a coordinator keeps its runs and its label ledger in one).

To change a schema: change its tables, add `revision_000N_….py` beside the others, and set `newest`.
tests/contract/test_migrations.py compares the tables with what the revisions make, on SQLite and PostgreSQL.

alembic is imported only when there is something to upgrade: a service that comes up with a current database pays
nothing for it.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from parley.storage.engines import write_transaction

_ENVIRONMENT = Path(__file__).parent / "alembic_environment"
_LOCK = 0x7061726C6579
"""Any fixed number: the advisory lock of PostgreSQL under which schemas are changed."""
logger = logging.getLogger(__name__)


class DatabaseRefused(OSError):
    """The database has a schema that this program does not know; nothing was changed."""


@dataclass(frozen=True)
class History:
    """The numbered revisions of one schema."""

    name: str
    """What the tables hold, in a word; the revision stands in the table `<name>_version`."""
    metadata: sa.MetaData
    """The tables as this program uses them."""
    revisions: Path
    """The folder with a file for each revision."""
    newest: str
    """The revision that the tables have."""

    @property
    def version_table(self) -> str:
        """Where a database says which revision it has."""
        return f"{self.name}_version"


def upgrade(engine: sa.Engine, history: History) -> None:
    """Bring a database to the newest revision, in one transaction; one that is there already is only read.

    A database from before there were revisions has the tables of the first one and is taken for it.

    Raises:
        DatabaseRefused: if its schema is of a newer version, or of none that there was; nothing has been changed.
    """
    with engine.connect() as connection:
        if revision_of(connection, history) == history.newest:
            _require_columns(connection, _columns(history.metadata))
            return
    with exclusive(engine) as connection:
        found = revision_of(connection, history)  # another process may have upgraded it meanwhile
        if found is None and not set(sa.inspect(connection).get_table_names()).isdisjoint(history.metadata.tables):
            _require_columns(connection, _first_columns(history), but_absent=True)
        if found != history.newest:
            move(connection, history, history.newest, found)
            logger.info("the database's %s came from revision %s to %s", history.name, found, history.newest)
        _require_columns(connection, _columns(history.metadata))


def revision_of(connection: sa.Connection, history: History) -> str | None:
    """The revision that a database says it has; None if it says nothing."""
    if not sa.inspect(connection).has_table(history.version_table):
        return None
    version = sa.table(history.version_table, sa.column("version_num"))
    return connection.scalar(sa.select(version.c.version_num))


def move(connection: sa.Connection, history: History, target: str, found: str | None) -> None:
    """Run the revisions between the one that was found and the target, up or down, in the connection's transaction."""
    logging.getLogger("alembic").setLevel(logging.WARNING)  # this module says what changes
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config(attributes={"given": {"connection": connection, "version_table": history.version_table}})
    places = {"script_location": _ENVIRONMENT, "version_locations": history.revisions, "path_separator": "newline"}
    for name, value in places.items():
        config.set_main_option(name, str(value).replace("%", "%%"))
    known = [script.revision for script in ScriptDirectory.from_config(config).walk_revisions()]
    if found is not None and found not in known:
        raise DatabaseRefused(
            f"the database {_address(connection)} was written by a newer Parley: its {history.name} has revision "
            f"{found}, this program knows revisions up to {history.newest}. Install the version that wrote it, or a "
            "newer one, or restore the backup from before the upgrade; nothing was changed"
        )
    down = found is not None and (target == "base" or known.index(target) > known.index(found))
    (command.downgrade if down else command.upgrade)(config, target)


@contextmanager
def exclusive(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A transaction under a lock: of two processes that start together only one changes the schema at a time."""
    with write_transaction(engine) as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
        yield connection


def _columns(tables: sa.MetaData) -> dict[str, set[str]]:
    return {table.name: set(table.columns.keys()) for table in tables.sorted_tables}


def _first_columns(history: History) -> dict[str, set[str]]:
    """The tables that the first revision makes, which a database from before revisions has."""
    reflected, engine = sa.MetaData(), sa.create_engine("sqlite://")
    with engine.connect() as connection:
        move(connection, history, "+1", None)
        reflected.reflect(connection)
    engine.dispose()
    return {name: columns for name, columns in _columns(reflected).items() if name != history.version_table}


def _require_columns(connection: sa.Connection, wanted: Mapping[str, set[str]], *, but_absent: bool = False) -> None:
    """A schema that nobody released, or that somebody has changed by hand, is not one that this program can use."""
    inspector = sa.inspect(connection)
    for table, columns in wanted.items():
        problem, found = f"lacks the table {table}", set[str]()
        if inspector.has_table(table):
            found = {column["name"] for column in inspector.get_columns(table)}
            problem = f"has a table {table} that no Parley made: it differs in {', '.join(sorted(found ^ columns))}"
        if found != columns and (found or not but_absent):
            raise DatabaseRefused(
                f"the database {_address(connection)} {problem}. Restore a backup, or name another database; nothing "
                "was changed"
            )


def _address(connection: sa.Connection) -> str:
    return connection.engine.url.render_as_string(hide_password=True)
