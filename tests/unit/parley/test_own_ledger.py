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
    assert listed["runs"] == [{"run": "private-1", "ε set aside": 1.5, "ε spent": pytest.approx(0.375), "releases": 3}]
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
    assert "has released nothing yet" in result.stderr
    assert not (tmp_path / "state" / "party.db").exists()


def test_a_ledger_must_be_somewhere():
    result = CliRunner().invoke(
        app, ["ledger", "show", "private-1"], env={"PARLEY_ADDRESS": None, "PARLEY_IDENTITY": None}
    )
    assert result.exit_code == 2
    assert "--config for a party's own" in " ".join(result.stderr.replace("│", " ").split())
