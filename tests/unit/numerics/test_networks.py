import hashlib

import numpy as np
import pytest

from parley.numerics.networks import (
    InvalidNetwork,
    NetworkKind,
    NetworkPlan,
    NotStronglyConnected,
    NotUndirected,
    check_strongly_connected,
    gossip_weights,
    in_neighbours,
    links,
    metropolis_weights,
    out_neighbours,
)


@pytest.mark.parametrize(
    "kind", [kind for kind in NetworkKind if kind is not NetworkKind.EDGE_LIST], ids=lambda kind: kind.value
)
def test_every_member_is_its_own_neighbour_and_the_links_of_a_step_can_be_drawn_again(kind):
    plan = NetworkPlan(kind, size=6, seed=3)
    for step in (0, 7):
        matrix = links(plan, step)
        assert matrix.diagonal().all()
        assert np.array_equal(matrix, links(plan, step))


def test_a_random_directed_network_changes_and_keeps_each_pairs_probability():
    plan = NetworkPlan(NetworkKind.RANDOM_DIRECTED, size=4, seed=1)
    history = np.stack([links(plan, step) for step in range(4000)])
    frequency = history.mean(axis=0)[~np.eye(4, dtype=bool)]
    # Each ρ lies in [0.4, 0.8]; a frequency over 4000 steps leaves it by 4 standard errors (0.032) less than
    # once in 1e3 seeds.
    assert frequency.min() > 0.4 - 0.032
    assert frequency.max() < 0.8 + 0.032
    assert frequency.max() - frequency.min() > 0.05
    assert not np.array_equal(history, history.transpose(0, 2, 1))


def test_a_random_undirected_network_is_symmetric_at_every_step():
    plan = NetworkPlan(NetworkKind.RANDOM_UNDIRECTED, size=9, seed=1)
    drawn = [links(plan, step) for step in range(20)]
    assert all(np.array_equal(matrix, matrix.T) for matrix in drawn)
    assert any(not np.array_equal(matrix, drawn[0]) for matrix in drawn)


@pytest.mark.parametrize(("size", "degree"), [(10, 2), (10, 3), (10, 5), (10, 8), (100, 4)])
def test_a_regular_network_is_simple_connected_and_gives_every_member_the_same_degree(size, degree):
    plan = NetworkPlan(NetworkKind.REGULAR, size=size, degree=degree, seed=5)
    matrix = links(plan, 0)
    assert np.array_equal(matrix, matrix.T)
    assert set(matrix.sum(axis=1)) == {degree + 1}
    check_strongly_connected(plan, window=1, steps=1)


@pytest.mark.parametrize(
    ("size", "degree", "seed", "digest"),
    [
        (6, 3, 1, "256500f4b20f174b"),
        (12, 2, 3, "8a445424b4c8d40c"),
        (30, 3, 0, "72674d3bb78223b5"),
        (51, 4, 5, "5dfee5ec53189e10"),
    ],
)
def test_a_regular_network_is_the_same_for_every_version(size, degree, seed, digest):
    """Parties that derive different links from one plan would wait for each other for ever."""
    matrix = links(NetworkPlan(NetworkKind.REGULAR, size=size, degree=degree, seed=seed), 0)
    assert hashlib.sha256(np.packbits(matrix).tobytes()).hexdigest().startswith(digest)


def test_a_regular_network_of_hundreds_of_members_is_drawn():
    matrix = links(NetworkPlan(NetworkKind.REGULAR, size=300, degree=4, seed=1), 0)
    assert set(matrix.sum(axis=1)) == {5}


def test_a_regular_network_depends_on_its_seed():
    first, second = (links(NetworkPlan(NetworkKind.REGULAR, size=12, degree=3, seed=seed), 0) for seed in (0, 1))
    assert not np.array_equal(first, second)


def test_a_ring_of_two_members_is_one_edge():
    assert links(NetworkPlan(NetworkKind.RING, size=2), 0).all()


def test_neighbours_leave_the_member_itself_out():
    plan = NetworkPlan(NetworkKind.EDGE_LIST, size=3, edges=(((0, 1), (0, 2), (2, 0)),))
    matrix = links(plan, 0)
    assert out_neighbours(matrix, 0) == (1, 2)
    assert in_neighbours(matrix, 0) == (2,)


def test_metropolis_weights_are_doubly_stochastic():
    weights = metropolis_weights(links(NetworkPlan(NetworkKind.ERDOS_RENYI, size=8, seed=2), 0))
    np.testing.assert_allclose(weights.sum(axis=0), 1.0)
    np.testing.assert_allclose(weights.sum(axis=1), 1.0)
    assert (weights >= 0).all()


def test_gossip_weights_of_the_papers_ring_have_minus_six_tenths_on_the_diagonal():
    weights = gossip_weights(links(NetworkPlan(NetworkKind.RING, size=10), 0), 0.3)
    np.testing.assert_allclose(np.diag(weights), -0.6)
    np.testing.assert_allclose(weights.sum(axis=1), 0.0, atol=1e-15)


def test_a_gossip_weight_that_would_diverge_is_refused():
    with pytest.raises(InvalidNetwork, match="eigenvalue"):
        gossip_weights(links(NetworkPlan(NetworkKind.RING, size=10), 0), 0.51)


def test_undirected_weight_rules_refuse_directed_links():
    matrix = links(NetworkPlan(NetworkKind.EDGE_LIST, size=3, edges=(((0, 1), (1, 2), (2, 0)),)), 0)
    with pytest.raises(NotUndirected, match="push weights"):
        metropolis_weights(matrix)
    with pytest.raises(NotUndirected, match="symmetric"):
        gossip_weights(matrix, 0.3)


def test_a_schedule_that_is_connected_only_over_two_steps_passes_a_window_of_two_and_fails_a_window_of_one():
    plan = NetworkPlan(NetworkKind.EDGE_LIST, size=3, edges=(((0, 1), (1, 2)), ((2, 0),)))
    check_strongly_connected(plan, window=2, steps=10)
    with pytest.raises(NotStronglyConnected, match=r"steps 0 and 0.*member 2 sends.*member 0"):
        check_strongly_connected(plan, window=1, steps=10)


def test_a_later_window_that_is_cut_is_found():
    whole = ((0, 1), (1, 0))
    plan = NetworkPlan(NetworkKind.EDGE_LIST, size=2, edges=(whole, whole, ((0, 1),)))
    with pytest.raises(NotStronglyConnected, match="steps 2 and 2"):
        check_strongly_connected(plan, window=1, steps=3)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"kind": NetworkKind.RING, "size": 0}, "at least 1"),
        ({"kind": NetworkKind.REGULAR, "size": 5, "degree": 3}, "3-regular"),
        ({"kind": NetworkKind.RANDOM_DIRECTED, "size": 3, "probability": (0.8, 0.4)}, "low ≤ high"),
        ({"kind": NetworkKind.EDGE_LIST, "size": 3}, "at least one step"),
        ({"kind": NetworkKind.EDGE_LIST, "size": 3, "edges": (((0, 3),),)}, "0 … 2"),
    ],
)
def test_an_impossible_plan_is_refused_with_the_reason(arguments, words):
    with pytest.raises(InvalidNetwork, match=words):
        NetworkPlan(**arguments)


def test_an_erdos_renyi_network_that_cannot_connect_is_refused():
    plan = NetworkPlan(NetworkKind.ERDOS_RENYI, size=5, probability=(0.0, 0.0))
    with pytest.raises(NotStronglyConnected, match="raise the probability"):
        links(plan, 0)
