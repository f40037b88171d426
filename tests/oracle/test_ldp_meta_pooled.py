"""Meta-learning by LDP-DSBO against the same computation in autograd on pooled data, and against its own bounds."""

import numpy as np
import pytest
import torch

from parley.experiments import ldp_dsbo_agents
from parley.experiments.ldp_dsbo_agents import Federation
from parley.numerics.networks import NetworkKind, NetworkPlan, gossip_weights, links
from parley.numerics.streams import stream
from parley.party.ldp_dsbo.meta_learning import MetaBounds, admit, directions, initial_embedding, recursion
from parley.party.ldp_dsbo.objectives import InvalidBounds
from parley.party.ldp_dsbo.steps import Agent, LdpDsbo, NoisedState, first_state, predicted, privacy_plan, update
from parley.privacy.ldp_accounting import Decay, Schedules, laplace_scales, losses
from parley.privacy.noise import KeyedNoise

BOUNDS = MetaBounds(
    features=5, tasks=3, embedding=4, row_l1=2.0, row_max=0.8, y_max=3.0, z_max=2.0, weight_decay=0.1, loss_scale=1.5
)
AGENTS, BATCH, STEPS = 4, 6, 12
WEIGHTS = gossip_weights(links(NetworkPlan(NetworkKind.RING, size=AGENTS), 0), 0.3)
STEP_SIZES = Schedules(Decay(0.3, 0.6), Decay(0.8, 0.55), Decay(0.5, 0.5))


def records(member, kind, rows=STEPS * BATCH, bounds=BOUNDS):
    draw = stream(1, f"meta.{kind}", k=member)
    features, tasks = draw.normal(size=(rows, bounds.features)), draw.integers(0, bounds.tasks, size=rows)
    return admit(features, tasks, np.where(features[:, 0] * (tasks - 1.2) > 0, 1.0, -1.0), bounds)


def mean_loss(part, x, y):
    """ρ·mean L(b tanh(Wᵀa)ᵀy_q), for autograd."""
    h = torch.tanh(torch.as_tensor(part.features) @ x.reshape(BOUNDS.features, BOUNDS.embedding))
    m = (h * y.reshape(BOUNDS.tasks, BOUNDS.embedding)[torch.as_tensor(part.tasks)]).sum(dim=1)
    return BOUNDS.loss_scale * torch.nn.functional.softplus(-torch.as_tensor(part.labels) * m).mean()


def autograd_directions(lower, upper, x, y, z):
    """u, ∇_y g and Hz − ∇_y f from the two losses as they are written in the paper."""
    x, y, z = (torch.tensor(each, requires_grad=True) for each in (x, y, z))
    g = mean_loss(lower, x, y) + 0.5 * BOUNDS.weight_decay * (y * y).sum()
    (by_y,) = torch.autograd.grad(g, y, create_graph=True)
    hessian_z, cross = torch.autograd.grad(by_y @ z.detach(), (y, x))
    f_x, f_y = torch.autograd.grad(mean_loss(upper, x, y), (x, y))
    return (f_x - cross).numpy(), by_y.detach().numpy(), (hessian_z - f_y).numpy()


def test_directions_are_those_of_autograd():
    draw = np.random.default_rng(0)
    x, y, z = draw.normal(size=20), draw.normal(size=12), draw.normal(size=12)
    lower, upper = records(0, "lower"), records(0, "upper")
    found = directions(lower, upper, BOUNDS, x, y, z)
    for name, expected in zip("xyz", autograd_directions(lower, upper, x, y, z), strict=True):
        np.testing.assert_allclose(getattr(found, name), expected, rtol=0, atol=1e-12)


def test_a_run_is_the_same_computation_on_pooled_data_in_autograd():
    parts = [(records(i, "lower"), records(i, "upper")) for i in range(AGENTS)]
    settings = LdpDsbo(STEP_SIZES, None, BOUNDS, BATCH, seed=3)
    federation = Federation(
        [Agent(i, *part) for i, part in enumerate(parts)],
        [settings] * AGENTS,
        [KeyedNoise(bytes([i]) * 32) for i in range(AGENTS)],
        WEIGHTS,
        0,
    )
    found = ldp_dsbo_agents.train(federation, STEPS)
    values = [np.tile(initial_embedding(BOUNDS, 3), (AGENTS, 1)), np.zeros((AGENTS, 12)), np.zeros((AGENTS, 12))]
    limits = (BOUNDS.x_max, BOUNDS.y_max, BOUNDS.z_max)
    for t in range(STEPS):
        seen = slice(0, (t + 1) * BATCH)
        slopes = [
            autograd_directions(lower.take(seen), upper.take(seen), *(value[i] for value in values))
            for i, (lower, upper) in enumerate(parts)
        ]
        values = [
            np.clip(value + WEIGHTS @ value - lam * np.stack([slope[v] for slope in slopes]), -limit, limit)
            for v, (value, lam, limit) in enumerate(zip(values, STEP_SIZES.at(t), limits, strict=True))
        ]
    for i, state in enumerate(found):
        for name, value in zip("xyz", values, strict=True):
            np.testing.assert_allclose(getattr(state, name), value[i], rtol=0, atol=1e-6)


@pytest.mark.parametrize("seed", range(20))
def test_no_record_turns_a_direction_faster_than_the_recursion_allows(seed):
    """Far and near pairs of points; one record of each kind, whose terms are the averages then."""
    draw = np.random.default_rng(seed)
    bounds = recursion(BOUNDS)
    lower, upper = records(seed, "lower", rows=1), records(seed, "upper", rows=1)
    limits = (BOUNDS.x_max, BOUNDS.y_max, BOUNDS.z_max)
    for scale in (1e-4, 0.1, 3.0):
        sizes = (BOUNDS.x_size, BOUNDS.y_size, BOUNDS.y_size)
        ends = [draw.uniform(-1, 1, size) * limit for size, limit in zip(sizes, limits, strict=True)]
        near = [
            np.clip(end + scale * draw.normal(size=end.shape) * (draw.random(end.shape) < 0.4), -limit, limit)
            for end, limit in zip(ends, limits, strict=True)
        ]
        one, other = directions(lower, upper, BOUNDS, *ends), directions(lower, upper, BOUNDS, *near)
        apart = np.array([np.abs(a - b).sum() for a, b in zip(ends, near, strict=True)])
        moved = np.array([np.abs(getattr(one, name) - getattr(other, name)).sum() for name in "xyz"])
        assert (moved <= (bounds.data + bounds.shared) @ apart + 1e-12).all()
        assert (np.array([np.abs(getattr(one, name)).sum() for name in "xyz"]) <= bounds.largest).all()


@pytest.mark.parametrize("seed", range(4))
def test_one_changed_record_never_costs_more_than_was_accounted_for(seed):
    bounds = MetaBounds(features=5, tasks=3, embedding=2, row_max=0.5, y_max=2.0, z_max=1.0, weight_decay=0.05)
    settings = LdpDsbo(
        Schedules(Decay(0.2, 0.9), Decay(1.0, 0.85), Decay(0.3, 0.8)), laplace_scales(1.0, 0.7, 0.7, 0.6), bounds, BATCH
    )
    accounted = losses(privacy_plan(settings, 0, -0.6), STEPS)
    parts = [records(seed, kind, bounds=bounds) for kind in ("lower", "upper")]
    changed = []
    for part in parts:
        features, labels = part.features.copy(), part.labels.copy()
        features[0], labels[0] = -features[0][::-1], -labels[0]
        changed.append(admit(features, part.tasks, labels, bounds))
    pair, states = (Agent(0, *parts), Agent(0, *changed)), [first_state(settings, 0)] * 2
    for t in range(STEPS):
        draw = stream(seed, "meta.messages", 0, t)
        sizes = (bounds.x_size, bounds.y_size, bounds.y_size)
        received = {j: NoisedState(*(draw.laplace(size=size) / (t + 1) for size in sizes), step=t) for j in (1, 2)}
        states = [
            update(agent, settings, {1: 0.3, 2: 0.3}, state, received)
            for agent, state in zip(pair, states, strict=True)
        ]
        apart = np.array([np.abs(getattr(states[0], name) - getattr(states[1], name)).sum() for name in "xyz"])
        assert (apart / settings.noise_scales.at(t + 1) <= accounted[t] + 1e-12).all()
    assert apart.sum() > 0


def test_agents_learn_tasks_that_only_the_embedding_can_tell_apart():
    bounds = MetaBounds(
        features=8, tasks=4, embedding=3, row_l1=4.0, row_max=2.0, weight_decay=0.02, x_max=20.0, loss_scale=4.0
    )
    rule = np.random.default_rng(5).normal(size=(8, 2))
    heads = np.random.default_rng(6).normal(size=(4, 2))

    def drawn(member, kind, rows):
        draw = stream(2, f"meta.learn.{kind}", k=member)
        features, tasks = draw.normal(size=(rows, 8)), draw.integers(0, 4, size=rows)
        return admit(features, tasks, np.sign((features @ rule * heads[tasks]).sum(axis=1)), bounds)

    settings = LdpDsbo(Schedules(Decay(0.6, 0.3), Decay(1.0, 0.2), Decay(0.5, 0.2)), None, bounds, 40, seed=1)
    agents = [Agent(i, drawn(i, "lower", 4000), drawn(i, "upper", 4000)) for i in range(AGENTS)]
    keys = [KeyedNoise(bytes([i]) * 32) for i in range(AGENTS)]
    states = ldp_dsbo_agents.train(Federation(agents, [settings] * AGENTS, keys, WEIGHTS, 0), 100)
    test = drawn(0, "test", 4000)
    for state in states:
        assert np.mean(predicted(bounds, test, state) == test.labels) > 0.85


def test_rows_of_a_task_that_is_not_there_are_refused():
    with pytest.raises(InvalidBounds, match="from 0 to 2"):
        admit(np.zeros((1, 5)), np.array([3]), np.array([1.0]), BOUNDS)
