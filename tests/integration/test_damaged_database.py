"""A coordinator whose SQLite file is damaged says so in one sentence, at its start and while it serves."""

import contextlib
import sqlite3
import subprocess
import sys

import pytest

from parley.client import RequestRefused
from parley.services.coordinator.registry import Registry
from parley.services.coordinator.registry_tables import RunRecord, events, row_of, runs
from parley.storage.engines import open_engine
from parley.testing.federations import ForkedFederation

PAGE = 4096


@pytest.fixture
def local(data, tmp_path):
    tables = {"bank": {"digits": {"path": data / "digits" / "bank.parquet"}}}
    federation = ForkedFederation(tmp_path, tables, {"digits": {"path": data / "digits" / "labels.parquet"}})
    federation.write()
    (tmp_path / "state" / "coordinator").mkdir(parents=True)
    fill(database(federation))
    yield federation
    federation.stop()


def database(local):
    return local.directory / "state" / "coordinator" / "coordinator.db"


def fill(path):
    """Two hundred ended runs with their events, in one whole file."""
    engine = open_engine(f"sqlite:///{path}")
    Registry(engine)
    now = "2026-01-01T00:00:00.000+00:00"
    records = [RunRecord(f"old-{n}", f"r-{n}", "old", "bambi", ("bank",), "name: old\n" * 99, 9) for n in range(200)]
    event = {"time": now, "kind": "state", "message": "m" * 200, "step": 1, "metrics": "{}", "state": "COMPLETED"}
    with engine.begin() as connection:
        rows = [row_of(one) | {"state": "COMPLETED", "created": now, "changed": now} for one in records]
        connection.execute(runs.insert(), rows)
        noted = [event | {"run_id": one.run_id, "sequence": n, "body": None} for one in records for n in range(1, 20)]
        connection.execute(events.insert(), noted)
    engine.dispose()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def damage(path, first=20):
    """Take the first bytes of every page but the first few, as a disk that lost a stretch of blocks would."""
    with path.open("r+b") as file:
        for page in range(first, path.stat().st_size // PAGE):
            file.seek(page * PAGE)
            file.write(bytes(16))


def test_a_damaged_file_is_refused_at_the_start_with_what_to_do(local):
    damage(database(local))
    before = database(local).read_bytes()
    command = [
        sys.executable,
        "-m",
        "parley.services.coordinator",
        "--config",
        str(local.directory / "coordinator.yaml"),
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    for part in ("is damaged (tables events", "Nothing in it is trusted any more", "docs/backups.md"):
        assert part in ended.stderr
    assert database(local).read_bytes() == before


def test_damage_while_it_serves_is_told_by_name_and_what_needs_no_database_goes_on(local):
    local.start("coordinator")
    local.wait_until_ready("coordinator")
    with local.connect() as client:
        assert len(client.runs()) == 100
        damage(database(local))
        refusals = set()
        for number in range(0, 200, 10):
            try:
                list(client.run(f"old-{number}").watch())
            except RequestRefused as refused:
                refusals.add((refused.reason, "Nothing in it is trusted any more" in refused.message))
        assert refusals == {("STORAGE_DAMAGED", True)}
        assert [party.name for party in client.parties()] == ["bank"]
    assert local.processes["coordinator"].poll() is None
