"""Services that come up on a database of another version."""

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from parley.privacy.ledger import open_ledger
from parley.testing.federations import ForkedFederation

RELEASED = Path(__file__).parents[1] / "contract" / "released" / "0.1.0-sqlite.sql"


@pytest.fixture
def local(data, tmp_path):
    tables = {"bank": {"digits": {"path": data / "digits" / "bank.parquet"}}}
    labels = {"digits": {"path": data / "digits" / "labels.parquet"}}
    federation = ForkedFederation(tmp_path, tables, labels)
    federation.write()
    for name in ("bank", "coordinator"):
        (tmp_path / "state" / name).mkdir(parents=True)
    yield federation
    federation.stop()


def database(local, name):
    return local.directory / "state" / name / ("coordinator.db" if name == "coordinator" else "party.db")


def test_a_coordinator_goes_on_with_the_database_of_0_1_0(local):
    with closing(sqlite3.connect(database(local, "coordinator"))) as connection:
        connection.executescript(RELEASED.read_text())
    local.start("coordinator")
    local.wait_until_ready("coordinator")
    with local.connect() as client:
        assert {run.run_id for run in client.runs()} == {"digits-0001", "credit-0002"}
        old = client.run("digits-0001")
        assert [event.message for event in old.watch(after=7)] == ["completed"]
        assert (old.ledger().broken, len(old.ledger().entries)) == ("", 1)


@pytest.mark.parametrize(
    ("name", "schema"), [("coordinator", "registry"), ("coordinator", "ledger"), ("bank", "ledger")]
)
def test_a_service_does_not_come_up_on_a_newer_database(local, name, schema):
    path = database(local, name)
    if name == "coordinator":
        local.start(name)
        local.wait_until_ready(name)
        local.stop()
    else:
        open_ledger(f"sqlite:///{path}").close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"UPDATE {schema}_version SET version_num = '0815'")  # noqa: S608
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        before = list(connection.iterdump())
    module = "parley.services.coordinator" if name == "coordinator" else "parley.services.party"
    command = [sys.executable, "-m", module, "--config", str(local.directory / f"{name}.yaml")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 2
    assert ended.stderr.startswith("error: the database ")
    assert f"its {schema} has revision 0815" in ended.stderr
    assert ended.stderr.count("\n") == 1
    with closing(sqlite3.connect(path)) as connection:
        assert list(connection.iterdump()) == before
