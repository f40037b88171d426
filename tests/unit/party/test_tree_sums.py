"""Sums up two trees among parties whose messages cross as bytes."""

import asyncio
from collections import deque

import numpy as np
import pytest

from parley.contracts.aggregation.v1 import aggregation_pb2
from parley.party.peers import PeerFlooded, PeerLost
from parley.party.tree_sums import MOST_SUMS, TreeSums
from parley.privacy.aggregation import SumOpening, ring_of, trees_of
from parley.privacy.release import TreeGate
from parley.protocols.tensor.codec import encode_tensor
from parley.simulation.sums import pair_secrets
from parley.spec.protection import AggregationSpec
from tests.unit.party.loopback import loopback

PARTIES = 5
SETTINGS = AggregationSpec(kind="two_tree")
DRAFTS = np.random.default_rng(0).normal(size=(PARTIES, 6))


def federation(*, seconds=5.0, away=frozenset()):
    everyone = loopback(PARTIES, away)
    shared = pair_secrets(PARTIES)
    gates = [TreeGate(m, trees_of(PARTIES), ring_of(SETTINGS), shared[m]("trees")) for m in range(PARTIES)]
    return [TreeSums(gate, peers, seconds) for gate, peers in zip(gates, everyone, strict=True)], everyone


async def test_the_coordinator_opens_the_sum_of_everyones_drafts_round_after_round():
    parties, _ = federation()
    for number in (1, 2, 3):
        drafts = number * DRAFTS
        releases = await asyncio.gather(*(party.add(number, drafts[m]) for m, party in enumerate(parties)))
        total = SumOpening(SETTINGS, PARTIES).open([release.content for release in releases])
        np.testing.assert_allclose(total, drafts.sum(axis=0), rtol=0, atol=PARTIES * 2.0**-40)


async def test_a_party_that_is_a_round_ahead_of_the_others_loses_nothing():
    parties, _ = federation()

    async def both(m, pause):
        await asyncio.sleep(pause)
        return [await parties[m].add(number, number * DRAFTS[m]) for number in (1, 2)]

    releases = await asyncio.gather(*(both(m, 0.02 * m) for m in range(PARTIES)))
    for number in (1, 2):
        total = SumOpening(SETTINGS, PARTIES).open([each[number - 1].content for each in releases])
        np.testing.assert_allclose(total, number * DRAFTS.sum(axis=0), rtol=0, atol=PARTIES * 2.0**-40)


async def test_a_sum_without_a_lost_partys_part_fails_in_time_and_opens_nothing():
    parties, _ = federation(seconds=0.2, away={PARTIES - 1})
    ends = await asyncio.gather(*(party.add(1, DRAFTS[m]) for m, party in enumerate(parties)), return_exceptions=True)
    assert any(isinstance(end, PeerLost) and "did not come within 0.2 s" in str(end) for end in ends)


async def test_parts_of_rounds_that_never_come_are_refused_beyond_a_limit():
    _, everyone = federation()
    part = aggregation_pb2.MaskedTheta(tree=aggregation_pb2.TREE_VALUES, participants=2)
    encode_tensor(np.zeros(4, dtype=np.uint64), deque(), into=part.elements)
    for number in range(1, MOST_SUMS + 1):
        part.round = number
        everyone[0].take(1, "masked_theta", part)
    part.round = MOST_SUMS + 1
    with pytest.raises(PeerFlooded):
        everyone[0].take(1, "masked_theta", part)
