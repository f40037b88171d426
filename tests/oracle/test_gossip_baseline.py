"""GBDSBO's ingredients against autograd and a dense solve, and that it learns without noise."""

import numpy as np
import torch

from parley.experiments.gossip_baseline import Gbdsbo, estimates, neumann, run_gbdsbo
from parley.experiments.ldp_dsbo_synthetic import PRINTED, WEIGHTS, make_task

SIZE = 6


def test_estimates_are_those_of_autograd():
    task = make_task(0, size=SIZE, batch_size=4, bounds=PRINTED, test_rows=10)
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(10, SIZE)), 0.1 * draw.normal(size=(10, SIZE))
    whole = Gbdsbo(0.01, batch_size=len(task.agents[0].lower.labels))  # a batch of all rows, in some order
    found = estimates(task.agents, PRINTED, whole, x, y, 0)
    agent, lam, omega = task.agents[3], torch.as_tensor(x[3]), torch.as_tensor(y[3])

    def loss(records, w):
        margin = torch.as_tensor(records.labels) * (torch.as_tensor(records.features) @ w)
        return PRINTED.loss_scale * torch.nn.functional.softplus(-margin).mean()

    def lower(lam, w):
        return loss(agent.lower, w) + 0.5 * (torch.exp(lam) * w * w).sum()

    ((_, cross), (_, hessian)) = torch.autograd.functional.hessian(lower, (lam, omega))
    gradient = torch.autograd.functional.jacobian(lambda w: lower(lam, w), omega)
    upper = torch.autograd.functional.jacobian(lambda w: loss(agent.upper, w), omega)
    for ours, exact in zip(
        (found.lower_gradient, found.upper_gradient, found.jacobian, found.hessian),
        (gradient, upper, cross, hessian),
        strict=True,
    ):
        np.testing.assert_allclose(ours[3], exact.numpy(), rtol=1e-9, atol=1e-9)


def test_the_neumann_series_applies_the_inverse():
    root = np.random.default_rng(1).normal(size=(2, SIZE, SIZE)) / 3
    hessian = root @ root.transpose(0, 2, 1) + 0.5 * np.eye(SIZE)
    h = np.random.default_rng(2).normal(size=(2, SIZE))
    exact = np.linalg.solve(hessian, h[..., None])[..., 0]
    np.testing.assert_allclose(neumann(hessian, h, 0.5, 500), exact, rtol=0, atol=1e-10)


def test_it_learns_where_no_noise_is_added():
    task = make_task(0, size=SIZE, batch_size=20, bounds=PRINTED, test_rows=2000)
    models = run_gbdsbo(task.agents, WEIGHTS, PRINTED, SIZE, Gbdsbo(0.003, batch_size=20, noise=False))
    assert task.accuracies(models).mean() > 0.95
