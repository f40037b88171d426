"""Softmax regression by LDP-DSBO against the same computation in autograd on pooled data, and its own bounds."""

import math

import numpy as np
import pytest
import torch

from parley.experiments import ldp_dsbo_agents
from parley.experiments.ldp_dsbo_agents import Federation
from parley.numerics.networks import NetworkKind, NetworkPlan, gossip_weights, links
from parley.numerics.streams import stream
from parley.party.ldp_dsbo.objectives import Bounds, InvalidBounds
from parley.party.ldp_dsbo.softmax import SoftmaxBounds, SoftmaxRecords, admit, directions, mean_loss, recursion
from parley.party.ldp_dsbo.steps import (
    Agent,
    LdpDsbo,
    NoisedState,
    TasksDiffer,
    first_state,
    predicted,
    privacy_plan,
    update,
)
from parley.privacy.ldp_accounting import Decay, Schedules, laplace_scales, losses
from parley.privacy.noise import KeyedNoise

ENFORCED = Bounds(row_l1=2.0, row_max=0.8, x_low=-4.0, x_high=-1.0, y_max=3.0, z_max=2.0, loss_scale=1.5, initial=-2.0)
BOUNDS = SoftmaxBounds(features=5, classes=4, enforced=ENFORCED)
AGENTS, BATCH, STEPS = 4, 6, 12
WEIGHTS = gossip_weights(links(NetworkPlan(NetworkKind.RING, size=AGENTS), 0), 0.3)
STEP_SIZES = Schedules(Decay(0.3, 0.6), Decay(0.8, 0.55), Decay(0.5, 0.5))
BOXES = ((-4.0, -1.0), (-3.0, 3.0), (-2.0, 2.0))


def records(member, kind, rows=STEPS * BATCH, bounds=BOUNDS, seed=1):
    draw = stream(seed, f"softmax.{kind}", k=member)
    features = draw.normal(size=(rows, bounds.features))
    rule = np.random.default_rng(9).normal(size=(bounds.classes, bounds.features))
    return admit(features, (features @ rule.T).argmax(axis=1), bounds)


def autograd_directions(lower, upper, x, y, z):
    """u, ∇_y l and Hz − ∇_y h from the two losses as they are written in the module."""
    x, y = (torch.tensor(each, requires_grad=True) for each in (x, y))
    z = torch.as_tensor(z)

    def loss(part):
        scores = torch.as_tensor(part.features) @ y.reshape(4, 5).T
        return 1.5 * torch.nn.functional.cross_entropy(scores, torch.as_tensor(part.labels))

    penalty = 0.5 * (torch.exp(x) * y.reshape(4, 5) ** 2).sum()
    (by_y,) = torch.autograd.grad(loss(lower) + penalty, y, create_graph=True)
    hessian_z, cross = torch.autograd.grad(by_y @ z, (y, x))
    (upper_y,) = torch.autograd.grad(loss(upper), y)
    return -cross.numpy(), by_y.detach().numpy(), (hessian_z - upper_y).numpy()


def drawn_point(draw):
    return [draw.uniform(low, high, size) for (low, high), size in zip(BOXES, (5, 20, 20), strict=True)]


def test_directions_are_those_of_autograd():
    point = drawn_point(np.random.default_rng(0))
    lower, upper = records(0, "lower"), records(0, "upper")
    found = directions(lower, upper, BOUNDS, *point)
    for name, expected in zip("xyz", autograd_directions(lower, upper, *point), strict=True):
        np.testing.assert_allclose(getattr(found, name), expected, rtol=0, atol=1e-12)


def test_the_loss_is_the_cross_entropy():
    part, y = records(0, "lower"), drawn_point(np.random.default_rng(1))[1]
    scores = torch.as_tensor(part.features @ y.reshape(4, 5).T)
    expected = torch.nn.functional.cross_entropy(scores, torch.as_tensor(part.labels)).item()
    assert mean_loss(BOUNDS, part, y) == pytest.approx(expected, abs=1e-12)


def test_a_run_is_the_same_computation_on_pooled_data_in_autograd():
    parts = [(records(i, "lower"), records(i, "upper")) for i in range(AGENTS)]
    settings = LdpDsbo(STEP_SIZES, None, BOUNDS, BATCH, seed=3)
    agents, keys = [Agent(i, *part) for i, part in enumerate(parts)], [KeyedNoise(bytes(32))] * AGENTS
    found = ldp_dsbo_agents.train(Federation(agents, [settings] * AGENTS, keys, WEIGHTS, 0), STEPS)
    values = [np.full((AGENTS, 5), -2.0), np.zeros((AGENTS, 20)), np.zeros((AGENTS, 20))]
    for t in range(STEPS):
        seen = slice(0, (t + 1) * BATCH)
        slopes = [
            autograd_directions(lower.take(seen), upper.take(seen), *(value[i] for value in values))
            for i, (lower, upper) in enumerate(parts)
        ]
        values = [
            np.clip(value + WEIGHTS @ value - lam * np.stack([slope[v] for slope in slopes]), *box)
            for v, (value, lam, box) in enumerate(zip(values, STEP_SIZES.at(t), BOXES, strict=True))
        ]
    for i, state in enumerate(found):
        for name, value in zip("xyz", values, strict=True):
            np.testing.assert_allclose(getattr(state, name), value[i], rtol=0, atol=1e-6)


@pytest.mark.parametrize("seed", range(20))
def test_no_record_turns_a_direction_faster_than_the_recursion_allows(seed):
    """Far and near pairs of points; one record of each kind, whose terms are the averages then."""
    draw, bounds = np.random.default_rng(seed), recursion(BOUNDS)
    lower, upper = records(seed, "lower", rows=1), records(seed, "upper", rows=1)
    for scale in (1e-4, 0.1, 3.0):
        ends = drawn_point(draw)
        near = [
            np.clip(end + scale * draw.normal(size=end.shape) * (draw.random(end.shape) < 0.4), *box)
            for end, box in zip(ends, BOXES, strict=True)
        ]
        one, other = directions(lower, upper, BOUNDS, *ends), directions(lower, upper, BOUNDS, *near)
        apart = np.array([np.abs(a - b).sum() for a, b in zip(ends, near, strict=True)])
        moved = np.array([np.abs(getattr(one, name) - getattr(other, name)).sum() for name in "xyz"])
        assert (moved <= (bounds.data + bounds.shared) @ apart + 1e-12).all()
        assert (np.array([np.abs(getattr(one, name)).sum() for name in "xyz"]) <= bounds.largest).all()


def test_the_bounds_on_curvature_are_reached_and_not_passed():
    """A record with one column, two classes at p = ½ ± 1/√12: no smaller constant than that of `recursion` would do."""
    enforced = Bounds(row_l1=1.0, row_max=1.0, x_low=-60.0, x_high=-50.0, y_max=9.0, z_max=1.0)
    bounds = SoftmaxBounds(features=1, classes=2, enforced=enforced)
    part, x = SoftmaxRecords(np.ones((1, 1)), np.zeros(1, dtype=np.int64)), np.full(1, -50.0)
    empty = SoftmaxRecords(np.zeros((1, 1)), np.zeros(1, dtype=np.int64))

    def moved(y, z, step):
        at = [directions(part, empty, bounds, x, np.array([w, 0.0]), z) for w in (y, y + step)]
        return [np.abs(getattr(at[0], name) - getattr(at[1], name)).sum() / step for name in "yz"]

    allowed = recursion(bounds).data
    q = 0.5 - 1.0 / math.sqrt(12.0)
    turning = moved(math.log(q / (1 - q)), np.array([1.0, -1.0]), 1e-6)[1]
    assert turning == pytest.approx(allowed[2, 1] - allowed[1, 1], rel=1e-5)
    assert moved(0.0, np.zeros(2), 1e-6)[0] == pytest.approx(allowed[1, 1], rel=1e-5)


@pytest.mark.parametrize("seed", range(4))
def test_one_changed_record_never_costs_more_than_was_accounted_for(seed):
    enforced = Bounds(row_l1=1.0, row_max=0.5, x_low=-8.0, x_high=-3.0, y_max=2.0, z_max=1.0)
    bounds = SoftmaxBounds(features=5, classes=4, enforced=enforced)
    steps = Schedules(Decay(0.2, 0.9), Decay(1.0, 0.85), Decay(0.3, 0.8))
    settings = LdpDsbo(steps, laplace_scales(1.0, 0.7, 0.7, 0.6), bounds, BATCH)
    accounted = losses(privacy_plan(settings, 0, -0.6), STEPS)
    parts = [records(0, kind, bounds=bounds, seed=seed) for kind in ("lower", "upper")]
    changed = []
    for part in parts:
        features, labels = part.features.copy(), part.labels.copy()
        features[0], labels[0] = -features[0][::-1], (labels[0] + 1) % 4
        changed.append(admit(features, labels, bounds))
    pair, states = (Agent(0, *parts), Agent(0, *changed)), [first_state(settings, 0)] * 2
    for t in range(STEPS):
        draw = stream(seed, "softmax.messages", 0, t)
        received = {
            j: NoisedState(*(draw.laplace(size=size) / (t + 1) for size in (5, 20, 20)), step=t) for j in (1, 2)
        }
        states = [
            update(agent, settings, {1: 0.3, 2: 0.3}, state, received)
            for agent, state in zip(pair, states, strict=True)
        ]
        apart = np.array([np.abs(getattr(states[0], name) - getattr(states[1], name)).sum() for name in "xyz"])
        assert (apart / settings.noise_scales.at(t + 1) <= accounted[t] + 1e-12).all()
    assert apart.sum() > 0


def test_agents_that_see_few_of_the_classes_learn_all_of_them():
    enforced = Bounds(row_l1=4.0, row_max=2.0, x_low=-9.0, x_high=-5.0, y_max=50.0, z_max=20.0)
    bounds = SoftmaxBounds(features=5, classes=4, enforced=enforced)
    settings = LdpDsbo(Schedules(Decay(0.1, 0.3), Decay(3.0, 0.2), Decay(1.0, 0.2)), None, bounds, 20)

    def seen(member, kind):
        whole = records(member, kind, rows=12_000, bounds=bounds)
        return whole.take(np.flatnonzero((whole.labels == member) | (whole.labels == (member + 1) % 4))[:1600])

    agents = [Agent(i, seen(i, "lower"), seen(i, "upper")) for i in range(AGENTS)]
    keys = [KeyedNoise(bytes(32))] * AGENTS
    states = ldp_dsbo_agents.train(Federation(agents, [settings] * AGENTS, keys, WEIGHTS, 0), 80)
    test = records(0, "test", rows=2000, bounds=bounds)
    for state in states:
        assert np.mean(predicted(bounds, test, state) == test.labels) > 0.9


def test_records_of_another_kind_are_refused():
    with pytest.raises(InvalidBounds, match="from 0 to 3"):
        admit(np.zeros((1, 5)), np.array([4]), BOUNDS)
    with pytest.raises(InvalidBounds, match="row_l1 and row_max"):
        recursion(SoftmaxBounds(5, 4, Bounds()))
    with pytest.raises(TasksDiffer, match="SoftmaxRecords do not belong to Bounds"):
        predicted(Bounds(), records(0, "lower"), first_state(LdpDsbo(STEP_SIZES, None, BOUNDS), 0))
