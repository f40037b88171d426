from dataclasses import replace

import numpy as np
import pytest

from parley.experiments import ldp_dsbo_agents
from parley.experiments.ldp_dsbo_agents import Federation
from parley.numerics.networks import NetworkKind, NetworkPlan, gossip_weights, links
from parley.numerics.streams import stream
from parley.party.ldp_dsbo.objectives import (
    Bounds,
    InvalidBounds,
    Records,
    admit,
    directions,
    normalise_rows,
    recursion,
)
from parley.party.ldp_dsbo.steps import (
    Agent,
    AgentState,
    LdpDsbo,
    NeighbourMissing,
    NoDataLeft,
    NoisedState,
    StepMismatch,
    UnusableState,
    begin,
    draft_state,
    local_directions,
    noise_draft,
    update,
)
from parley.privacy.ldp_accounting import Decay, Oracle, Schedules, laplace_scales
from parley.privacy.noise import KeyedNoise

SIZE = 4
OPEN = Bounds(x_low=-5.0, x_high=5.0, y_max=10.0, z_max=10.0)
SETTINGS = LdpDsbo(
    step_sizes=Schedules(Decay(0.1, 0.95), Decay(0.5, 0.87), Decay(0.2, 0.75)),
    noise_scales=laplace_scales(1.0, 0.81, 0.77, 0.61),
    bounds=OPEN,
    batch_size=5,
)


def records(seed, rows=50):
    features = stream(seed, "features").normal(size=(rows, SIZE))
    return Records(features, np.where(features[:, 0] > 0, 1.0, -1.0))


AGENT = Agent(0, records(0), records(1))


def state(step=0):
    x, y, z = stream(5, "state").normal(size=(3, SIZE))
    return AgentState(x, y, z, step)


def losses(lower, upper, x, y):
    """The two costs, written out one record at a time."""
    g = np.mean([np.log1p(np.exp(-b * (a @ y))) for a, b in zip(lower.features, lower.labels, strict=True)])
    h = np.mean([np.log1p(np.exp(-b * (a @ y))) for a, b in zip(upper.features, upper.labels, strict=True)])
    return g + 0.5 * (np.exp(x) * y**2).sum(), h


def test_directions_are_the_derivatives_of_the_two_costs():
    lower, upper, s, shift = records(2), records(3), state(), 1e-5
    got = directions(lower, upper, OPEN, s.x, s.y, s.z)

    def slope(cost, at):
        return np.array([(cost(at + shift * e) - cost(at - shift * e)) / (2 * shift) for e in np.eye(SIZE)])

    def inner_slope(x, y):
        return slope(lambda v: losses(lower, upper, x, v)[0], y)

    b = slope(lambda v: losses(lower, upper, s.x, v)[1], s.y)
    hessian_z = (inner_slope(s.x, s.y + 1e-4 * s.z) - inner_slope(s.x, s.y - 1e-4 * s.z)) / 2e-4
    np.testing.assert_allclose(got.y, inner_slope(s.x, s.y), atol=1e-7)
    np.testing.assert_allclose(got.z, hessian_z - b, atol=1e-4)
    cross = slope(lambda v: inner_slope(v, s.y) @ s.z, s.x)
    np.testing.assert_allclose(got.x, -cross, atol=1e-4)


def test_the_history_oracle_covers_all_records_so_far_and_the_mini_batch_only_its_own():
    late = state(step=3)
    history = local_directions(AGENT, SETTINGS, late)
    first_twenty = slice(0, 20)
    expected = directions(AGENT.lower.take(first_twenty), AGENT.upper.take(first_twenty), OPEN, late.x, late.y, late.z)
    np.testing.assert_array_equal(history.y, expected.y)
    minibatch = local_directions(AGENT, replace(SETTINGS, oracle=Oracle.MINIBATCH), late)
    assert not np.allclose(minibatch.y, history.y)


def test_an_update_mixes_noised_neighbours_with_the_agents_own_clear_state():
    s = state()
    neighbour = NoisedState(np.full(SIZE, 2.0), np.full(SIZE, 3.0), np.full(SIZE, 4.0), step=0)
    after = update(AGENT, SETTINGS, {7: 0.3}, s, {7: neighbour})
    d = local_directions(AGENT, SETTINGS, s)
    np.testing.assert_allclose(after.x, s.x + 0.3 * (2.0 - s.x) - 0.1 * d.x)
    np.testing.assert_allclose(after.y, s.y + 0.3 * (3.0 - s.y) - 0.5 * d.y)
    np.testing.assert_allclose(after.z, s.z + 0.3 * (4.0 - s.z) - 0.2 * d.z)
    assert after.step == 1


def test_an_update_never_leaves_the_boxes():
    far = NoisedState(np.full(SIZE, 1e6), np.full(SIZE, -1e6), np.full(SIZE, 1e6), step=0)
    after = update(AGENT, SETTINGS, {1: 0.3}, state(), {1: far})
    assert after.x.max() == 5.0
    assert after.y.min() == -10.0
    assert after.z.max() == 10.0


def test_the_noise_of_a_step_is_the_same_for_every_neighbour_and_at_every_retry():
    key = KeyedNoise(b"a" * 32)
    draft = draft_state(state(step=2))
    first, second = (noise_draft(draft, SETTINGS.noise_scales, key, "run") for _ in range(2))
    for name in ("noised_x", "noised_y", "noised_z"):
        assert getattr(first, name).tobytes() == getattr(second, name).tobytes()
    assert not np.allclose(first.noised_y, draft.y)


def test_a_federation_is_reproducible_and_every_agent_draws_its_own_noise():
    weights = gossip_weights(links(NetworkPlan(NetworkKind.RING, size=3), 0), 0.3)
    bounds = replace(OPEN, row_l1=1.0, row_max=0.4)
    parts = [[admit(r.features, r.labels, bounds) for r in (records(10 + i), records(20 + i))] for i in range(3)]
    agents = [Agent(i, *part) for i, part in enumerate(parts)]
    keys = [KeyedNoise(bytes([i]) * 32) for i in range(3)]
    settings = [replace(SETTINGS, bounds=bounds)] * 3
    federation = Federation(agents, settings, keys, weights, SIZE)
    first, second = (ldp_dsbo_agents.train(federation, 10) for _ in range(2))
    assert all(np.array_equal(a.y, b.y) for a, b in zip(first, second, strict=True))
    other = Federation(agents, settings, keys[::-1], weights, SIZE)
    assert not np.allclose(ldp_dsbo_agents.train(other, 10)[0].y, first[0].y)


def test_admission_enforces_the_declared_bounds_on_any_row():
    bounds = Bounds(row_l1=1.0, row_max=0.4)
    rows = np.array([[100.0, -100.0, 0.0], [0.1, 0.1, 0.1], [0.0, 0.0, 0.0]])
    admitted = admit(rows, np.array([1.0, -1.0, 1.0]), bounds).features
    assert np.abs(admitted).max() <= 0.4
    assert np.abs(admitted).sum(axis=1).max() <= 1.0 + 1e-15
    np.testing.assert_array_equal(admitted[1], rows[1])


def test_normalising_again_changes_nothing():
    bounds = Bounds(row_l1=1.0, row_max=0.4)
    once = normalise_rows(stream(0, "rows").normal(size=(30, 5)), bounds)
    np.testing.assert_allclose(normalise_rows(once, bounds), once, atol=1e-15)


def test_rows_without_declared_bounds_have_no_sensitivity():
    with pytest.raises(InvalidBounds, match="declare and enforce"):
        recursion(OPEN, SIZE)


def test_refusals_name_what_is_wrong():
    good = NoisedState(np.zeros(SIZE), np.zeros(SIZE), np.zeros(SIZE), step=0)
    weights = {1: 0.3, 2: 0.3}
    with pytest.raises(NeighbourMissing, match=r"\[1, 2\].*\[1\]"):
        update(AGENT, SETTINGS, weights, state(), {1: good})
    with pytest.raises(StepMismatch, match="step 4"):
        update(AGENT, SETTINGS, weights, state(), {1: good, 2: replace(good, step=4)})
    with pytest.raises(UnusableState, match="Neighbour 2"):
        update(AGENT, SETTINGS, weights, state(), {1: good, 2: replace(good, noised_y=np.full(SIZE, np.nan))})
    with pytest.raises(UnusableState, match=r"\(3,\)"):
        update(AGENT, SETTINGS, weights, state(), {1: good, 2: replace(good, noised_y=np.zeros(3))})
    with pytest.raises(NoDataLeft, match="more records than there are: shorten"):
        local_directions(AGENT, SETTINGS, state(step=10))
    with pytest.raises(InvalidBounds, match="−1 or \\+1"):
        Records(np.zeros((2, 2)), np.array([0.5, 1.0]))


def test_the_first_release_depends_on_no_data():
    assert not draft_state(begin(SIZE)).y.any()
