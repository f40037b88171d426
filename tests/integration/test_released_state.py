"""The state that 0.1.0 left: databases and directories open, models answer, runs go on or end with what to do.

`released/0.1.0-state.tar.xz` was written by services of 0.1.0, killed while three runs were under way;
`released/state_of_0_1_0.py` says how.
"""

import json
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from parley.cli import app
from parley.client import RequestRefused
from parley.testing.federations import ForkedFederation
from parley.testing.remains import wait_for_end

RELEASED = Path(__file__).parent / "released" / "0.1.0-state.tar.xz"
PARTIES = ("bank", "shop", "telco")
UNCOUNTED = ("bytes", "seconds")
"""What is sent around the same steps has grown."""


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """What was found before the upgrade, and the same federation with this version."""
    root = tmp_path_factory.mktemp("released")
    with tarfile.open(RELEASED) as archive:
        archive.extractall(root, filter="data")
    data = root / "data"
    tables = {
        party: {
            "columns": {"path": str(data / f"{party}-columns.csv")},
            "rows": {"path": str(data / f"{party}-rows.csv"), "label": "label"},
        }
        for party in PARTIES
    }
    labels = {"columns": {"path": str(data / "labels.csv")}}
    local = ForkedFederation(root / "federation", tables, labels, policy={"epsilon_budget": 100.0})
    with local:
        yield json.loads((root / "found.json").read_text()), local


@pytest.fixture
def client(released):
    with released[1].connect() as connected:
        yield connected


def label_accounts(local):
    path = local.directory / "state" / "coordinator" / "coordinator.db"
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT run, length, hash FROM ledger_heads ORDER BY run").fetchall()


def test_runs_that_had_ended_are_there_with_figures_and_whole_ledgers(released, client):
    found, _ = released
    for algorithm, releases in (("bambi", 1), ("asysqn", 1), ("fedbio", 0), ("ldp_dsbo", 0)):
        run = client.run(found[algorithm]["run"])
        assert run.state == "COMPLETED"
        assert run.metrics == found[algorithm]["metrics"]
        assert (run.ledger().broken, len(run.ledger().entries)) == ("", releases)
        assert run.events()[-1].message == "completed"


def test_a_run_whose_steps_are_still_the_same_goes_on_to_what_0_1_0_would_have_found(released, client):
    found, _ = released
    run = wait_for_end(client, found["stopped fedbio"]["run"])
    assert run.state == "COMPLETED", run.reason
    assert any(event.message == "resumed from iteration 4" for event in run.events())
    undisturbed = found["fedbio"]["metrics"]
    figures = [name for name in undisturbed if name not in (*UNCOUNTED, "rounds", "label releases")]
    assert {name: run.metrics[name] for name in figures} == {name: undisturbed[name] for name in figures}


@pytest.mark.parametrize("algorithm", ["bambi", "asysqn"])
def test_a_run_whose_steps_are_others_now_ends_with_what_to_do_and_costs_nothing(released, client, algorithm):
    found, local = released
    run = wait_for_end(client, found[f"stopped {algorithm}"]["run"])
    before = label_accounts(local)
    assert run.state == "FAILED"
    assert "began under a version of Parley whose steps were others: start a new run with its spec" in run.reason
    with pytest.raises(RequestRefused, match="start a new run with its spec") as refusal:
        run.resume()
    assert refusal.value.reason == "VERSION_MISMATCH"
    assert label_accounts(local) == before
    assert (run.ledger().broken, len(run.ledger().entries)) == ("", 1)
    for party in PARTIES:  # which were not asked
        kept = local.directory / "state" / party / "runs" / run.run_id
        assert list(kept.glob("checkpoint-*"))
        assert not (kept / "spec.sha256").exists()


@pytest.mark.parametrize(("algorithm", "tolerance"), [("bambi", 1e-5), ("asysqn", 0.0)])
def test_a_model_of_0_1_0_answers_once_each_owner_has_said_which_spec_it_is_of(released, client, algorithm, tolerance):
    found, local = released
    run, before = client.run(found[algorithm]["run"]), found[algorithm]["predicted"]
    for _ in PARTIES:
        with pytest.raises(RequestRefused, match=rf"no spec of run {run.run_id} was kept at") as refusal:
            run.predict(ids=list(before))
        assert refusal.value.reason == "APPROVAL_MISSING"
        for each in PARTIES:
            if f"at {each} " in str(refusal.value):
                digest = str(refusal.value).split("parley approve ")[1].split()[0]
                config = str(local.directory / f"{each}.yaml")
                assert CliRunner().invoke(app, ["approve", digest, "--config", config]).exit_code == 0
    predicted = run.predict(ids=list(before))
    assert predicted.ids == list(before)
    for scores, known in zip(predicted.scores.tolist(), before.values(), strict=True):
        assert scores == pytest.approx(known, abs=tolerance, rel=0)
    for party in PARTIES:
        out = local.directory / f"{party}-{algorithm}"
        config = ["--config", str(local.directory / f"{party}.yaml"), "--out", str(out)]
        ended = CliRunner().invoke(app, ["export", run.run_id, *config])
        assert ended.exit_code == 0, ended.output
