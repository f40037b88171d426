"""Roles of one process share no memory, and none is waited for when another has failed."""

import asyncio
from collections import deque
from typing import Any

import numpy as np
import pytest

from parley.contracts.decentralised.v1 import decentralised_pb2
from parley.coordinator.ldp_dsbo.program import LdpDsboProgram
from parley.party.roles import Plan
from parley.protocols.bambi.messages import Gradient
from parley.protocols.decentralised.codec import encode_contribution
from parley.protocols.decentralised.messages import PeerTraffic
from parley.protocols.ldp_dsbo.codec import PROTOCOL
from parley.protocols.tensor.codec import MessageInvalid
from parley.simulation.driver import Simulation
from parley.simulation.peers import MemoryLine, memory_peers
from tests.unit.parley.simulation.test_runs import simulation, spec_of


class Agent:
    """A role that does what a test says."""

    def __init__(self, index, act):
        self._index, self._act = index, act

    def begin(self, checkpoint):
        return 0

    async def act(self, state, instruction):
        await self._act()
        return Plan(state + 1)

    def encode(self, number, instruction, release):
        return encode_contribution(number, PeerTraffic(self._index, 0, 0), release)

    def tensors(self, state):
        return {}

    model_tensors = tensors


def run_of(*acts):
    agents = [Agent(index, act) for index, act in enumerate(acts)]
    return Simulation(PROTOCOL, LdpDsboProgram(len(agents), 4, stretch=2), agents)


def test_every_round_reaches_every_party_and_the_last_one_is_the_end():
    seen = []

    async def act():
        await asyncio.sleep(0)

    outcome = run_of(act, act).run(watch=lambda current, states: seen.append((current.phase, list(states))))
    assert seen == [("agent_steps", [1, 1]), ("agent_steps", [2, 2]), ("finish", [3, 3])]
    assert (outcome.rounds, outcome.states, [report.k for report in outcome.reports]) == (3, [3, 3], [2, 4])


def test_where_one_party_fails_the_others_do_not_wait_for_it():
    left = []

    async def wait():
        try:
            await asyncio.Event().wait()
        finally:
            left.append("cancelled")

    async def fail():
        raise ArithmeticError("out of numbers")

    with pytest.raises(ArithmeticError, match="out of numbers"):
        run_of(wait, fail).run()
    assert left == ["cancelled"]


def test_what_a_role_decodes_is_not_what_the_coordinator_made():
    run = simulation(spec_of("bambi"))
    role: Any = run.roles[0]
    plan, decoded, made = role.plan, [], []
    role.plan = lambda state, instruction: decoded.append(instruction[0]) or plan(state, instruction)
    run.run(watch=lambda current, _: made.append(current.outcome))
    gradients = [
        (theirs.theta, ours.theta)
        for theirs, ours in zip(decoded, made, strict=True)
        if isinstance(ours, Gradient) and ours.theta is not None
    ]
    assert gradients
    for theirs, ours in gradients:
        np.testing.assert_array_equal(theirs, ours)
        assert not np.shares_memory(theirs, ours)


async def test_peers_get_bytes_of_what_is_pushed_and_nothing_that_they_do_not_take():
    first, second = memory_peers(2)
    message, arrived = decentralised_pb2.PushSumVector(step=3, omega=0.5), []
    with pytest.raises(MessageInvalid, match="party 1 takes no push_sum"):
        await first.push(1, deque(), push_sum=message)
    second.on("push_sum", lambda sender, taken, blobs: arrived.append((sender, taken, [bytes(b) for b in blobs])))
    await first.push(1, deque([memoryview(b"tensor")]), push_sum=message)
    ((sender, taken, blobs),) = arrived
    assert (sender, blobs) == (0, [b"tensor"])
    assert taken == message
    assert taken is not message
    assert first.sent_bytes == len(message.SerializeToString()) + len(b"tensor")


async def test_a_coordinator_that_answers_nothing_says_so():
    line = MemoryLine(0)
    line.program = LdpDsboProgram(2, 1, stretch=1)
    with pytest.raises(MessageInvalid, match="answers no questions"):
        await line.ask(decentralised_pb2.PushSumVector(), deque())
