"""Secure sums are the sums, for any values, parties and rings."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.privacy.pairwise import PairwiseMasker, sum_masked
from parley.privacy.ring import Ring
from parley.privacy.two_tree import PartialSum, SumOpener, TreeNumber, TwoTreeNode
from tests.heap_trees import requester_trees

rings = st.sampled_from([Ring.WIDE, Ring.NARROW, Ring(64, 20, 1 << 30), Ring(32, 8, 1 << 12)])
shapes = st.sampled_from([(), (1,), (7,), (3, 5), (2, 0)])


def tensors(seed: int, parties: int, shape: tuple[int, ...], ring: Ring) -> list[np.ndarray]:
    """Values over the whole range of the ring, many of them tiny, some at the limit."""
    rng = np.random.default_rng(seed)
    scale = ring.limit ** rng.uniform(-1, 1, size=(parties, *shape))
    values = rng.choice([-1.0, 1.0], size=(parties, *shape)) * np.minimum(scale, ring.limit)
    return list(values)


def fake_secrets(u: int, parties: int) -> dict[int, bytes]:
    """A distinct key for each pair, the same at both ends."""
    return {v: bytes([min(u, v) + 1, max(u, v) + 1]) * 16 for v in range(parties) if v != u}


def pairwise_sum(encoded: list[np.ndarray], ring: Ring, round_id: int) -> np.ndarray:
    parties = range(len(encoded))
    answers = {
        u: PairwiseMasker(u, fake_secrets(u, len(encoded)), ring).mask(round_id, encoded[u], parties) for u in parties
    }
    return sum_masked(answers, parties, ring)


def two_tree_sum(encoded: list[np.ndarray], ring: Ring, requester: int) -> np.ndarray:
    trees = requester_trees(len(encoded), requester)
    nodes = [TwoTreeNode(p, trees, ring) for p in range(len(encoded))]
    for node, value in zip(nodes, encoded, strict=True):
        node.begin(0, value)
    tops = []
    for number, tree in ((TreeNumber.MASKED, trees.masked), (TreeNumber.MASKS, trees.masks)):
        sent: dict[int, PartialSum] = {}
        for party in reversed(tree.order):
            sent[party] = nodes[party].forward(0, number, [sent[child] for child in tree.children[party]])
        tops.append(sent[tree.root])
    return SumOpener(trees, ring).open_sum(*tops)


def plain_sum(encoded: list[np.ndarray], ring: Ring) -> np.ndarray:
    """Python integers, then the ring: no wrap-around arithmetic of ours in the oracle."""
    exact = sum(array.astype(object) for array in encoded)
    return np.asarray(exact % (1 << ring.bits)).astype(ring.dtype)


@settings(max_examples=60, deadline=None)
@given(rings, shapes, st.integers(2, 16), st.integers(0, 2**32), st.integers(0, 2**63))
def test_pairwise_sums_are_exact_in_the_ring(ring, shape, parties, seed, round_id):
    parties = min(parties, ring.most_parties)
    encoded = [ring.encode(v) for v in tensors(seed, parties, shape, ring)]
    assert np.array_equal(pairwise_sum(encoded, ring, round_id), plain_sum(encoded, ring))


@settings(max_examples=40, deadline=None)
@given(rings, shapes, st.integers(3, 16), st.integers(0, 2**32), st.integers(0, 15))
def test_two_tree_sums_are_exact_in_the_ring(ring, shape, parties, seed, requester):
    parties = max(3, min(parties, ring.most_parties))
    encoded = [ring.encode(v) for v in tensors(seed, parties, shape, ring)]
    assert np.array_equal(two_tree_sum(encoded, ring, requester % parties), plain_sum(encoded, ring))


@settings(max_examples=60, deadline=None)
@given(rings, st.integers(2, 16), st.integers(0, 2**32))
def test_a_decoded_sum_is_within_its_stated_error(ring, parties, seed):
    parties = min(parties, ring.most_parties)
    values = tensors(seed, parties, (40,), ring)
    decoded = ring.decode(pairwise_sum([ring.encode(v) for v in values], ring, 1))
    exact = np.sum(np.array(values, dtype=np.longdouble), axis=0)
    assert np.max(np.abs(decoded - exact)) <= ring.error_bound(parties)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([Ring.WIDE, Ring.NARROW]), st.integers(2, 16), st.integers(0, 2**32))
def test_sums_of_ordinary_size_are_off_by_at_most_half_a_step_per_party(ring, parties, seed):
    values = np.random.default_rng(seed).uniform(-100, 100, size=(parties, 40))
    decoded = ring.decode(pairwise_sum([ring.encode(v) for v in values], ring, 1))
    exact = np.sum(values.astype(np.longdouble), axis=0)
    assert np.max(np.abs(decoded - exact)) <= parties * 2.0 ** -(ring.fraction_bits + 1)
