"""Round trips over several streams: who is waited for, and how long."""

import asyncio

import pytest

from parley.services.coordinator import streams
from parley.services.coordinator.fleet import PartyLost
from parley.services.coordinator.streams import RoundTrip

LOST = PartyLost("shop", "it ended the stream")


def trip(*, patient=False):
    return RoundTrip(1, [0, 1, 2], lambda *_: None, patient=patient)


async def test_a_trip_ends_with_the_last_answer():
    asked = trip()
    waiting = asyncio.create_task(asked.answers(60))
    for party in (2, 0):
        asked.settle(party, party)
        await asyncio.sleep(0)
        assert not waiting.done()
    asked.settle(1, 1)
    assert await waiting == {2: 2, 0: 0, 1: 1}


async def test_after_a_failure_the_others_have_a_moment(monkeypatch):
    monkeypatch.setattr(streams, "REFUSAL_SECONDS", 0.05)
    asked = trip()
    asked.settle(1, LOST)
    asyncio.get_running_loop().call_later(0.01, asked.settle, 0, "in time")
    asyncio.get_running_loop().call_later(10, asked.settle, 2, "too late")
    assert await asyncio.wait_for(asked.answers(60), 5) == {1: LOST, 0: "in time"}


async def test_a_patient_trip_waits_for_the_others(monkeypatch):
    monkeypatch.setattr(streams, "REFUSAL_SECONDS", 0.01)
    asked = trip(patient=True)
    asked.settle(1, LOST)
    for party in (0, 2):
        asyncio.get_running_loop().call_later(0.1, asked.settle, party, "slow")
    assert await asked.answers(60) == {1: LOST, 0: "slow", 2: "slow"}


@pytest.mark.parametrize("patient", [False, True])
async def test_at_the_deadline_there_is_what_has_come(patient):
    asked = trip(patient=patient)
    asked.settle(0, "prompt")
    assert await asked.answers(0.05) == {0: "prompt"}
