"""HGP against the closed form: dense Hessians on the pooled problem, which no party could compute."""

from functools import cache

import numpy as np
import pytest
import torch

from parley.experiments.hgp_error import exact_solution
from parley.experiments.hgp_parties import Mixing, hyper_gradients, train
from parley.experiments.synthetic_clients import synthetic_clients
from parley.numerics.bilevel_costs import regularised_logistic
from parley.numerics.networks import NetworkKind, NetworkPlan
from parley.numerics.streams import stream
from parley.party.hgp.steps import Form, Hgp, Training

CLIENTS = synthetic_clients(0)
COSTS = [regularised_logistic(c.features, c.labels, c.validation_features, c.validation_labels) for c in CLIENTS]
HYPERS = [np.full(5, 0.01) for _ in CLIENTS]


def outer_value(cost, x, hyper):
    return float(cost.outer(torch.as_tensor(x), torch.as_tensor(hyper)))


def solve(hypers, start=None, steps=8):
    """Newton's method on the mean of all inner costs, by dense autograd; each step squares the error."""

    def inner(x):
        return sum(cost.inner(x, torch.as_tensor(h), None) for cost, h in zip(COSTS, hypers, strict=True))

    x = torch.zeros(5, dtype=torch.float64) if start is None else torch.as_tensor(start)
    for _ in range(steps):
        gradient = torch.autograd.functional.jacobian(inner, x)
        x = x - torch.linalg.solve(torch.autograd.functional.hessian(inner, x), gradient)
    return x.numpy()


@cache
def solution():
    return solve(HYPERS)


@cache
def exact():
    """Central differences of Σ_k f_k(x(λ)) with respect to every λ_i: no formula of the paper is used."""
    shift = 1e-5
    result = []
    for i in range(len(COSTS)):
        for j in range(5):
            values = []
            for sign in (1.0, -1.0):
                moved = [h.copy() for h in HYPERS]
                moved[i][j] += sign * shift
                x = solve(moved, solution(), 3)
                values.append(sum(outer_value(cost, x, h) for cost, h in zip(COSTS, moved, strict=True)))
            result.append((values[0] - values[1]) / (2 * shift))
    return np.array(result)


@cache
def errors(rounds, push_steps, *, form=Form.REINIT, networks=2, batch_size=None):
    """Return ‖v⁽ᵐ⁾ − exact‖ for m = 1 … rounds, the mean over networks."""
    curves = np.zeros((networks, rounds))
    for seed in range(networks):
        plan = NetworkPlan(NetworkKind.RANDOM_DIRECTED, size=3, seed=seed)

        def watch(m, v, curve=curves[seed]):
            curve[m - 1] = np.linalg.norm(np.concatenate(v) - exact())

        settings = Hgp(rounds, push_steps, 1.0, form, batch_size, seed=seed)
        marks = range(1, rounds + 1)
        hyper_gradients(COSTS, Mixing(plan), settings, [solution()] * 3, HYPERS, marks=marks, watch=watch)
    return curves.mean(axis=0)


def test_with_few_push_steps_the_error_stays_however_many_rounds_there_are():
    one, two = errors(200, 1), errors(200, 2)
    assert 0.05 < one[199] < 0.5
    assert one[199] == pytest.approx(one[99], rel=0.1)
    assert 0.01 < two[199] < 0.15


def test_the_error_falls_with_the_push_steps_and_then_with_the_rounds():
    assert 1e-4 < errors(200, 5)[199] < 2e-2
    assert errors(200, 10)[199] < 3e-4
    many = errors(400, 30, networks=1)
    assert 3e-4 < many[99] < 1e-2
    assert many[199] < 1e-4


def test_with_many_push_steps_and_rounds_the_hyper_gradient_of_the_sum_is_exact():
    # The oracle itself is a finite difference, good to about 1e-9.
    assert np.linalg.norm(exact()) > 0.5
    assert errors(400, 30, networks=1)[399] < 1e-7


def test_tracking_is_several_times_better_than_reinitialising_at_small_s():
    assert errors(200, 1, form=Form.TRACK)[199] < 0.5 * errors(200, 1)[199]
    assert errors(200, 5, form=Form.TRACK)[199] < 0.5 * errors(200, 5)[199]


def test_mini_batches_leave_a_floor_that_more_push_steps_do_not_lower():
    floors = [errors(100, push_steps, batch_size=20, networks=3)[99] for push_steps in (5, 15)]
    assert all(5e-3 < floor < 0.3 for floor in floors)


def test_a_doubly_stochastic_undirected_network_gives_the_same_hyper_gradient():
    plan = NetworkPlan(NetworkKind.ERDOS_RENYI, size=3, seed=1)
    v = hyper_gradients(COSTS, Mixing(plan, doubly_stochastic=True), Hgp(260, 40, 1.0), [solution()] * 3, HYPERS)
    np.testing.assert_allclose(np.concatenate(v), exact(), atol=1e-6)


def test_sgp_with_a_decaying_step_finds_the_inner_solution_over_a_directed_network():
    plan = NetworkPlan(NetworkKind.RANDOM_DIRECTED, size=3, seed=0)
    settings = Training(steps=3000, learning_rate=1.0, milestones=(500, 1000, 1500), decay=0.3)
    start = [stream(0, "start", i).normal(size=5) for i in range(3)]
    models = train(COSTS, Mixing(plan), settings, start, HYPERS)
    for model in models:
        assert np.linalg.norm(model - solution()) < 0.03


def test_hyper_parameter_optimisation_over_the_network_lowers_the_total_loss_as_exact_gradients_do():
    def total(hypers):
        x = solve(hypers)
        return sum(outer_value(cost, x, h) for cost, h in zip(COSTS, hypers, strict=True))

    mixing = Mixing(NetworkPlan(NetworkKind.RANDOM_DIRECTED, size=3, seed=0))
    settings = Hgp(100, 5, 1.0, Form.TRACK)
    pushed, exact = HYPERS, HYPERS
    for k in range(5):
        v = hyper_gradients(COSTS, mixing, settings, [solve(pushed)] * 3, pushed, first_step=1000 * k)
        pushed = [np.maximum(h - 0.02 * own, 0.0) for h, own in zip(pushed, v, strict=True)]
        d = exact_solution(COSTS, exact)[1].reshape(3, 5)
        exact = [np.maximum(h - 0.02 * own, 0.0) for h, own in zip(exact, d, strict=True)]
    assert total(pushed) < total(HYPERS) - 1e-3
    assert abs(total(pushed) - total(exact)) < 0.02 * (total(HYPERS) - total(exact))
    assert all((h >= 0).all() for h in pushed)


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
