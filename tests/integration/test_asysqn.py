"""AsySQN over real processes: golden runs behind a barrier, and loops that nobody waits for."""

import contextlib
import json
import subprocess
import sys
import time

import numpy as np
import pytest
import yaml
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression

from parley.client import RequestRefused
from parley.contracts.run.v1 import run_pb2
from parley.party.asysqn.theta import question_of
from parley.privacy.pairwise import SumDoesNotOpen
from parley.protocols.asysqn.messages import Batch, ThetaRequest
from parley.testing.federations import ForkedFederation
from tests.integration.deviating_party import DeviatingParty

PARTIES = ("north", "east", "south")
COMMON = {1: 0.224333856516, 2: 0.201472743841, 5: 0.088892967873}
GOLDEN = {
    "floor": COMMON | {10: 0.059222309838, 20: 0.051180575244, 50: 0.046449869799},
    "eq12": COMMON | {10: 0.059281204058, 20: 0.051594026243, 50: 0.047031558552},
}
REGULARISATION = 1e-2


def cancer():
    """Breast cancer, z-scored, in the golden run's order: 456 training rows, then 113 test rows."""
    raw = load_breast_cancer()
    features = (raw.data - raw.data.mean(axis=0)) / raw.data.std(axis=0)
    permutation = np.random.default_rng(0).permutation(len(features))
    order = np.concatenate([permutation[113:], permutation[:113]])
    return features[order], raw.target[order]


def optimum(features, labels):
    """f* on the training rows, by scikit-learn."""
    rows = len(features)
    model = LogisticRegression(C=1 / (rows * REGULARISATION), fit_intercept=False, tol=1e-12, max_iter=10_000)
    weights = model.fit(features, labels).coef_[0]
    signs = np.where(labels == 1, 1.0, -1.0)
    return float(np.logaddexp(0, -signs * (features @ weights)).mean() + REGULARISATION / 2 * weights @ weights)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    directory = tmp_path_factory.mktemp("asysqn")
    features, labels = cancer()
    ids = np.array([f"{row:04d}" for row in range(len(features))])
    for name, scale in (("cancer", 1.0), ("wild", 1e6)):
        for m, party in enumerate(PARTIES):
            block = features[:, 10 * m : 10 * m + 10].copy()
            block[:, 3] *= scale if party == "east" else 1.0
            columns = np.array([f"c{column}" for column in range(10)])
            np.savez(directory / f"{name}-{party}.npz", x=block, ids=ids, columns=columns)
    np.savez(directory / "labels.npz", label=labels, ids=ids)
    np.savez(directory / "numbers.npz", label=(labels + np.arange(len(labels)) % 4) / 4, ids=ids)
    return directory


@pytest.fixture(scope="module")
def federation(data, tmp_path_factory):
    labels = {"label": "label", "label_path": str(data / "labels.npz")}
    files = {"cancer": "cancer", "wild": "wild", "numbers": "cancer"}
    tables = {
        party: {name: {"path": str(data / f"{file}-{party}.npz"), **labels} for name, file in files.items()}
        for party in PARTIES
    }
    held = {name: {"path": str(data / "labels.npz"), "budget": {"epsilon": 100}} for name in files}
    held["numbers"]["path"] = str(data / "numbers.npz")  # a copy of the labels would have their noise
    with ForkedFederation(tmp_path_factory.mktemp("asysqn-federation"), tables, held) as local:
        yield local


@pytest.fixture
def client(federation):
    with federation.connect() as connected:
        yield connected


def spec(train, aggregation="pairwise", parties=PARTIES, labels=None, **changes):
    content = {
        "name": "asysqn",
        "table": "cancer",
        "parties": list(parties),
        "split": {"lower": "0:456", "upper": "lower", "test": "456:569"},
        "train": {"algorithm": "asysqn", **train},
        "privacy": {"aggregation": {"kind": aggregation}, **({"labels": labels} if labels else {})},
        "evaluate_every": 20,
        "checkpoint_every": 40,
        "wait_seconds": 60,
        **changes,
    }
    return yaml.safe_dump(content)


def golden(damping, **changes):
    train = {
        "schedule": "synchronous",
        "estimator": "sgd",
        "batch": 456,
        "step_size": 0.5,
        "steps": 50,
        "curvature": {"memory": 5, "pair_every": 1, "damping": damping, "scale": "last"},
    }
    return train | changes


def objectives(run):
    """The objective after each round at which it was looked at."""
    found = {}
    for event in run.watch():
        values = {metric.name: metric.value for metric in event.metrics}
        if "objective" in values and event.kind == "evaluation":
            found[event.step] = values["objective"]
    assert run.state == "COMPLETED", run.reason
    return found


@pytest.mark.parametrize("damping", ["floor", "eq12"])
@pytest.mark.parametrize("aggregation", ["two_tree", "pairwise"])
def test_the_golden_run_is_matched_over_the_wire(client, damping, aggregation):
    found = objectives(client.start(spec(golden(damping), aggregation, evaluate_every=1)))
    for k, expected in GOLDEN[damping].items():
        assert found[k] == pytest.approx(expected, abs=1e-10 if k <= 20 else 1e-7)


def test_labels_at_the_coordinator_alone_train_the_same_model(client):
    train = golden("floor", labels_at="coordinator")
    found = objectives(client.start(spec(train, labels={"mechanism": "off"}, evaluate_every=1)))
    for k, expected in GOLDEN["floor"].items():
        assert found[k] == pytest.approx(expected, abs=1e-10 if k <= 20 else 1e-7)


@pytest.mark.parametrize("step", [1e12, 1e308])
@pytest.mark.parametrize("schedule", ["synchronous", "asynchronous"])
def test_a_step_of_a_clients_choice_does_not_tell_whose_values_grow(client, schedule, step):
    """By step sizes a client could bisect how large one party's part of a row is, if that party were named."""
    train = golden("floor", schedule=schedule, direction="first_order", step_size=step, steps=20)
    run = client.start(spec(train, evaluate_every=0, checkpoint_every=0))
    list(run.watch())
    assert run.refresh().state == "FAILED"
    assert not [name for name in PARTIES if name in run.reason], run.reason
    assert "step" in run.reason


def loop(**changes):
    features, labels = cancer()
    best = optimum(features[:456], labels[:456])
    train = {
        "batch": 128,
        "regularisation": REGULARISATION,
        "snapshot_every": 8,
        "steps": 20_000,
        "target": 1e-5,
        "optimum": best,
    }
    return train | changes


@pytest.mark.parametrize("aggregation", ["two_tree", "pairwise"])
@pytest.mark.parametrize("estimator", ["svrg", "saga"])
def test_parties_that_wait_for_nobody_reach_the_optimum(client, aggregation, estimator):
    run = client.start(spec(loop(estimator=estimator), aggregation))
    metrics = run.result()
    assert metrics["sub-optimality"] <= 1e-5
    assert metrics["test accuracy"] > 0.95
    assert metrics["aggregation rounds"] < 20_000
    assert {f"utilisation {party}" for party in PARTIES} <= metrics.keys()


def test_a_message_and_a_sum_cost_what_the_paper_counts(client):
    """q = 3, two_tree: 2(q−1)+1 messages of 8b bytes for each sum, and an SVRG step makes one sum, not two."""
    run = client.start(spec(loop(steps=200, target=None, batch=400, snapshot_every=50), "two_tree"))
    metrics = run.result()
    calls, updates = metrics["aggregation rounds"], metrics["updates"]
    snapshots = calls - updates
    assert snapshots == sum(np.ceil(metrics[f"updates {party}"] / 50) for party in PARTIES)
    payload = 5 * 8 * (400 * updates + 456 * snapshots)
    assert metrics["peer bytes"] <= 1.10 * payload
    assert metrics["bytes"] > metrics["peer bytes"], "what parties send to each other has crossed too"
    assert run.step == run.steps == 200
    assert all(event.step <= 200 for event in run.watch())


@pytest.mark.slow  # measures time: wants a machine of its own
def test_a_party_that_is_killed_rejoins_while_the_others_go_on(client, federation):
    run = client.start(spec(loop(target=None, steps=1500, turn_seconds=0.02), checkpoint_every=20))
    for event in run.watch():
        if event.step >= 100:
            break
    federation.kill("south")
    time.sleep(3)
    federation.restart("south")
    metrics = run.result()
    assert run.message.attempt >= 2
    assert metrics["updates alone"] > 0, "the others made steps of their own while south was away"
    assert metrics["sub-optimality"] <= 1e-5


@pytest.mark.slow  # measures time: wants a machine of its own
def test_a_slow_party_does_not_slow_the_others_unless_there_is_a_barrier(client):
    slow = [{"name": "north"}, {"name": "east"}, {"name": "south", "speed": 0.25}]
    settings = {"estimator": "saga", "turn_seconds": 0.08, "target": None}
    free = client.start(spec(loop(**settings, steps=240), parties=slow, evaluate_every=0)).result()
    barrier = client.start(
        spec(loop(**settings, steps=40, schedule="synchronous"), parties=slow, evaluate_every=0)
    ).result()
    ratio = (free["updates"] / free["seconds"]) / (barrier["updates"] / barrier["seconds"])
    assert free["updates north"] > 2 * free["updates south"]
    assert ratio > 1.8, "closed form (q − 1 + s)/(q·s) = 3"
    assert barrier["utilisation north"] < 0.5 < barrier["utilisation south"]


def test_a_badly_scaled_column_is_named_and_never_ends_in_nan(client):
    run = client.start(spec(loop(target=None, steps=300), table="wild"))
    warnings = [event.party for event in run.watch() if event.party.change == run_pb2.RUN_PARTY_CHANGE_WARNED]
    assert any(warning.party == "east" and "(3)" in warning.detail for warning in warnings)
    if run.state == "COMPLETED":
        assert np.isfinite(run.metrics["objective"])
    else:
        assert run.state == "FAILED"
        assert "standardise" in run.reason


def test_labels_at_the_coordinator_reach_asynchronous_parties_through_label_privacy(client):
    train = loop(labels_at="coordinator", target=None, steps=400, optimum=None)
    run = client.start(spec(train, labels={"mechanism": "once", "epsilon": 4}))
    metrics = run.result()
    assert metrics["test accuracy"] > 0.9
    assert metrics["training accuracy"] > 0.9
    assert "sub-optimality" not in metrics, "nobody said what the optimum is"
    ledger = run.ledger()
    assert ledger.broken == ""
    assert ledger.report.pure_epsilon == pytest.approx(4)


def test_numbers_reach_asynchronous_parties_on_bins_of_a_declared_range(client):
    train = loop(loss="ridge", labels_at="coordinator", target=None, steps=60, optimum=None)
    bins = {"mechanism": "once", "epsilon": 4, "bins": {"low": 0, "high": 1}}
    run = client.start(spec(train, labels=bins, table="numbers"))
    assert np.isfinite(list(run.result().values())).all()
    assert run.ledger().report.pure_epsilon == pytest.approx(4)


def test_labels_that_may_not_leave_end_an_asynchronous_run_by_name(client):
    train = loop(labels_at="coordinator", target=None, steps=20, optimum=None)
    once = {"mechanism": "once", "epsilon": 4}
    client.start(spec(train, labels=once)).result()
    numbers = spec(train | {"loss": "ridge"}, labels=once | {"bins": {"low": 0, "high": 1}})
    with pytest.raises(RequestRefused, match="released with another label"):
        client.start(numbers).result()


def test_rows_that_are_noised_once_train_asynchronous_parties(client, federation):
    noised = {"aggregation": {"kind": "pairwise"}, "features": {"kind": "once", "epsilon": 6.0, "bound": 6.0}}
    train = loop(target=None, steps=60, optimum=None)
    run = client.start(spec(train, privacy=noised))
    assert np.isfinite(run.result()["objective"])  # how little is learnt at such ε, other pages say
    command = [sys.executable, "-m", "parley", "ledger", "datasets", "--json", "--config"]
    shown = subprocess.run([*command, str(federation.directory / "east.yaml")], capture_output=True, check=True)
    account = next(each for each in json.loads(shown.stdout)["datasets"] if each["data set"] == "features/cancer")
    assert account["ε spent"] == pytest.approx(6, rel=1e-6)


def test_a_spent_label_budget_ends_an_asynchronous_run_and_keeps_its_model(client):
    train = loop(labels_at="coordinator", target=None, steps=5000, optimum=None)
    run = client.start(spec(train, labels={"mechanism": "per_step", "epsilon": 1, "budget": 12}))
    with pytest.raises(RequestRefused, match="BUDGET_EXHAUSTED"):
        run.result()
    assert run.ledger().report.pure_epsilon <= 12
    assert len(run.predict(ids=["0001", "0500"]).ids) == 2


def test_a_saved_model_predicts_as_it_was_trained(client):
    run = client.start(spec(loop()))
    accuracy = run.result()["test accuracy"]
    predicted = run.predict()
    _, labels = cancer()
    right = np.array([int(label) for label in predicted.labels]) == labels
    assert right[456:].mean() == pytest.approx(accuracy)


def test_a_run_that_stops_by_its_loss_may_not_hide_labels_behind_noise(client):
    text = spec(loop(labels_at="coordinator"), labels={"mechanism": "once", "epsilon": 4})
    with pytest.raises(RequestRefused, match="leave `target` out"):
        client.start(text)


def test_two_parties_are_refused_because_a_sum_would_give_one_away(client):
    with pytest.raises(RequestRefused, match="add a party"):
        client.start(spec(loop(), parties=PARTIES[:2]))


@pytest.fixture
def deviating(federation):
    """`south` by hand; `north` and `east` are real parties."""
    with contextlib.closing(DeviatingParty(federation, "south", spec(loop()))) as party:
        yield party


def opened_by(party, number, rows, question):
    """What the deviating party opens of the others' addends and its own zeros."""
    addends = party.ask(number, rows)
    asked = question_of(ThetaRequest(number, question))
    size = addends[0].masked.size - 1  # the last one shows whether a sum has opened
    told = dict.fromkeys(range(len(party.names)), asked)
    own = party.sums.gates[party.index].release(number, np.zeros(size), told=told).content
    return party.sums.open([*addends, own]).values


def test_a_party_that_asks_each_peer_for_other_rows_opens_nothing(deviating):
    same, other = Batch(0, 0), Batch(0, 1)
    honest = opened_by(deviating, 1, {"north": same, "east": same}, same)
    assert np.abs(honest).max() < 1e3
    for number, question in ((2, same), (3, other)):
        with pytest.raises(SumDoesNotOpen):
            opened_by(deviating, number, {"north": same, "east": other}, question)
    assert opened_by(deviating, 4, {"north": other, "east": other}, other).size == honest.size


@pytest.fixture
def asking(data, tmp_path, monkeypatch):
    """`south` asks for slopes of steps past any that a run has; the others and the coordinator are real."""
    labels = {"label": "label", "label_path": str(data / "labels.npz")}
    tables = {party: {"cancer": {"path": str(data / f"cancer-{party}.npz"), **labels}} for party in PARTIES}
    held = {"cancer": {"path": str(data / "labels.npz"), "budget": {"epsilon": 100}}}
    monkeypatch.setenv("RECORDING", str(tmp_path))
    modules = {"south": "tests.integration.asking_party"}
    with ForkedFederation(tmp_path / "federation", tables, held, modules=modules) as local, local.connect() as client:
        yield client


def test_slopes_past_the_last_step_are_refused_and_charged_to_nobody(asking, tmp_path):
    """Such a step would be numbered as another party's, and its rows be charged to rows that party had paid for."""
    train = loop(labels_at="coordinator", target=None, steps=12, optimum=None, batch=32, estimator="sgd")
    run = asking.start(spec(train, labels={"mechanism": "per_step", "epsilon": 0.5, "budget": 50}))
    run.result()
    asked = json.loads((tmp_path / "asked.json").read_text())
    assert [step for step, _, _ in asked] == [2**32 - 1, 2**32, 2**32 + 3, 2**33 + 5]
    assert all("MESSAGE_INVALID" in refused or "step" in refused for _, refused, _ in asked), asked
    assert not any(answer for _, _, answer in asked)
    ledger = run.ledger()
    assert ledger.broken == ""
    numbers = [each.first_release % 2**32 + each.releases for each in ledger.entries]
    assert numbers
    assert max(numbers) < 1000, "steps that were made"
