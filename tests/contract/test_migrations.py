"""Numbered schemas: what the revisions make is what the program uses, and databases of every version find their way."""

import hashlib
import re
import threading
import tomllib
from pathlib import Path

import pytest
import sqlalchemy as sa
from setuptools import find_packages

from parley.privacy import evaluations, ledger
from parley.privacy.ledger import open_ledger
from parley.services.coordinator import registry_tables as registry
from parley.services.coordinator.registry import Registry
from parley.services.party import exposure as party_exposure
from parley.services.party import exposure_tables as exposure
from parley.spec.events import RunData, RunParty, RunStateChange
from parley.storage.migrations import DatabaseRefused, exclusive, move, revision_of, upgrade

ROOT = Path(__file__).parents[2]
RELEASED = Path(__file__).parent / "released"
"""Databases that released versions wrote, as SQL."""
HISTORIES = (registry.HISTORY, ledger.HISTORY, evaluations.HISTORY, exposure.HISTORY)
SCHEMAS = {history.name: history for history in HISTORIES}


@pytest.fixture(params=SCHEMAS)
def history(request):
    return SCHEMAS[request.param]


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    if request.param == "postgresql":
        return request.getfixturevalue("postgres_database")
    return f"sqlite:///{tmp_path / 'state.db'}"


@pytest.fixture
def engine(url):
    engine = sa.create_engine(url)
    yield engine
    engine.dispose()


def revisions(history):
    """Every revision of a schema, oldest first, by its file's name."""
    names = sorted(path.name for path in history.revisions.glob("revision_*.py"))
    return [re.fullmatch(r"revision_(\d{4})_\w+\.py", name)[1] for name in names]


def load(engine, version):
    """Fill a database with what a released version wrote."""
    script = (RELEASED / f"{version}-{engine.dialect.name}.sql").read_text()
    connection = engine.raw_connection()
    if engine.dialect.name == "sqlite":
        connection.executescript(script)
    else:
        connection.execute(script)
        connection.commit()
        connection.detach()  # the dump leaves its own search path on it
    connection.close()


def set_revision(engine, history, revision):
    version = sa.table(history.version_table, sa.column("version_num"))
    with engine.begin() as connection:
        connection.execute(version.update().values(version_num=revision))


def contents(engine):
    """Everything that a database holds, by table."""
    tables = sa.MetaData()
    tables.reflect(engine)
    with engine.connect() as connection:
        return {
            name: ([column.name for column in table.columns], sorted(map(repr, connection.execute(sa.select(table)))))
            for name, table in tables.tables.items()
        }


def differences(engine, history):
    """What the schema's own tables lack or have too much of; the other schema may lie in the same database."""
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    foreign = {name for schema in SCHEMAS.values() for name in (schema.version_table, *schema.metadata.tables)}
    foreign -= {history.version_table, *history.metadata.tables}
    options = {
        "version_table": history.version_table,
        "compare_type": True,
        "compare_server_default": True,
        "include_name": lambda name, kind, _: kind != "table" or name not in foreign,
    }
    with engine.connect() as connection:
        return compare_metadata(MigrationContext.configure(connection, opts=options), history.metadata)


def test_revisions_are_numbered_without_a_gap_and_the_newest_is_named(history):
    numbers = revisions(history)
    assert numbers == [f"{number:04}" for number in range(1, len(numbers) + 1)]
    assert history.newest == numbers[-1]


def test_the_revisions_make_exactly_the_tables_that_the_program_uses(engine, history):
    upgrade(engine, history)
    assert differences(engine, history) == []


def test_each_revision_goes_up_and_down(engine, history):
    numbers, shapes = revisions(history), {}

    def go_to(target):
        with exclusive(engine) as connection:
            move(connection, history, target, revision_of(connection, history))
        return contents(engine)

    for number in numbers:
        shapes[number] = go_to(number)
    for number in reversed(numbers[:-1]):
        assert go_to(number) == shapes[number]
    assert list(go_to("base")) == [history.version_table]
    for number in numbers:
        assert go_to(number) == shapes[number]
    assert differences(engine, history) == []


def test_a_database_of_0_1_0_is_recognised_and_brought_up_to_date(engine, url):
    load(engine, "0.1.0")
    before = contents(engine)
    runs, book = Registry(engine), open_ledger(url)
    evaluations.open_register(url).close()
    party_exposure.open_register(url).close()
    after = contents(engine)
    for schema in SCHEMAS.values():
        assert after[schema.version_table] == (["version_num"], [repr((schema.newest,))])
        assert differences(engine, schema) == []
    for table, (_, rows) in before.items():
        assert len(after[table][1]) == len(rows), table
    found = runs.get("digits-0001")
    assert (found.state, found.checkpoint, found.metrics["test accuracy"]) == ("COMPLETED", 5, 0.91)
    assert runs.kept("digits-0001", 5) == b"coordinator's own state"
    assert [event.message for event in runs.events("digits-0001", 6)] == [
        "shop left at round 52; going on with 1",
        "completed",
    ]
    assert [event.body for event in runs.events("digits-0001", 0)] == [
        RunData(1797, "bank", 32, "ab" * 32),
        RunData(1797, "shop", 32, "ab" * 32),
        None,
        RunStateChange(attempt=1),
        None,
        None,
        RunParty("shop", "left", goes_on=True, round=52, remaining=1),
        None,
    ]
    assert [run.run_id for run in runs.unfinished()] == ["credit-0002"]
    assert book.verify("digits-0001").length == 1
    book.close()


def test_tables_that_0_1_0_had_not_finished_making_are_finished(engine):
    registry.metadata.tables["kept"].create(engine)
    Registry(engine)
    assert differences(engine, registry.HISTORY) == []


def test_a_newer_database_is_refused_and_not_touched(engine, url, history):
    open_ledger(url).close()
    evaluations.open_register(url).close()
    party_exposure.open_register(url).close()
    Registry(engine)
    set_revision(engine, history, "0815")
    before = contents(engine)
    message = rf"newer Parley: its {history.name} has revision 0815.* up to {history.newest}\. Install .* nothing was"
    with pytest.raises(DatabaseRefused, match=message):
        upgrade(engine, history)
    with pytest.raises(DatabaseRefused, match=message):
        (Registry(engine), open_ledger(url), evaluations.open_register(url), party_exposure.open_register(url))
    assert contents(engine) == before


def test_a_file_of_a_newer_version_keeps_its_bytes(tmp_path):
    path = tmp_path / "state.db"
    open_ledger(f"sqlite:///{path}").close()
    engine = sa.create_engine(f"sqlite:///{path}")
    set_revision(engine, ledger.HISTORY, "0815")
    engine.dispose()
    digest = hashlib.sha256(path.read_bytes()).digest()
    with pytest.raises(DatabaseRefused):
        open_ledger(f"sqlite:///{path}")
    assert hashlib.sha256(path.read_bytes()).digest() == digest


def test_a_password_is_not_told(postgres_database):
    url = sa.make_url(postgres_database).set(password="hunter2")  # noqa: S106
    engine = sa.create_engine(url)
    Registry(engine)
    set_revision(engine, registry.HISTORY, "0815")
    with pytest.raises(DatabaseRefused) as refused:
        Registry(engine)
    engine.dispose()
    assert "hunter2" not in str(refused.value)
    assert str(url.database) in str(refused.value)


def test_tables_that_no_version_made_are_refused_and_left_alone(engine):
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE events (run_id INTEGER PRIMARY KEY, guests INTEGER)"))
    before = contents(engine)
    with pytest.raises(DatabaseRefused, match=r"table events that no Parley made: it differs in guests"):
        Registry(engine)
    assert contents(engine) == before


def test_a_current_database_without_one_of_its_tables_is_refused(engine):
    Registry(engine)
    registry.metadata.tables["kept"].drop(engine)
    with pytest.raises(DatabaseRefused, match="lacks the table kept"):
        Registry(engine)


def test_many_that_start_together_upgrade_once(url):
    engine = sa.create_engine(url)
    load(engine, "0.1.0")
    failures = []

    def come_up():
        own = sa.create_engine(url)
        try:
            Registry(own)
        except Exception as error:
            failures.append(error)
        own.dispose()

    starts = [threading.Thread(target=come_up) for _ in range(8)]
    for start in starts:
        start.start()
    for start in starts:
        start.join()
    assert failures == []
    assert contents(engine)["registry_version"] == (["version_num"], [repr((registry.HISTORY.newest,))])
    engine.dispose()


def test_the_revisions_are_in_the_wheel(history):
    found = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]
    packages = find_packages(where=str(ROOT / found["where"][0]))
    names = [package for package in packages if package.endswith(f".{history.revisions.name}")]
    assert [(ROOT / "src" / name.replace(".", "/")).resolve() for name in names] == [history.revisions.resolve()]
    assert "parley.storage.alembic_environment" in packages
