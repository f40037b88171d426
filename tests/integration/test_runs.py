"""Runs over real processes: started, watched, listed, cancelled, resumed, predicted with."""

import hashlib
import time
import uuid

import numpy as np
import pytest

from parley.client import RequestRefused
from parley.contracts.run.v1 import run_pb2
from tests.integration.conftest import spec


def models(federation, run, parties=("bank", "shop", "telco")):
    """A digest of every party's saved model."""
    paths = [federation.directory / "state" / name / "runs" / run.run_id / "model.safetensors" for name in parties]
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]


def wait_for_step(run, step):
    for event in run.watch():
        if event.step >= step:
            return


def test_a_run_completes_and_its_events_tell_the_story(client):
    run = client.start(spec())
    events = list(run.watch())
    assert run.state == "COMPLETED"
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert events[-1].message == "completed"
    assert {"test accuracy", "test loss", "rounds", "bytes"} <= run.metrics.keys()
    assert list(client.run(run.run_id).watch()) == events, "a late watcher sees the same events"
    assert run.run_id in [other.run_id for other in client.runs()]


def test_every_event_says_by_type_what_happened(client):
    run = client.start(spec())
    events = list(run.watch())
    arms = {"state": "state_change", "data": "data_opened"}
    assert [event.WhichOneof("body") for event in events] == [arms.get(event.kind, event.kind) for event in events]
    opened = [event.data_opened for event in events if event.kind == "data"]
    assert [table.party for table in opened] == ["bank", "shop", "telco"]
    assert {(table.rows, len(table.id_sha256)) for table in opened} == {(1797, 64)}
    begun, ended = [event.state_change for event in events if event.kind == "state"]
    assert (begun.attempt, begun.from_step, ended.attempt) == (1, 0, 0)
    assert [event.progress.checkpoint for event in events if event.progress.checkpoint] == [2, 4, 6]
    measured = [event.evaluation for event in events if event.kind == "evaluation"]
    assert len(measured) == 3
    assert "test accuracy" in {metric.name for metric in measured[-1].measured}
    assert not {"rounds", "bytes"} & {metric.name for metric in measured[-1].measured}
    assert ended.totals.rounds >= measured[-1].totals.rounds > measured[0].totals.rounds > 0
    assert run.metrics["bytes"] == ended.totals.bytes
    (spent,) = [event.privacy for event in events if event.kind == "privacy"]
    ledger = run.ledger()
    assert (spent.epsilon, spent.budget, spent.entries) == (5.0, 5.0, len(ledger.entries))
    assert spent.head == ledger.entries[-1].hash


def test_the_same_request_starts_one_run(client):
    request_id = uuid.uuid4().hex
    first, second = client.start(spec(), request_id), client.start(spec(), request_id)
    assert first.run_id == second.run_id
    first.result()


@pytest.mark.parametrize("aggregation", ["pairwise", "two_tree"])
def test_secure_sums_train_the_same_model_whatever_hides_them(client, federation, aggregation):
    """The ring is exact, so the way of hiding leaves no trace in the model."""
    plain_labels = {"privacy__labels__mechanism": "off", "privacy__aggregation__kind": aggregation}
    run = client.start(spec(**plain_labels))
    run.result()
    again = client.start(spec(**plain_labels, privacy__aggregation__ring_bits=32))
    again.result()
    assert models(federation, run) == models(federation, again)
    other = client.start(spec(**plain_labels | {"privacy__aggregation__kind": "pairwise"}))
    other.result()
    assert models(federation, run) == models(federation, other)


def test_runs_do_not_disturb_each_other(client, federation):
    alone = client.start(spec(privacy__labels__mechanism="off"))
    alone.result()
    together = [client.start(spec(privacy__labels__mechanism="off")) for _ in range(3)]
    for run in together:
        run.result()
        assert models(federation, run) == models(federation, alone)


LONG = spec(privacy__labels__mechanism="off", train__upper__steps=30, evaluate_every=0)


@pytest.fixture(scope="module")
def undisturbed(federation):
    """The models of a run that nobody disturbs."""
    with federation.connect() as client:
        run = client.start(LONG)
        run.result()
        return models(federation, run)


def test_a_cancelled_run_ends_and_resumes_to_the_same_model(client, federation, undisturbed):
    run = client.start(LONG)
    wait_for_step(run, 4)
    run.cancel()
    assert run.refresh().state == "CANCELLED"
    with pytest.raises(RequestRefused, match="RUN_ENDED"):
        run.cancel()
    run.resume()
    assert run.result()
    assert models(federation, run) == undisturbed


@pytest.mark.parametrize("victim", ["shop", "coordinator"])
def test_a_killed_process_comes_back_and_the_run_ends_with_the_same_bits(client, federation, undisturbed, victim):
    run = client.start(LONG)
    wait_for_step(run, 6)
    federation.kill(victim)
    federation.restart(victim)
    deadline = time.monotonic() + 90
    while run.refresh().state != "COMPLETED" and time.monotonic() < deadline:
        assert run.state in ("RUNNING", "PAUSED", "PENDING"), run.reason
        time.sleep(0.2)
    assert run.state == "COMPLETED"
    assert run.message.attempt >= 2
    assert models(federation, run) == undisturbed


def test_a_lost_party_that_does_not_come_back_fails_the_run_by_name(client, federation):
    run = client.start(spec(train__upper__steps=2000, wait_seconds=2))
    wait_for_step(run, 2)
    federation.kill("telco")
    try:
        with pytest.raises(RequestRefused, match=r"telco.*waited for 2 s.*resume"):
            run.result()
        assert run.state == "FAILED"
    finally:
        federation.restart("telco")


def test_predictions_by_table_and_by_id_agree(client):
    run = client.start(spec())
    run.result()
    everything = run.predict()
    some = run.predict(ids=["5", "3", "1700"])
    assert some.ids == ["5", "3", "1700"]
    rows = [everything.ids.index(identity) for identity in some.ids]
    np.testing.assert_allclose(some.scores, everything.scores[rows], rtol=0, atol=1e-5)
    np.testing.assert_allclose(everything.scores.sum(axis=1), 1, atol=1e-6)
    assert len(run.predict(table="few").ids) == 100


def test_a_prediction_needs_a_model(client):
    run = client.start(spec(train__upper__steps=500))
    with pytest.raises(RequestRefused, match="RUN_UNFINISHED"):
        run.predict()
    run.cancel()


def test_a_spent_budget_ends_the_run_and_keeps_the_model(client):
    run = client.start(
        spec(
            train__upper__steps=50,
            train__lower__batch=None,
            split={"lower": 0.5, "upper": "lower", "test": 0.2},
            train__upper__batch=None,
            privacy__labels={"mechanism": "per_step", "epsilon": 1, "budget": 10},
        )
    )
    with pytest.raises(RequestRefused, match="BUDGET_EXHAUSTED"):
        run.result()
    ledger = run.ledger()
    assert ledger.broken == ""
    assert ledger.report.largest_count == 10
    assert ledger.report.pure_epsilon == pytest.approx(10)
    assert len(run.predict(ids=["1"]).ids) == 1


def test_the_ledger_shows_one_charge_for_a_run_that_draws_labels_once(client):
    run = client.start(spec())
    run.result()
    ledger = run.ledger()
    assert len(ledger.entries) == 1
    assert ledger.report.pure_epsilon == pytest.approx(5)
    assert ledger.report.largest_count == 1


def test_parties_report_how_they_stand(client):
    statuses = {status.name: status for status in client.parties()}
    assert statuses.keys() == {"bank", "shop", "telco", "grocer"}
    assert all(status.reachable and not status.problem for status in statuses.values())


def test_a_cnn_and_a_logistic_and_a_regression_model_train(client):
    pictures = spec(
        train__model={"kind": "cnn", "image_shape": [2, 8], "out": 8}, parties=["bank", "shop", "telco", "grocer"]
    )
    assert client.start(pictures).result()["test accuracy"] > 0.3
    binary = spec(table="cancer", train__loss="logistic", privacy__labels={"mechanism": "once", "epsilon": 5})
    assert client.start(binary).result()["test accuracy"] > 0.85
    ridge = spec(
        table="cancer",
        train__loss="squared",
        train__problem="hyper_parameters",
        privacy__labels={"mechanism": "off"},
    )
    assert client.start(ridge).result()["test r2"] > 0.5


def test_a_notebook_gets_a_card_and_the_curves_of_a_run(client):
    run = client.start(spec())
    metrics = run.follow()
    assert metrics == run.metrics
    assert run.run_id in run._repr_html_()
    assert "test accuracy" in run._repr_html_()
    losses, quality = run.plot().axes
    assert {line.get_label() for line in losses.lines} >= {"upper loss", "test loss"}
    assert {line.get_label() for line in quality.lines} == {"test accuracy", "test auc"}


def test_the_last_figures_are_those_of_the_last_iteration(client):
    """Nothing is held out, so nothing is evaluated; the run is over before a second progress event is due."""
    run = client.start(spec(split={"lower": 0.8, "upper": 0.2, "test": 0.0}, evaluate_every=0, checkpoint_every=0))
    metrics = run.result()
    told = [(event.step, m.value) for event in run.watch() for m in event.progress.measured if m.name == "upper loss"]
    assert told[-1] == (6, metrics["upper loss"])


def test_every_evaluation_tells_the_loss_of_its_own_iteration(client):
    run = client.start(spec())
    run.result()
    for event in run.watch():
        if event.kind == "evaluation":
            assert "upper loss" in {metric.name for metric in event.evaluation.measured}
    assert event.step == 6


def totals_at(run, test):
    """The totals of the first event that passes a test."""
    for event in run.watch():
        if test(event):
            body = getattr(event, event.WhichOneof("body"))
            return body.totals
    raise AssertionError("no such event")


def test_totals_of_a_run_that_was_cancelled_and_resumed_are_true(client):
    text = spec(train__upper__steps=40, checkpoint_every=4, evaluate_every=4, privacy__labels__mechanism="off")
    whole = client.start(text)
    whole.result()
    run = client.start(text)
    wait_for_step(run, 9)
    run.cancel()
    first = totals_at(run, lambda event: event.state == run_pb2.RUN_STATE_CANCELLED)
    run.resume()
    metrics = run.result()
    (begun,) = [event.state_change for event in run.watch() if event.state_change.attempt == 2]
    kept = totals_at(whole, lambda event: event.progress.checkpoint == begun.from_step)
    assert first.rounds >= kept.rounds > 0
    assert metrics["rounds"] == first.rounds + whole.metrics["rounds"] - kept.rounds
    assert metrics["bytes"] == pytest.approx(first.bytes + whole.metrics["bytes"] - kept.bytes, rel=0.01)
    assert metrics["label releases"] == whole.metrics["label releases"], "what was replayed is no further release"
    assert metrics["seconds"] > first.seconds > 0


def test_totals_outlive_a_coordinator_that_is_stopped(client, federation):
    run = client.start(spec(train__upper__steps=40, checkpoint_every=4, evaluate_every=4))
    wait_for_step(run, 9)
    federation.processes["coordinator"].terminate()
    federation.processes["coordinator"].wait(30)
    federation.restart("coordinator")
    metrics = client.run(run.run_id).result()
    stopped = totals_at(run, lambda event: event.message == "the coordinator was stopped")
    again = [event.state_change for event in run.watch() if event.state_change.attempt == 2]
    kept = totals_at(run, lambda event: event.progress.checkpoint == again[0].from_step)
    assert stopped.rounds >= kept.rounds
    assert metrics["rounds"] > stopped.rounds + kept.rounds / 2
