"""`parley ledger … --config party.yaml`: a party's owner reads the party's own ledger, without the coordinator."""

import json
import sqlite3

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from parley.cli import app
from parley.privacy.accounting import PureRelease, RecordCounts
from parley.privacy.ledger import Budget, Charge, open_ledger

LOSSES = (0.0, 0.25, 0.125)


def invoke(*arguments):
    return CliRunner().invoke(app, ["ledger", *(str(argument) for argument in arguments)], env={"COLUMNS": "200"})


@pytest.fixture
def config(tmp_path):
    """A party that has released three states in one run."""
    path, state = tmp_path / "party.yaml", tmp_path / "state"
    state.mkdir()
    content = {
        "name": "north",
        "identity": "certificates",
        "state": "state",
        "tables": {},
        "policy": {"coordinators": ["coordinator"], "algorithms": ["bambi"], "epsilon_budget": 4.0},
    }
    path.write_text(yaml.safe_dump(content))
    ledger = open_ledger(f"sqlite:///{state / 'party.db'}")
    ledger.open_run("private-1", 1, Budget(1.5))
    for step, loss in enumerate(LOSSES):
        charge = Charge(PureRelease(loss), ("east", "south"), RecordCounts(np.ones(1, dtype=np.int64)))
        ledger.reserve("private-1", step, 1, charge)
    ledger.close()
    return path


def test_every_release_and_what_they_cost_together_are_shown(config):
    result = invoke("show", "private-1", "--config", config, "--json")
    assert result.exit_code == 0, result.output
    shown = json.loads(result.stdout)
    assert [entry["ε each"] for entry in shown["entries"]] == pytest.approx(np.cumsum(LOSSES))
    assert shown["entries"][0]["recipients"] == ["east", "south"]
    assert shown["report"]["pure ε"] == pytest.approx(sum(LOSSES))
    assert 0 < shown["report"]["ε by privacy loss"] <= sum(LOSSES) + 1e-9
    assert (shown["report"]["budget"], shown["report"]["chain"]) == (1.5, "whole")


def test_the_table_names_the_neighbours(config):
    result = invoke("show", "private-1", "--config", config)
    assert result.exit_code == 0, result.output
    assert "east" in result.stdout
    assert "whole" in result.stdout


def test_runs_are_listed_with_what_the_policy_leaves(config):
    listed = json.loads(invoke("runs", "--config", config, "--json").stdout)
    assert listed["runs"] == [
        {"run_id": "private-1", "ε set aside": 1.5, "ε spent": pytest.approx(0.375), "releases": 3}
    ]
    assert listed["total"] == {"ε set aside": 1.5, "policy's epsilon_budget": 4.0}


def test_a_changed_entry_is_found(config):
    assert "3 entries, the chain is whole" in invoke("verify", "private-1", "--config", config).stdout
    with sqlite3.connect(config.parent / "state" / "party.db") as database:
        database.execute("UPDATE ledger_entries SET epsilon = 0 WHERE sequence = 1")
    result = invoke("verify", "private-1", "--config", config)
    assert result.exit_code == 1
    assert "entry 1 was changed" in result.stderr
    assert (
        "entry 1 was changed"
        in json.loads(invoke("show", "private-1", "--config", config, "--json").stdout)["report"]["chain"]
    )


def test_an_unknown_run_is_refused_with_those_that_there_are(config):
    result = invoke("show", "public-1", "--config", config)
    assert result.exit_code == 1
    assert result.stderr == "error: run public-1 has released nothing here; the ledger has private-1\n"


def test_reading_makes_no_database(config, tmp_path):
    (tmp_path / "state" / "party.db").unlink()
    result = invoke("show", "private-1", "--config", config)
    assert result.exit_code == 1
    assert "nothing has been released here yet" in result.stderr
    assert not (tmp_path / "state" / "party.db").exists()


def test_a_ledger_must_be_somewhere():
    result = CliRunner().invoke(
        app, ["ledger", "show", "private-1"], env={"PARLEY_ADDRESS": None, "PARLEY_IDENTITY": None}
    )
    assert result.exit_code == 2
    assert "--config for one on this machine" in " ".join(result.stderr.replace("│", " ").split())


def test_the_coordinators_own_configuration_shows_the_ledger_of_labels(tmp_path):
    """The same commands read the coordinator's ledger where it lies."""
    (tmp_path / "state").mkdir()
    path = tmp_path / "coordinator.yaml"
    path.write_text(
        "name: hub\nidentity: certificates\nstate: state\nparties: {}\nlabels: {}\nweb: {listen: '127.0.0.1:0'}\n"
    )
    ledger = open_ledger(f"sqlite:///{tmp_path / 'state' / 'coordinator.db'}")
    ledger.open_run("digits-1", 1, Budget(3.0))
    ledger.reserve("digits-1", 0, 1, Charge(PureRelease(3.0), ("bank",), RecordCounts(np.ones(1, dtype=np.int64))))
    ledger.close()
    listed = invoke("runs", "--config", path, "--json")
    assert listed.exit_code == 0, listed.output
    found = json.loads(listed.stdout)
    assert [(run["run_id"], run["ε spent"]) for run in found["runs"]] == [("digits-1", pytest.approx(3.0))]
    assert "policy's epsilon_budget" not in found["total"], "a coordinator has no such policy"
    assert invoke("show", "digits-1", "--config", path).exit_code == 0
    assert "1 entry, the chain is whole" in invoke("verify", "digits-1", "--config", path).stdout


def test_a_configuration_of_neither_kind_is_told_with_its_line(tmp_path):
    (tmp_path / "party.yaml").write_text("name: north\ncolour: red\n")
    result = invoke("runs", "--config", tmp_path / "party.yaml")
    assert result.exit_code == 1
    assert "party.yaml:2: colour: no such field" in result.stderr
