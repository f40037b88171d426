"""Push-Sum over links that lose, repeat and reorder messages; everything crosses as bytes."""

import asyncio
from collections import deque
from pathlib import Path

import numpy as np
import pytest

from parley.contracts.decentralised.v1 import decentralised_pb2
from parley.numerics.networks import NetworkKind, NetworkPlan, links, push_weights
from parley.numerics.push_sum import Mass, MassMismatch, estimate, gather, initial_mass, split
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


NOTHING_LOST = (False, False, False)


async def averaged(fate, patience, *, local=lambda _, mass: mass, outage=0.0):
    """Every member's estimate by the party's own plane; `local` changes a member's mass after each step.

    The last member is stopped for `outage` seconds before its first step.
    """
    others: list[LossyLinks] = []
    others += [LossyLinks(i, others, fate) for i in range(SIZE)]
    planes = [
        PushSumPlane(i, PLAN, others[i], patience_seconds=patience, most_waiting=10_000, window=50) for i in range(SIZE)
    ]

    async def member(i):
        mass = initial_mass(VALUES[i])
        if i == SIZE - 1:
            await asyncio.sleep(outage)
        for step in range(STEPS):
            kept, portions = split(mass, planes[i].receivers(step)[0])
            await planes[i].send(step, portions)
            incoming = await planes[i].receive(step)
            mass = gather(kept, [incoming[sender] for sender in sorted(incoming)])
            planes[i].check_weight(step + 1, mass.weight)
            mass = local(i, mass)
        return estimate(mass)

    found = await asyncio.wait_for(asyncio.gather(*(member(i) for i in range(SIZE))), 60)
    for plane in planes:
        await plane.close()
    return np.stack(found)


async def test_a_robust_party_reaches_the_exact_average_over_lossy_links():
    found = await averaged(faults(7), patience=0.002)
    np.testing.assert_allclose(found, np.tile(VALUES.mean(axis=0), (SIZE, 1)), rtol=0, atol=1e-9)


@pytest.mark.parametrize("patience", [None, 5.0])
async def test_both_forms_reach_the_average_over_links_that_lose_nothing(patience):
    found = await averaged(lambda _: NOTHING_LOST, patience)
    np.testing.assert_allclose(found, np.tile(VALUES.mean(axis=0), (SIZE, 1)), rtol=0, atol=1e-12)


def richardson(i, mass):
    """A step of a linear system whose matrix is spread over the members; its state is carried by Push-Sum."""
    return Mass(mass.z - 0.05 * (1 + i) * estimate(mass) + 0.05, mass.weight)


@pytest.mark.parametrize("loss", [0.0, 0.5])
async def test_an_outage_delays_the_others_and_changes_no_figure(loss):
    draw = np.random.default_rng(3)
    right = await averaged(lambda _: NOTHING_LOST, None, local=richardson)
    found = await averaged(
        lambda step: (step < 40 and draw.random() < loss, False, False), 0.002, local=richardson, outage=0.3
    )
    np.testing.assert_allclose(found, right, rtol=1e-12)


async def test_a_weight_that_the_network_does_not_give_is_refused():
    plane = PushSumPlane(0, PLAN, LossyLinks(0, [], lambda _: NOTHING_LOST), patience_seconds=1.0, most_waiting=10)
    plane.begin(7)
    plane.check_weight(7, 1.0)
    due = push_weights(links(PLAN, 7)) @ np.ones(SIZE)
    plane.check_weight(8, due[0])
    with pytest.raises(MassMismatch, match="resume the run"):
        plane.check_weight(8, due[0] * (1 - 1e-6))


async def test_portions_are_refused_where_running_totals_are_due():
    links_ = LossyLinks(0, [], lambda _: NOTHING_LOST)
    PushSumPlane(0, PLAN, links_, patience_seconds=1.0, most_waiting=10)
    message = encode_push_sum(ClearPortionGate().release(0, initial_mass(VALUES[1])), deque())
    with pytest.raises(MessageInvalid, match="do not mix"):
        links_.take("1", "push_sum", message, deque())


async def test_what_was_sent_last_in_a_range_of_steps_is_sent_again_in_the_next():
    """Parties answer the coordinator when they have sent a range's last step: nobody may have taken it by then."""
    lost = [True]

    def fate(_):
        return (lost[0], False, False)

    others: list[LossyLinks] = []
    others += [LossyLinks(i, others, fate) for i in range(SIZE)]
    sender, *receivers = [
        PushSumPlane(i, PLAN, others[i], patience_seconds=0.01, most_waiting=10, window=50) for i in range(SIZE)
    ]
    targets = sender.receivers(1)[0]
    for step in (0, 1):
        _, portions = split(initial_mass(VALUES[0]), sender.receivers(step)[0])
        await sender.send(step, portions)
    sender.confirm_before(1)
    lost[0] = False
    await asyncio.sleep(0.2)
    assert {i: list(receivers[i - 1]._arrived) for i in targets} == {i: [1] for i in targets}
    await sender.close()
