"""Masks between neighbours: who they are, that they cancel, and that the honest stay together."""

import numpy as np
import pytest

from parley.privacy.mask_graph import MaskGraph, degree
from parley.privacy.pairwise import PairwiseMasker, sum_masked, with_check, without_check
from parley.privacy.ring import Ring
from parley.simulation.sums import pair_secrets

RING = Ring(64, 36, 2.0**16)


def connected(parties, neighbours):
    found, open_ = set(), [min(parties)]
    while open_:
        found.add(party := open_.pop())
        open_ += [peer for peer in neighbours[party] if peer in parties and peer not in found]
    return found == set(parties)


@pytest.mark.parametrize("size", [2, 3, 50, 73])
def test_few_parties_share_masks_with_everybody(size):
    everyone = frozenset(range(size))
    assert all(MaskGraph(b"salt").neighbours(m, everyone) == everyone - {m} for m in everyone)


def test_many_have_few_neighbours_and_both_ends_agree():
    everyone, graph = frozenset(range(0, 1200, 3)), MaskGraph(b"salt")
    neighbours = {m: graph.neighbours(m, everyone) for m in everyone}
    assert {len(found) for found in neighbours.values()} == {degree(len(everyone))} == {78}
    assert all(m in neighbours[peer] for m, found in neighbours.items() for peer in found)
    assert all(m not in found for m, found in neighbours.items())


def test_the_degree_grows_with_the_logarithm():
    assert [degree(n) for n in (128, 256, 512, 1024)] == [74, 76, 78, 80]


def test_another_salt_gives_other_neighbours():
    everyone = frozenset(range(500))
    one, other = (MaskGraph(salt).neighbours(7, everyone) for salt in (b"one", b"other"))
    assert len(one & other) < 40  # 78 of 499 by chance have about 12 in common


def test_honest_parties_stay_connected_when_half_collude():
    """A failure has probability below 2^-59 for each of the 200 coalitions."""
    everyone, chance = frozenset(range(400)), np.random.default_rng(2)
    for trial in range(200):
        graph = MaskGraph(b"%d" % trial)
        honest = set(chance.permutation(400)[:200].tolist())
        assert connected(honest, {m: graph.neighbours(m, everyone) for m in honest})


def test_masks_of_neighbours_cancel_and_hide():
    parties, graph, shared = 120, MaskGraph(b"salt"), pair_secrets(120)
    everyone, values = frozenset(range(parties)), np.random.default_rng(0).normal(size=(parties, 3))
    encoded = [with_check(RING.encode(row), RING) for row in values]
    masked = {
        m: PairwiseMasker(m, shared[m]("mask"), RING, graph=graph).mask(1, encoded[m], everyone) for m in everyone
    }
    assert not any(np.array_equal(masked[m], encoded[m]) for m in everyone)
    total = RING.decode(without_check(sum_masked(masked, everyone, RING), RING))
    np.testing.assert_allclose(total, values.sum(axis=0), atol=parties * 2.0**-37)


def test_each_party_derives_only_the_secrets_that_it_needs():
    derived, everyone = [], frozenset(range(300))

    class Counted(dict):
        def __getitem__(self, peer):
            derived.append(peer)
            return super().__getitem__(peer)

    secrets = Counted({peer: bytes([peer % 256]) * 32 for peer in everyone - {0}})
    masker = PairwiseMasker(0, secrets, RING, graph=MaskGraph(b"salt"))
    masker.mask(1, np.zeros(1, RING.dtype), everyone)
    assert len(derived) == degree(300)
