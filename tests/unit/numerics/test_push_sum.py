import numpy as np
import pytest

from parley.numerics.networks import NetworkKind, NetworkPlan, in_neighbours, links, out_neighbours
from parley.numerics.push_sum import (
    EdgeTotals,
    Mass,
    MassMismatch,
    RunningTotal,
    WeightVanished,
    absorb,
    estimate,
    gather,
    initial_mass,
    push,
    split,
)
from parley.numerics.streams import stream

PLAN = NetworkPlan(NetworkKind.RANDOM_DIRECTED, size=5, seed=4)


def values(size=5, width=3):
    return stream(8, "values").normal(size=(size, width))


def plain_run(initial, steps, arrives=lambda step, sender, receiver: True):
    masses = [initial_mass(row) for row in initial]
    for step in range(steps):
        matrix = links(PLAN, step)
        halves = [split(mass, out_neighbours(matrix, i)) for i, mass in enumerate(masses)]
        masses = [
            gather(kept, [halves[j][1][i] for j in in_neighbours(matrix, i) if arrives(step, j, i)])
            for i, (kept, _) in enumerate(halves)
        ]
    return masses


def robust_run(initial, steps, deliveries):
    """Push at every step and absorb what `deliveries(step, fresh)` hands over, as (sender, receiver, total)."""
    masses, edges = [initial_mass(row) for row in initial], [EdgeTotals() for _ in initial]
    for step in range(steps):
        matrix = links(PLAN, step)
        fresh = []
        for i in range(len(masses)):
            masses[i], portions = split(masses[i], out_neighbours(matrix, i))
            edges[i], totals = push(edges[i], portions)
            fresh += [(i, receiver, total) for receiver, total in totals.items()]
        for sender, receiver, total in deliveries(step, fresh):
            edges[receiver], news = absorb(edges[receiver], sender, total)
            masses[receiver] = gather(masses[receiver], [] if news is None else [news])
    return masses


def faulty(seed, loss):
    """Lose, duplicate and reorder: every message that ever existed may come again, late."""
    past = []

    def deliveries(step, fresh):
        draw = stream(seed, "faults", 0, step)
        arrived = [message for message in fresh if draw.random() >= loss]
        again = [past[i] for i in draw.integers(len(past), size=3)] if past else []
        past.extend(fresh)
        mixed = arrived + again
        return [mixed[i] for i in draw.permutation(len(mixed))]

    return deliveries


def test_a_synchronous_step_is_a_product_with_a_column_stochastic_matrix():
    initial = values()
    matrix = links(PLAN, 0)
    weights = (matrix / matrix.sum(axis=1, keepdims=True)).T  # entry (i, j) = 1/|N_j^out| when j sends to i
    after = plain_run(initial, 1)
    np.testing.assert_allclose(np.stack([mass.z for mass in after]), weights @ initial)
    np.testing.assert_allclose([mass.weight for mass in after], weights @ np.ones(5))


def test_every_member_of_a_directed_network_reaches_the_average():
    initial = values()
    for mass in plain_run(initial, 120):
        np.testing.assert_allclose(estimate(mass), initial.mean(axis=0), atol=1e-12)


def test_under_loss_the_plain_form_agrees_on_a_wrong_value_and_the_robust_form_is_exact_on_the_same_trace():
    initial = values()
    lost = {(step, j, i) for step in range(400) for j in range(5) for i in range(5)
            if stream(1, "loss", 5 * i + j, step).random() < 0.3}  # fmt: skip

    plain = np.stack([estimate(m) for m in plain_run(initial, 400, lambda *edge: edge not in lost)])
    robust = robust_run(
        initial,
        400,
        lambda step, fresh: [m for m in fresh if (step, *m[:2]) not in lost],
    )
    estimates = np.stack([estimate(mass) for mass in robust])

    assert np.ptp(plain, axis=0).max() < 1e-9, "the plain form agrees perfectly"
    assert np.abs(plain - initial.mean(axis=0)).max() > 0.05, "and is wrong"
    np.testing.assert_allclose(estimates, np.broadcast_to(initial.mean(axis=0), (5, 3)), atol=1e-12)


def test_loss_duplicates_and_reordering_leave_the_robust_average_exact():
    initial = values()
    for mass in robust_run(initial, 600, faulty(seed=2, loss=0.3)):
        np.testing.assert_allclose(estimate(mass), initial.mean(axis=0), atol=1e-12)


def test_a_total_brings_what_the_lost_ones_before_it_would_have_brought():
    sender, receiver = EdgeTotals(), EdgeTotals()
    portions = [Mass(np.array([1.0, 2.0]), 0.5), Mass(np.array([4.0, 8.0]), 0.25), Mass(np.array([0.5, 0.5]), 0.125)]
    totals = []
    for portion in portions:
        sender, pushed = push(sender, {1: portion})
        totals.append(pushed[1])
    receiver, first = absorb(receiver, 0, totals[0])
    receiver, third = absorb(receiver, 0, totals[2])
    np.testing.assert_array_equal(first.z, portions[0].z)
    np.testing.assert_array_equal(third.z, portions[1].z + portions[2].z)
    assert third.weight == portions[1].weight + portions[2].weight


def test_a_duplicate_and_an_overtaken_total_bring_nothing():
    sender, one = push(EdgeTotals(), {1: Mass(np.ones(2), 0.5)})
    _, two = push(sender, {1: Mass(np.ones(2), 0.5)})
    edges, _ = absorb(EdgeTotals(), 0, two[1])
    assert absorb(edges, 0, two[1]) == (edges, None)
    assert absorb(edges, 0, one[1]) == (edges, None)


def test_edges_do_not_mix():
    sender, pushed = push(EdgeTotals(), {1: Mass(np.ones(2), 0.25), 2: Mass(np.ones(2), 0.5)})
    _, again = push(sender, {2: Mass(np.ones(2), 0.5)})
    assert (pushed[1].sequence, again[2].sequence, again[2].mass.weight) == (1, 2, 1.0)
    receiver, _ = absorb(EdgeTotals(), 7, pushed[2])
    assert absorb(receiver, 8, pushed[2])[1].weight == 0.5


def test_refusals_name_what_is_wrong():
    edges, _ = absorb(EdgeTotals(), 0, RunningTotal(Mass(np.zeros(2), 0.5), 1))
    with pytest.raises(MassMismatch, match="shape"):
        absorb(edges, 0, RunningTotal(Mass(np.zeros(1), 0.5), 2))
    with pytest.raises(MassMismatch, match="shape"):
        gather(initial_mass(np.zeros(2)), [Mass(np.zeros(3), 0.5)])
    with pytest.raises(MassMismatch, match="NaN"):
        gather(initial_mass(np.zeros(2)), [Mass(np.array([0.0, np.nan]), 0.5)])
    with pytest.raises(WeightVanished, match="mass was lost"):
        estimate(Mass(np.zeros(2), 0.0))
