"""Push-Sum over links that lose, repeat and reorder messages; everything crosses as bytes."""

import asyncio
from collections import deque
from pathlib import Path

import numpy as np
import pytest

from parley.contracts.decentralised.v1 import decentralised_pb2
from parley.numerics.networks import NetworkKind, NetworkPlan
from parley.numerics.push_sum import estimate, gather, initial_mass, split
from parley.party.hgp.push_sum import PushSumPlane
from parley.privacy.release import ClearPortionGate
from parley.protocols.hgp.codec import PROTOCOL, encode_push_sum
from parley.protocols.tensor.codec import MessageInvalid
from parley.services.party.peers import PeerLinks

SIZE = 4
PLAN = NetworkPlan(NetworkKind.RANDOM_DIRECTED, size=SIZE, seed=2)
VALUES = np.random.default_rng(1).normal(size=(SIZE, 6))
LOSSY, STEPS = 120, 400


def faults(seed):
    """Per message of the lossy part: lost (20 %), repeated (10 %), or late (15 %)."""
    draw = np.random.default_rng(seed)

    def fate(step):
        chance = draw.random(3) if step < LOSSY else np.ones(3)
        return chance[0] < 0.2, chance[1] < 0.1, chance[2] < 0.15

    return fate


class LossyLinks(PeerLinks):
    """A peer plane whose messages cross as bytes, and not always."""

    def __init__(self, index, others, fate):
        super().__init__("session", [str(i) for i in range(SIZE)], [""] * SIZE, Path(), PROTOCOL)
        self._index, self._others, self._fate, self._held = index, others, fate, []

    async def push(self, receiver, blobs, *, push_sum):
        data = push_sum.SerializeToString()
        lost, repeated, delayed = self._fate(push_sum.step)
        held, self._held = self._held, []
        copies = [] if lost else [(receiver, data)] * (2 if repeated else 1)
        if delayed:
            self._held = copies
            copies = []
        for target, content in copies + held:
            body = decentralised_pb2.PushSumVector.FromString(content)
            self._others[target].take(str(self._index), "push_sum", body, deque())


async def averaged(fate, patience):
    """Every member's estimate by the party's own plane; None where the parties wait for ever."""
    others: list[LossyLinks] = []
    others += [LossyLinks(i, others, fate) for i in range(SIZE)]
    planes = [PushSumPlane(i, PLAN, others[i], patience_seconds=patience, most_waiting=10_000) for i in range(SIZE)]

    async def member(i):
        mass = initial_mass(VALUES[i])
        for step in range(STEPS):
            kept, portions = split(mass, planes[i].receivers(step)[0])
            await planes[i].send(step, portions)
            incoming = await planes[i].receive(step)
            mass = gather(kept, [incoming[sender] for sender in sorted(incoming)])
        return estimate(mass)

    return np.stack(await asyncio.wait_for(asyncio.gather(*(member(i) for i in range(SIZE))), 60))


async def test_a_robust_party_reaches_the_exact_average_over_lossy_links():
    found = await averaged(faults(7), patience=0.002)
    np.testing.assert_allclose(found, np.tile(VALUES.mean(axis=0), (SIZE, 1)), rtol=0, atol=1e-9)


@pytest.mark.parametrize("patience", [None, 5.0])
async def test_both_forms_reach_the_average_over_links_that_lose_nothing(patience):
    found = await averaged(lambda _: (False, False, False), patience)
    np.testing.assert_allclose(found, np.tile(VALUES.mean(axis=0), (SIZE, 1)), rtol=0, atol=1e-12)


async def test_portions_are_refused_where_running_totals_are_due():
    links_ = LossyLinks(0, [], lambda _: (False, False, False))
    PushSumPlane(0, PLAN, links_, patience_seconds=1.0, most_waiting=10)
    message = encode_push_sum(ClearPortionGate().release(0, initial_mass(VALUES[1])), deque())
    with pytest.raises(MessageInvalid, match="do not mix"):
        links_.take("1", "push_sum", message, deque())
