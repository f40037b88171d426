"""HGP over real processes: three parties push to each other, and the coordinator only keeps time."""

import csv
import signal
import time

import numpy as np
import pytest
import yaml
from pydantic import ValidationError
from safetensors.numpy import load
from scipy.special import log_softmax, softmax
from sklearn.datasets import load_digits

from parley.client import RequestRefused
from parley.contracts.run.v1 import run_pb2
from parley.experiments import hgp_parties
from parley.experiments.hgp_error import exact_solution
from parley.experiments.synthetic_clients import synthetic_clients
from parley.numerics.bilevel_costs import regularised_logistic, weighted_samples
from parley.numerics.streams import stream
from parley.party.hgp.schedule import SpecSchedule
from parley.protocols.decentralised.messages import plan_of
from parley.protocols.hgp.settings import HgpSpec
from parley.services.party.config import Policy
from parley.spec.parsing import parse_spec
from parley.spec.rows import divide
from parley.testing.federations import ForkedFederation

pytestmark = pytest.mark.timeout(600)  # thousands of steps between processes
PARTIES = ("north", "east", "south")
SYNTHETIC = {"lower": "0:100", "upper": "100:200", "test": 0}


def digits_of(member):
    """Digits of which each party has mostly some classes of its own."""
    pixels, labels = load_digits(return_X_y=True)
    draw = np.random.default_rng(member)
    own = np.isin(labels, range(3 * member, 3 * member + 4))
    rows = draw.choice(len(labels), 300, replace=False, p=np.where(own, 8.0, 1.0) / np.where(own, 8.0, 1.0).sum())
    return pixels[rows] / 16.0, labels[rows]


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    directory = tmp_path_factory.mktemp("hgp")
    tables = {}
    for party, client in zip(PARTIES, synthetic_clients(0), strict=True):
        path = directory / f"{party}.npz"
        np.savez(
            path,
            x=np.concatenate([client.features, client.validation_features]),
            label=np.concatenate([client.labels, client.validation_labels]),
            ids=np.array([f"{row:04d}" for row in range(200)]),
            columns=np.array([f"c{column}" for column in range(5)]),
        )
        tables[party] = {"rows": {"path": str(path), "label": "label", "label_path": str(path)}}
        digits = directory / f"{party}-digits.npz"
        pixels, labels = digits_of(PARTIES.index(party))
        ids = np.array([f"{row:04d}" for row in range(len(labels))])
        np.savez(digits, x=pixels, label=labels, ids=ids, columns=np.array([f"p{column}" for column in range(64)]))
        tables[party]["digits"] = {"path": str(digits), "label": "label", "label_path": str(digits)}
    policy = {"algorithms": ["hgp"]}
    with ForkedFederation(tmp_path_factory.mktemp("hgp-federation"), tables, {}, policy=policy) as local:
        yield local


@pytest.fixture
def client(federation):
    with federation.connect() as connected:
        yield connected


def spec(task=None, parties=PARTIES, split=None, table="rows", **train):
    content = {
        "name": "hgp",
        "seed": 4,
        "dtype": "float64",
        "table": table,
        "parties": list(parties),
        "split": split or SYNTHETIC,
        "train": {"algorithm": "hgp", "task": task or {"kind": "regularisation", "classes": ["0", "1"]}, **train},
        "evaluate_every": 1,
        "checkpoint_every": 1,
        "wait_seconds": 60,
    }
    return yaml.safe_dump(content)


SHORT = {
    "inner": {"steps": 40, "learning_rate": 0.5, "milestones": [20]},
    "hyper": {"rounds": 10, "push_steps": 3, "step_size": 1.0},
}


def costs_of(text):
    task = parse_spec(text).settings(HgpSpec).task
    parts = [(c.features, c.labels, c.validation_features, c.validation_labels) for c in synthetic_clients(0)]
    if task.kind == "influence":
        return [weighted_samples(*part, weight_decay=task.weight_decay) for part in parts]
    return [regularised_logistic(*part) for part in parts]


def simulated(text):
    """x, λ and v of every party, from the same roles in one process, on rows that no table has held."""
    run = parse_spec(text)
    train, costs = run.settings(HgpSpec), costs_of(text)
    mixing = hgp_parties.Mixing(
        plan_of(train.network, PARTIES, run.seed), train.network.weights == "metropolis", train.network.window
    )
    points = [np.zeros(5) for _ in PARTIES]
    influence = train.task.kind == "influence"
    hypers = [np.ones(c.rows) if influence else np.full(5, train.task.initial) for c in costs]
    found, schedule = [], SpecSchedule(train, run.seed)
    for k in range(train.outer.steps):
        inner, hyper = schedule.training(k), schedule.hyper_gradient(k)
        points = hgp_parties.train(costs, mixing, inner, points, hypers, first_step=schedule.first_step(k, "train"))
        at = schedule.first_step(k, "hyper_gradient")
        found = hgp_parties.hyper_gradients(costs, mixing, hyper, points, hypers, first_step=at)
        if not influence:
            step = train.outer.step_size
            hypers = [np.maximum(h - step * v, train.task.lowest) for h, v in zip(hypers, found, strict=True)]
    return points, hypers, found


def models(federation, run):
    found = []
    for party in PARTIES:
        content = (federation.directory / "state" / party / "runs" / run.run_id / "model.safetensors").read_bytes()
        found.append(load(content))
    return found


def assert_same_bits(federation, run, text):
    for model, x, hyper, v in zip(models(federation, run), *simulated(text), strict=True):
        np.testing.assert_array_equal(model["model"], x)
        np.testing.assert_array_equal(model["hyper"], hyper)
        np.testing.assert_array_equal(model["hyper_gradient"], v)


NETWORKS = [
    {"kind": "fully_connected"},
    {"kind": "erdos_renyi", "weights": "metropolis", "probability": [0.8, 0.9]},
    {"kind": "random_undirected"},
    {"kind": "random_directed"},
    {"kind": "ring"},
    {"kind": "regular", "degree": 2},
    {"kind": "edge_list", "edges": [[["north", "east"]], [["east", "south"], ["south", "north"]]]},
]


@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network["kind"])
def test_every_network_gives_the_bits_of_one_process(client, federation, network):
    text = spec(network=network, **SHORT)
    run = client.start(text)
    run.result()
    assert_same_bits(federation, run, text)


@pytest.mark.parametrize("form", ["reinit", "track"])
def test_mini_batches_over_several_outer_steps_give_the_bits_of_one_process(client, federation, form):
    text = spec(
        inner={"steps": 30, "learning_rate": 0.3, "batch": 20},
        hyper={"rounds": 8, "push_steps": 2, "step_size": 1.0, "form": form, "batch": 20},
        outer={"steps": 3, "step_size": 0.05},
        stretch=7,
    )
    run = client.start(text)
    metrics = run.result()
    assert metrics["peer messages"] > 0
    assert metrics["hyper-gradient norm"] > 0
    assert_same_bits(federation, run, text)


def error_against_the_exact(client, federation, **hyper):
    text = spec(
        inner={"steps": 450, "push_steps": 24, "learning_rate": 1.0},
        hyper={"step_size": 1.0, "form": "reinit", **hyper},
    )
    run = client.start(text)
    began = time.monotonic()
    run.result()
    costs = costs_of(text)
    _, exact = exact_solution(costs, [np.full(5, 0.01) for _ in costs])
    found = np.concatenate([model["hyper_gradient"] for model in models(federation, run)])
    return float(np.linalg.norm(found - exact)), time.monotonic() - began


def test_the_hyper_gradient_is_exact_through_real_processes(client, federation):
    error, _ = error_against_the_exact(client, federation, rounds=400, push_steps=24)
    assert error <= 1e-8


@pytest.mark.slow
def test_the_papers_long_run_is_exact_through_real_processes(client, federation):
    error, _ = error_against_the_exact(client, federation, rounds=500, push_steps=100)
    assert error <= 1e-8


def test_a_network_that_never_joins_its_parties_is_refused_before_the_run_starts(client):
    edges = [[["north", "east"], ["east", "north"], ["north", "south"]]]
    with pytest.raises(RequestRefused, match=r"nothing that member 2 sends can reach.*NETWORK_REFUSED"):
        client.start(spec(network={"kind": "edge_list", "edges": edges}, **SHORT))


def test_each_party_keeps_a_ranked_table_of_its_own_rows_alone(client, federation):
    text = spec(task={"kind": "influence", "classes": ["0", "1"]}, **SHORT)
    run = client.start(text)
    run.result()
    _, _, found = simulated(text)
    for party, v in zip(PARTIES, found, strict=True):
        directory = federation.directory / "state" / party / "runs" / run.run_id
        with (directory / "influence.csv").open() as file:
            ranked = list(csv.DictReader(file))
        assert [row["id"] for row in ranked] == [f"{row:04d}" for row in np.argsort(-np.abs(v), kind="stable")]
        assert float(ranked[0]["change without it"]) == pytest.approx(-v[np.abs(v).argmax()], rel=1e-6)
        assert (directory / "influence.png").read_bytes().startswith(b"\x89PNG")
    kept = [path.name for path in (federation.directory / "state" / "coordinator").rglob("*") if path.is_file()]
    assert not any("influence" in name or "model" in name for name in kept)


def personalised(client, method):
    """A short run on digits."""
    text = spec(
        task={"kind": "personalisation", "method": method, "classes": [str(c) for c in range(10)]},
        split={"lower": 0.6, "upper": 0.2, "test": 0.2},
        table="digits",
        network={"kind": "fully_connected"},
        inner={"steps": 60, "learning_rate": 0.5, "batch": 60},
        hyper={"rounds": 15, "push_steps": 2, "step_size": 0.2},
        outer={"steps": 2, "step_size": 0.5},
    )
    run = client.start(text)
    return run, run.result()


def accuracy_of(run, party, model, method):
    """A party's accuracy on its own test rows, by hand from its saved model."""
    member = PARTIES.index(party)
    pixels, labels = digits_of(member)
    parsed = parse_spec(run.message.spec_yaml)
    rows = divide(parsed.split, len(labels), stream(parsed.seed, f"hgp/{party}/split")).test

    def scores(x):
        return pixels[rows] @ x[:640].reshape(64, 10) + x[640:]

    if method == "hgp_mtl":
        parts = [np.exp(log_softmax(scores(part), axis=1)) for part in model["model"].reshape(3, 650)]
        guess = np.tensordot(softmax(model["hyper"]), np.stack(parts), axes=1)
    else:
        guess = scores(model["model"]) * softmax(model["hyper"])
    return float(np.mean(guess.argmax(axis=1) == labels[rows]))


@pytest.mark.parametrize("method", ["hgp_pl", "hgp_mtl", "sgp", "local"])
def test_a_shared_model_is_made_personal(client, federation, method):
    run, metrics = personalised(client, method)
    assert metrics["test mean accuracy"] > 0.75
    found = models(federation, run)
    accuracies = [accuracy_of(run, party, model, method) for party, model in zip(PARTIES, found, strict=True)]
    assert metrics["test mean accuracy"] == pytest.approx(np.mean(accuracies), abs=1e-6)
    assert metrics["test bottom-decile accuracy"] == pytest.approx(np.quantile(accuracies, 0.1), abs=1 / 400)
    assert (metrics["peer messages"] == 0) == (method == "local")
    personal = [tuple(model["hyper"]) for model in found]
    assert (len(set(personal)) == len(PARTIES)) == method.startswith("hgp")


def test_robust_delivery_over_links_that_lose_nothing_gives_the_same_hyper_gradient(client, federation):
    text = spec(delivery="robust", patience_seconds=20, **SHORT)
    run = client.start(text)
    run.result()
    _, _, found = simulated(text)
    for model, v in zip(models(federation, run), found, strict=True):
        np.testing.assert_allclose(model["hyper_gradient"], v, rtol=0, atol=1e-12)


def test_a_party_that_is_stopped_for_seconds_delays_a_robust_run_and_changes_no_figure(client, federation):
    inner = {"steps": 200, "learning_rate": 0.5, "milestones": [100]}
    hyper = {"rounds": 60, "push_steps": 3, "step_size": 1.0}
    text = spec(delivery="robust", patience_seconds=0.02, inner=inner, hyper=hyper, stretch=100)
    run, process = client.start(text), federation.processes["south"]
    next(event for event in run.watch() if event.state == run_pb2.RUN_STATE_RUNNING)
    process.send_signal(signal.SIGSTOP)
    time.sleep(3)
    assert run.refresh().message.state == run_pb2.RUN_STATE_RUNNING
    process.send_signal(signal.SIGCONT)
    metrics = run.result()
    assert run.refresh().message.attempt == 1
    _, _, found = simulated(text)
    for model, v in zip(models(federation, run), found, strict=True):
        np.testing.assert_allclose(model["hyper_gradient"], v, rtol=0, atol=1e-12)
    assert 0 < metrics["disagreement"] < 0.5


def test_a_killed_party_comes_back_and_the_run_ends_with_the_same_bits(client, federation):
    inner = {"steps": 200, "learning_rate": 0.2}
    text = spec(inner=inner, hyper=SHORT["hyper"], outer={"steps": 8, "step_size": 0.01}, stretch=100)
    run = client.start(text)
    for event in run.watch():
        if event.step >= 2:
            break
    federation.kill("south")
    federation.restart("south")
    run.result()
    assert run.refresh().message.attempt >= 2
    assert_same_bits(federation, run, text)


def test_a_party_whose_policy_does_not_name_hgp_refuses_it():
    with pytest.raises(ValidationError, match="algorithms"):
        Policy.model_validate({"coordinators": ["coordinator"]})
