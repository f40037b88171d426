"""Stacked clients against the roles that services run, and each baseline against what defines it."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from parley.experiments.batched_clients import (
    Clients,
    Problem,
    Steps,
    averager,
    hyper_gradient,
    posterior_weights,
    train_locally_averaged,
    train_moreau,
    train_sgp,
)
from parley.experiments.hgp_parties import Mixing, hyper_gradients, train
from parley.numerics.bilevel_costs import class_mask, dense_network
from parley.numerics.networks import NetworkKind, NetworkPlan
from parley.numerics.streams import stream
from parley.party.hgp.steps import Form, Hgp, Training

SIZE, WIDTH, CLASSES, CLIENTS = 3 * 4, 3, 4, 4
MODEL = WIDTH * CLASSES + CLASSES
COUNTS = (9, 14, 11, 20)


@pytest.fixture
def rows():
    draw = stream(0, "rows")
    return [(draw.standard_normal((n, WIDTH)), draw.integers(0, CLASSES, n)) for n in COUNTS]


def linear(x, hyper, inputs):
    """Softmax regression with a mask over classes."""
    scores = inputs @ x[:, :SIZE].reshape(-1, WIDTH, CLASSES) + x[:, None, SIZE:]
    return scores * (CLASSES * torch.softmax(hyper, dim=1))[:, None]


def problem_of(rows):
    return Problem(Clients.of(rows), linear, weight_decay=0.1, hyper_decay=0.01)


def starts():
    draw = stream(1, "start")
    return draw.standard_normal((CLIENTS, MODEL)), draw.standard_normal((CLIENTS, CLASSES))


@pytest.mark.parametrize("kind", [NetworkKind.RANDOM_DIRECTED, NetworkKind.FULLY_CONNECTED])
def test_stacked_clients_do_what_the_services_roles_do(rows, kind):
    mixing = Mixing(NetworkPlan(kind, CLIENTS, seed=3))
    costs = [
        class_mask(dense_network((WIDTH, CLASSES)), MODEL, *each, classes=CLASSES, weight_decay=0.1, hyper_decay=0.01)
        for each in rows
    ]
    x, hyper = starts()
    steps = Steps(12, 0.3, batch=None)
    milestones = tuple(int(12 * part) for part in steps.decay_at)
    wanted = train(costs, mixing, Training(12, 0.3, milestones), list(x), list(hyper))
    found = train_sgp(
        problem_of(rows), torch.from_numpy(x), torch.from_numpy(hyper), steps, averager(mixing), seed=0, k=0
    )
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-9)

    settings = Hgp(rounds=5, push_steps=3, step_size=0.2, form=Form.TRACK)
    wanted = hyper_gradients(costs, mixing, settings, list(x), list(hyper))
    found = hyper_gradient(
        problem_of(rows), torch.from_numpy(x), torch.from_numpy(hyper), averager(mixing),
        rounds=5, push_steps=3, eta=0.2, first=0,
    )  # fmt: skip
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-9)


def exact(rows, near, centre):
    """Each client's minimiser of g_i + (near/2)‖x − centre‖², by Newton steps of torch itself."""
    problem = problem_of(rows)
    hyper = torch.zeros(CLIENTS, CLASSES, dtype=torch.float64)
    x = centre.clone().expand(CLIENTS, -1).contiguous().requires_grad_()
    solver = torch.optim.LBFGS(
        [x], max_iter=500, tolerance_grad=1e-12, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def closure():
        solver.zero_grad()
        loss = (problem.inner(x, hyper) + near / 2 * ((x - centre) ** 2).sum(dim=1)).sum()
        loss.backward()
        return loss

    solver.step(closure)
    return x.detach()


def test_fedprox_with_one_local_step_is_descent_on_the_pooled_mean(rows):
    # At the centre the proximal term has no gradient, so one local step sees the mean of the clients' gradients.
    problem, zeros = problem_of(rows), torch.zeros(CLIENTS, MODEL, dtype=torch.float64)
    hyper = torch.zeros(CLIENTS, CLASSES, dtype=torch.float64)
    steps = Steps(400, 0.5, batch=None, decay_at=())
    found = train_locally_averaged(problem, zeros, hyper, steps, local_steps=1, near=5.0, seed=0, k=0)
    point = found[:1].clone().requires_grad_()
    (pooled,) = torch.autograd.grad(problem.inner(point.expand(CLIENTS, -1), hyper).mean(), point)
    assert float(pooled.abs().max()) < 1e-6
    assert torch.equal(found[0], found[-1])


def test_fedprox_holds_clients_nearer_to_the_centre_than_fedavg(rows):
    problem, zeros = problem_of(rows), torch.zeros(CLIENTS, MODEL, dtype=torch.float64)
    hyper, reached = torch.zeros(CLIENTS, CLASSES, dtype=torch.float64), []
    for near in (0.0, 1.0, 20.0):
        steps = Steps(40, 0.04, batch=None, decay_at=())
        found = train_locally_averaged(problem, zeros, hyper, steps, local_steps=40, near=near, seed=0, k=0)
        reached.append(float(found.norm()))
    assert all(one > other for one, other in pairwise(reached))


def test_pfedme_ends_where_each_personal_model_solves_its_own_problem_near_the_shared_one(rows):
    problem, zeros = problem_of(rows), torch.zeros(CLIENTS, MODEL, dtype=torch.float64)
    hyper, near = torch.zeros(CLIENTS, CLASSES, dtype=torch.float64), 0.5
    steps = Steps(600, 0.3, batch=None, decay_at=())
    shared, personal = train_moreau(
        problem, zeros, zeros, hyper, steps, near=near, inner_steps=5, shared_rate=1.0, seed=0, k=0
    )
    np.testing.assert_allclose(personal, exact(rows, near, shared[:1]), atol=1e-5)
    np.testing.assert_allclose(shared[0], personal.mean(dim=0), atol=1e-5)  # stationary in w


def test_fedavg_plus_tunes_the_shared_model_to_each_clients_own_rows(rows):
    # Without a network SGP is each client's own descent: from the shared model it ends at the client's own minimum.
    problem, shared = problem_of(rows), torch.zeros(CLIENTS, MODEL, dtype=torch.float64)
    hyper = torch.zeros(CLIENTS, CLASSES, dtype=torch.float64)
    steps = Steps(600, 0.5, batch=None, decay_at=())
    found = train_sgp(problem, shared, hyper, steps, lambda _: None, seed=0, k=0)
    np.testing.assert_allclose(found, exact(rows, 0.0, shared[:1]), atol=1e-5)


def test_fedems_weights_are_the_mean_posteriors_and_never_lower_the_likelihood(rows):
    problem = problem_of(rows)
    draw = stream(2, "components")
    scores = torch.from_numpy(draw.standard_normal((CLIENTS, 2, max(COUNTS), CLASSES))).log_softmax(dim=3)
    x, hyper = torch.zeros(CLIENTS, MODEL), torch.zeros(CLIENTS, 2, dtype=torch.float64)
    found = posterior_weights(problem, x, hyper, lambda _x, _features: scores)
    for i, (_, labels) in enumerate(rows):
        given = np.exp(scores[i].numpy())[:, np.arange(len(labels)), labels]
        wanted = (given / given.sum(axis=0)).mean(axis=1)
        np.testing.assert_allclose(np.exp(found[i].numpy()), wanted, rtol=1e-9)
        assert np.log(wanted @ given).sum() >= np.log(given.mean(axis=0)).sum()


def test_a_batch_holds_rows_of_its_own_client_only(rows):
    clients = Clients.of(rows)
    features, labels = clients.batch(50, stream(0, "batch"))
    for i, (own, given) in enumerate(rows):
        for row, label in zip(features[i].numpy(), labels[i].numpy(), strict=True):
            (at,) = np.flatnonzero((own == row).all(axis=1))
            assert given[at] == label
