"""Early stopping over real processes: the best checkpoint becomes the model, also of a run that was killed."""

import json
import subprocess
import sys
import time

import pytest

from parley.client import RequestRefused
from parley.services.party.tensor_files import unseal
from tests.integration.conftest import spec
from tests.integration.test_runs import models, wait_for_step

STOPPED = {
    "privacy__labels__mechanism": "off",
    "train__upper__steps": 60,
    "split": {"lower": 0.4, "upper": 0.2, "validation": 0.2, "test": 0.2},
    # the loss falls at first, so that the first evaluation is the "best" one and the run goes back by two
    "stop": {"metric": "validation loss", "patience": 2, "best": "largest"},
}


@pytest.fixture(scope="module")
def stopped(federation):
    with federation.connect() as client:
        run = client.start(spec(**STOPPED))
        return run, list(run.watch())


def test_a_run_that_gets_no_better_ends_and_says_which_model_it_keeps(stopped):
    run, events = stopped
    assert run.state == "COMPLETED"
    measured = [event for event in events if event.kind == "evaluation"]
    evaluated = {event.step: {m.name: m.value for m in event.evaluation.measured} for event in measured}
    ks = sorted(evaluated)
    last = events[-1]
    best = last.state_change.model_step
    assert run.step < 60
    assert ks.index(best) == len(ks) - 3, "two evaluations after the best were waited for"
    assert evaluated[best]["validation loss"] == max(evaluated[k]["validation loss"] for k in ks)
    assert f"the model of iteration {best} is kept" in last.message
    assert run.metrics["validation loss"] == evaluated[best]["validation loss"], "figures are those of that model"
    assert run.metrics["test accuracy"] == evaluated[best]["test accuracy"]


def test_the_model_is_the_best_checkpoint(stopped, federation):
    run, events = stopped
    best = events[-1].state_change.model_step
    for party in ("bank", "shop", "telco"):
        folder = federation.directory / "state" / party / "runs" / run.run_id
        model = unseal((folder / "model.safetensors").read_bytes())
        checkpoint = unseal((folder / f"checkpoint-{best:012d}.safetensors").read_bytes())
        assert (model["y"] == checkpoint["y"]).all()
        newest = max(folder.glob("checkpoint-*.safetensors"))
        assert newest != folder / f"checkpoint-{best:012d}.safetensors", "there is something to go back from"
        assert (model["y"] != unseal(newest.read_bytes())["y"]).any()


@pytest.mark.parametrize("victim", ["shop", "coordinator"])
def test_a_killed_run_stops_at_the_same_iteration_with_the_same_bits(stopped, federation, victim):
    undisturbed, events = stopped
    with federation.connect() as client:
        run = client.start(spec(**STOPPED))
        wait_for_step(run, 2)
        federation.kill(victim)
        federation.restart(victim)
        deadline = time.monotonic() + 90
        while run.refresh().state != "COMPLETED" and time.monotonic() < deadline:
            assert run.state in ("RUNNING", "PAUSED", "PENDING"), run.reason
            time.sleep(0.2)
        *_, last = run.watch()
        assert last.state_change.model_step == events[-1].state_change.model_step
        assert run.step == undisturbed.step
        assert models(federation, run) == models(federation, undisturbed)


def test_a_metric_that_the_run_does_not_measure_ends_it_with_a_sentence(client, federation):
    run = client.start(spec(stop={"metric": "test acuracy"}))
    with pytest.raises(RequestRefused, match=r"stop.metric.*'test acuracy'.*test accuracy"):
        run.result()
    # that evaluations on true labels decide something which parties see stands in the labels' account
    command = [sys.executable, "-m", "parley", "ledger", "datasets", "--json", "--config"]
    shown = subprocess.run([*command, str(federation.directory / "coordinator.yaml")], capture_output=True, check=True)
    found = {each["data set"]: each for each in json.loads(shown.stdout)["datasets"]}["digits"]
    assert f"{run.run_id}/stop" in found["without noise"]
