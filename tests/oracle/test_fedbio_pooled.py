"""The averaged state of the roles against the same computation written naively, in one process, with dense Hessians."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA

from parley.experiments.fedbio_parties import Given, from_zero, train
from parley.numerics.storm import Schedule
from parley.party.fedbio import steps as party
from parley.party.fedbio.hyper_parameters import HyperParameters
from parley.party.fedbio.objectives import DataCleaning, Quadratic
from tests.oracle.pooled_fedbio import PooledCleaning, PooledTuning

M, ROWS, CLASSES = 3, 20, 3
NAMES = tuple(f"party-{m}" for m in range(M))
SETTINGS = party.Settings(
    eta=50.0, gamma=0.5, tau=0.3, local_steps=1, upper="private", lower_batch=ROWS, upper_batch=ROWS
)


def digit_clients() -> list[DataCleaning]:
    digits, labels = load_digits(n_class=CLASSES, return_X_y=True)
    columns = PCA(5, svd_solver="full").fit_transform(digits / 16.0)
    split = [slice(m * 2 * ROWS, (m + 1) * 2 * ROWS) for m in range(M)]
    return [
        DataCleaning(
            columns[s][:ROWS],
            labels[s][:ROWS].astype(np.int64),
            columns[s][ROWS:],
            labels[s][ROWS:].astype(np.int64),
            CLASSES,
            ridge=0.05,
        )
        for s in split
    ]


def federated(clients, settings, rounds):
    return train(from_zero(clients), settings, rounds, seed=11)


def test_rounds_of_one_full_step_equal_gradient_steps_on_the_pooled_rows():
    clients = digit_clients()
    pooled = PooledCleaning(
        np.concatenate([client.features for client in clients]),
        np.concatenate([client.labels for client in clients]),
        np.concatenate([client.validation_features for client in clients]),
        np.concatenate([client.validation_labels for client in clients]),
        CLASSES,
        ridge=0.05,
    )
    x, y, u = pooled.steps(6, SETTINGS.eta, SETTINGS.gamma, SETTINGS.tau, M)
    outcome = federated(clients, SETTINGS, 6)
    np.testing.assert_allclose(outcome.averages.variables, np.concatenate([y, u]), atol=1e-6)
    weights = np.concatenate([state.variables.x for state in outcome.states])
    np.testing.assert_allclose(weights, x, atol=1e-6)
    assert np.abs(weights).max() > 0.05


def tuned(clients: list[DataCleaning], kind: str = "columns") -> list[Given]:
    """The same rows with shared coefficients that begin at 0.1."""
    objectives = [
        HyperParameters(c.features, c.labels, c.validation_features, c.validation_labels, CLASSES, kind, lowest=0.05)
        for c in clients
    ]
    return [Given(o, np.full(o.upper_size, np.log(1 / 9)), np.zeros(o.lower_size)) for o in objectives]


@pytest.mark.parametrize("accelerated", [False, True])
def test_shared_coefficients_move_as_on_the_pooled_rows(accelerated):
    clients = digit_clients()
    rows = [(c.features, c.labels, c.validation_features, c.validation_labels) for c in clients]
    features, labels, checked, checked_labels = (np.concatenate(part) for part in zip(*rows, strict=True))
    pooled = PooledTuning(features, labels, checked, checked_labels, CLASSES, ridge=0.05)
    # With all rows in every batch and c·α² = 1, momenta are plain directions: FedBiOAcc takes FedBiO's steps.
    settings = replace(SETTINGS, eta=5.0, upper="shared", bounded=True, accelerated=accelerated)
    tasks = tuned(clients)
    x, y, u = pooled.steps_from(tasks[0].x, 8, settings.eta, settings.gamma, settings.tau)
    outcome = train(tasks, settings, 8, seed=11)
    np.testing.assert_allclose(outcome.averages.variables, np.concatenate([x, y, u]), atol=1e-6)
    assert np.abs(x - tasks[0].x).max() > 0.01


@pytest.mark.parametrize("kind", ["columns", "classes", "one"])
def test_u_leads_shared_coefficients_along_the_exact_hyper_gradient(kind):
    """Where y and u have settled, the average direction is the implicit gradient of the pooled validation loss."""
    tasks = tuned(digit_clients(), kind)
    still = replace(SETTINGS, eta=1e-12, gamma=2.0, tau=2.0, upper="shared")
    outcome = train(tasks, still, 1500, seed=11)
    x, y, u = np.split(outcome.averages.variables, np.cumsum([tasks[0].x.size, tasks[0].y.size]))
    rows = np.arange(ROWS)
    members = [party.Party(still, task.objective) for task in tasks]
    direction = np.mean(
        [m.directions(party.Blocks(x, y, u), 0, 0, party.Randomness(11, "any")).x for m in members], axis=0
    )
    identity = np.eye(y.size)
    objectives = [task.objective for task in tasks]
    hessian = np.mean([[o.hessian_product(x, y, e, rows) for e in identity] for o in objectives], axis=0)
    cross = np.mean([[o.lower_terms(x, y, e, rows).cross for e in identity] for o in objectives], axis=0)
    above = np.mean([o.upper_gradients(x, y, rows).y for o in objectives], axis=0)
    exact = -cross.T @ np.linalg.solve(hessian, above)
    assert np.linalg.norm(exact) > 1e-4
    np.testing.assert_allclose(direction, exact, rtol=1e-5, atol=1e-9)


def test_tuned_coefficients_tell_columns_of_noise_from_columns_that_matter():
    digits, labels = load_digits(n_class=CLASSES, return_X_y=True)
    columns = PCA(5, svd_solver="full").fit_transform(digits / 16.0)
    noise = np.random.default_rng(2).standard_normal((len(labels), 5))
    rows, labels = np.hstack([columns, noise]), labels.astype(np.int64)
    parts = [slice(m * 2 * ROWS, (m + 1) * 2 * ROWS) for m in range(M)]
    objectives = [
        HyperParameters(rows[s][:ROWS], labels[s][:ROWS], rows[s][ROWS:], labels[s][ROWS:], CLASSES) for s in parts
    ]
    tasks = [Given(o, np.full(o.upper_size, np.log(0.01 / 0.99)), np.zeros(o.lower_size)) for o in objectives]
    settings = party.Settings(eta=10.0, gamma=0.5, tau=0.5, local_steps=5, bounded=True, radius=100.0)
    before, after = (train(tasks, replace(settings, eta=eta), 60, seed=11).averages.variables for eta in (1e-9, 10.0))
    coefficients = objectives[0].values(after[: rows.shape[1]])
    assert np.median(coefficients[5:]) > 3 * np.median(coefficients[:5])

    def loss(variables):
        x, y, _ = np.split(variables, np.cumsum([tasks[0].x.size, tasks[0].y.size]))
        return sum(o.measure(x, y).loss for o in objectives)

    assert loss(after) < 0.8 * loss(before)


def shared_clients() -> list[Quadratic]:
    g = np.random.default_rng(8)
    clients = []
    for _ in range(M):
        root = g.standard_normal((4, 4))
        clients.append(
            Quadratic(
                H=root @ root.T / 4 + np.eye(4),
                B=g.standard_normal((4, 3)),
                c=g.standard_normal((10, 4)),
                a=g.standard_normal(4),
                s=g.standard_normal(3),
                ridge=0.1,
            )
        )
    return clients


def algorithm_1(clients, settings, rounds):
    """FedBiOAcc as its box prints it, with arrays indexed by party and one clock t."""
    sources = [party.Randomness(11, name) for name in NAMES]

    def evaluate(m, point, k, draw):
        q = clients[m]
        x, y, u = np.split(point, [3, 7])
        c = q.c[sources[m].rows("lower", k, draw, 10, settings.lower_batch)].mean(axis=0)
        nu = q.ridge * (x - q.s) + q.B.T @ u
        return np.concatenate([nu, q.H @ y - q.B @ x - c, q.H @ u - (y - q.a)])

    step = np.repeat([settings.eta, settings.gamma, settings.tau], [3, 4, 4])
    point = [np.zeros(11) for _ in range(M)]
    momentum = [evaluate(m, point[m], 0, 0) for m in range(M)]
    for t in range(rounds * settings.local_steps):
        alpha = settings.schedule.step(t)
        before = point
        point = [p - alpha * step * d for p, d in zip(point, momentum, strict=True)]
        k, draw = divmod(t, settings.local_steps)
        if draw == settings.local_steps - 1:
            point = [np.mean(point, axis=0)] * M
        momentum = [
            evaluate(m, point[m], k, draw + 1)
            + (1 - 0.5 * alpha**2) * (momentum[m] - evaluate(m, before[m], k, draw + 1))
            for m in range(M)
        ]
        if draw == settings.local_steps - 1:
            momentum = [np.mean(momentum, axis=0)] * M
    return point[0], momentum[0]


@pytest.mark.parametrize("local_steps", [1, 4])
def test_fedbioacc_rounds_equal_the_box_of_algorithm_1_with_the_same_batches(local_steps):
    clients = shared_clients()
    settings = party.Settings(
        eta=0.05,
        gamma=0.1,
        tau=0.1,
        local_steps=local_steps,
        accelerated=True,
        schedule=Schedule(2.0, 8.0),
        c_nu=0.5,
        c_omega=0.5,
        c_u=0.5,
        lower_batch=4,
    )
    point, momentum = algorithm_1(clients, settings, 7)
    outcome = federated(clients, settings, 7)
    np.testing.assert_allclose(outcome.averages.variables, point, atol=1e-6)
    np.testing.assert_allclose(outcome.averages.momenta, momentum, atol=1e-6)


def test_sampling_all_parties_by_number_is_the_same_run_as_asking_everyone():
    clients = shared_clients()
    settings = party.Settings(eta=0.05, gamma=0.1, tau=0.1, local_steps=3, accelerated=True, lower_batch=4)
    everyone = train(from_zero(clients), settings, 5, seed=11)
    counted = train(from_zero(clients), settings, 5, seed=11, sampled=M)
    assert everyone.averages.variables.tobytes() == counted.averages.variables.tobytes()


def test_a_run_of_sampled_parties_still_finds_the_solution_of_like_clients():
    client = shared_clients()[0]
    one_sample = replace(client, c=client.c[:1])
    settings = party.Settings(eta=0.05, gamma=0.1, tau=0.1, local_steps=2, accelerated=True)
    outcome = train(from_zero([one_sample] * M), settings, 1500, seed=11, sampled=1)
    x, y = outcome.averages.variables[:3], outcome.averages.variables[3:7]
    hyper = one_sample.ridge * (x - one_sample.s) + one_sample.B.T @ np.linalg.solve(one_sample.H, y - one_sample.a)
    assert np.linalg.norm(hyper) < 1e-5
