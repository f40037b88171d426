"""HGP against the closed form: dense Hessians on the pooled problem, which no party could compute."""

import numpy as np
import pytest
import torch

from experiments.synthetic_clients import synthetic_clients
from numerics.bilevel_costs import outer_value, regularised_logistic
from numerics.networks import NetworkKind, NetworkPlan
from numerics.streams import stream
from parley.simulator import Mixing, hyper_gradients, train
from party.hgp import Form, Hgp, Training

CLIENTS = synthetic_clients(0)
COSTS = [regularised_logistic(c.features, c.labels, c.validation_features, c.validation_labels) for c in CLIENTS]
HYPERS = [np.full(5, 0.01) for _ in CLIENTS]


def solve(hypers):
    """Newton's method on the mean of all inner costs, by dense autograd."""

    def inner(x):
        return sum(cost.inner(x, torch.as_tensor(h), None) for cost, h in zip(COSTS, hypers, strict=True))

    x = torch.zeros(5, dtype=torch.float64)
    for _ in range(20):
        gradient = torch.autograd.functional.jacobian(inner, x)
        x = x - torch.linalg.solve(torch.autograd.functional.hessian(inner, x), gradient)
    return x.numpy()


def exact_hyper_gradient():
    """Central differences of Σ_k f_k(x(λ)) with respect to every λ_i: no formula of the paper is used."""
    shift = 1e-5
    result = []
    for i in range(len(COSTS)):
        for j in range(5):
            values = []
            for sign in (1.0, -1.0):
                moved = [h.copy() for h in HYPERS]
                moved[i][j] += sign * shift
                x = solve(moved)
                values.append(sum(outer_value(cost, x, h) for cost, h in zip(COSTS, moved, strict=True)))
            result.append((values[0] - values[1]) / (2 * shift))
    return np.array(result)


SOLUTION = solve(HYPERS)
EXACT = exact_hyper_gradient()


def error(rounds, push_steps, *, form=Form.REINIT, networks=3, batch_size=None):
    errors = []
    for seed in range(networks):
        plan = NetworkPlan(NetworkKind.RANDOM_DIRECTED, size=3, seed=seed)
        settings = Hgp(rounds, push_steps, 1.0, form, batch_size, seed=seed)
        v = hyper_gradients(COSTS, Mixing(plan), settings, [SOLUTION] * 3, HYPERS)
        errors.append(np.linalg.norm(np.concatenate(v) - EXACT))
    return float(np.mean(errors))


def test_with_few_push_steps_the_error_stays_however_many_rounds_there_are():
    assert 0.05 < error(100, 1) < 0.5
    assert 0.05 < error(200, 1) < 0.5
    assert 0.01 < error(200, 2) < 0.15


def test_the_error_falls_with_the_push_steps_and_then_with_the_rounds():
    assert 1e-4 < error(200, 5) < 2e-2
    assert error(200, 10) < 3e-4
    assert 3e-4 < error(100, 100, networks=1) < 1e-2
    assert error(200, 100, networks=1) < 1e-4


def test_with_many_push_steps_and_rounds_the_hyper_gradient_of_the_sum_is_exact():
    # The oracle itself is a finite difference, good to about 1e-9.
    assert np.linalg.norm(EXACT) > 0.5
    assert error(500, 40, networks=1) < 1e-7


def test_tracking_is_several_times_better_than_reinitialising_at_small_s():
    assert error(200, 1, form=Form.TRACK) < 0.5 * error(200, 1)
    assert error(200, 5, form=Form.TRACK) < 0.5 * error(200, 5)


def test_mini_batches_leave_a_floor_that_more_push_steps_do_not_lower():
    floors = [error(200, push_steps, batch_size=20, networks=4) for push_steps in (5, 20)]
    assert all(5e-3 < floor < 0.3 for floor in floors)


def test_a_doubly_stochastic_undirected_network_gives_the_same_hyper_gradient():
    plan = NetworkPlan(NetworkKind.ERDOS_RENYI, size=3, seed=1)
    v = hyper_gradients(COSTS, Mixing(plan, doubly_stochastic=True), Hgp(400, 40, 1.0), [SOLUTION] * 3, HYPERS)
    np.testing.assert_allclose(np.concatenate(v), EXACT, atol=1e-6)


def test_sgp_with_a_decaying_step_finds_the_inner_solution_over_a_directed_network():
    plan = NetworkPlan(NetworkKind.RANDOM_DIRECTED, size=3, seed=0)
    settings = Training(steps=3000, learning_rate=1.0, milestones=(500, 1000, 1500), decay=0.3)
    start = [stream(0, "start", i).normal(size=5) for i in range(3)]
    models = train(COSTS, Mixing(plan), settings, start, HYPERS)
    for model in models:
        assert np.linalg.norm(model - SOLUTION) < 0.03


@pytest.mark.slow
def test_a_hundred_parties_reach_the_exact_hyper_gradient():
    clients = synthetic_clients(0, clients=100)
    costs = [regularised_logistic(c.features, c.labels, c.validation_features, c.validation_labels) for c in clients]
    hypers = [np.full(5, 0.01)] * 100
    plan = NetworkPlan(NetworkKind.RANDOM_DIRECTED, size=100, seed=0)
    x = np.full(5, 0.3)
    v = hyper_gradients(costs, Mixing(plan), Hgp(150, 10, 1.0), [x] * 100, hypers)

    point, hyper = torch.as_tensor(x), torch.as_tensor(hypers[0])
    hessian = torch.autograd.functional.hessian(lambda z: sum(c.inner(z, hyper, None) for c in costs), point)
    slope = torch.autograd.functional.jacobian(lambda z: sum(c.outer(z, hyper) for c in costs), point)
    exact = -x * torch.linalg.solve(hessian, slope).numpy()  # ∂²_{xλ} g = diag(x)
    for own in v:
        np.testing.assert_allclose(own, exact, atol=1e-3 * np.linalg.norm(exact))
