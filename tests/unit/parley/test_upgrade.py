"""`parley upgrade` on what a released version left, and beside a service that runs."""

import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from parley.cli import app
from parley.services.coordinator.registry import open_registry

RELEASED = Path(__file__).parents[2] / "contract" / "released" / "0.1.0-sqlite.sql"


@pytest.fixture
def coordinator(tmp_path):
    """A configuration whose state is that of a coordinator of 0.1.0."""
    (tmp_path / "state").mkdir()
    with sqlite3.connect(tmp_path / "state" / "coordinator.db") as connection:
        connection.executescript(RELEASED.read_text())
    config = tmp_path / "coordinator.yaml"
    config.write_text("name: c\nidentity: nowhere\nstate: state\nparties: {}\nlabels: {}\n")
    return config


def upgraded(config, *options):
    done = CliRunner().invoke(app, ["upgrade", "--config", str(config), "--json", *options])
    assert done.exit_code == 0, done.output
    return {row["holds"]: row for row in json.loads(done.output)}


def test_a_check_says_what_a_database_of_0_1_0_lacks_and_changes_nothing(coordinator):
    checked = upgraded(coordinator, "--check")
    assert {row["has"] for row in checked.values()} == {"none"}
    assert checked.keys() == {"registry", "ledger", "evaluations"}
    assert upgraded(coordinator, "--check") == checked


def test_its_runs_are_there_afterwards(coordinator):
    for row in upgraded(coordinator).values():
        assert (row["had"], row["has"]) == ("none", row["newest"])
    registry = open_registry(f"sqlite:///{coordinator.parent / 'state' / 'coordinator.db'}")
    assert registry.get("digits-0001").state == "COMPLETED"
    registry.close()


def test_a_service_that_runs_is_left_alone(coordinator):
    hold = (
        "import sys; from pathlib import Path; from parley.storage.leases import FileLease\n"
        "lease = FileLease(Path(sys.argv[1]), 'the state directory'); print('held', flush=True); sys.stdin.read()"
    )
    lock = str(coordinator.parent / "state" / "service.lock")
    with subprocess.Popen([sys.executable, "-c", hold, lock], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as service:
        assert service.stdout is not None
        assert service.stdout.readline() == b"held\n"
        done = CliRunner().invoke(app, ["upgrade", "--config", str(coordinator)])
    assert (done.exit_code, "the state directory" in done.output) == (1, True)


def test_a_party_without_a_database_has_nothing_to_upgrade(tmp_path):
    config = tmp_path / "party.yaml"
    policy = "{coordinators: [c], algorithms: [bambi]}"
    config.write_text(f"name: bank\nidentity: nowhere\nstate: state\ntables: {{}}\npolicy: {policy}\n")
    done = CliRunner().invoke(app, ["upgrade", "--config", str(config)])
    assert done.exit_code == 0, done.output
    assert "nothing to upgrade" in done.output
