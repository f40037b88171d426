import asyncio

import pytest

from parley.services.relay import switchboard as module
from parley.services.relay.switchboard import (
    ConnectionUnknown,
    Limits,
    PartyAway,
    RegistrationReplaced,
    Switchboard,
    TooManyConnections,
)
from parley.services.wire.authorisation import Caller
from tests.unit.services.wire.test_tunnels import Memory, until

HUB, SHOP = Caller("coordinator", "hub"), Caller("party", "shop")


class Party:
    """A party that registers, and keeps what it is offered."""

    def __init__(self, switchboard, name="bank"):
        self.offers, self.problem = [], None
        self.task = asyncio.create_task(self._register(switchboard, name))

    async def _register(self, switchboard, name):
        try:
            async for connection_id in switchboard.register(name):
                self.offers.append(connection_id)
        except RegistrationReplaced as problem:
            self.problem = problem

    async def offered(self, count=1):
        await until(lambda: len(self.offers) > count)
        return self.offers[count]


@pytest.fixture
async def running():
    """Tasks that end with the test."""
    tasks = []

    def start(work):
        tasks.append(asyncio.create_task(work))
        return tasks[-1]

    yield start
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
def impatient(monkeypatch):
    """A switchboard that waits for nobody."""
    monkeypatch.setattr(module, "GRACE_SECONDS", 0.0)


async def test_bytes_pass_between_whoever_connects_and_the_party_that_accepts(running):
    switchboard = Switchboard()
    party, near, far = Party(switchboard), Memory(), Memory()
    connecting = running(switchboard.connect(HUB, "bank", near))
    accepting = running(switchboard.accept("bank", await party.offered(), far))
    near.incoming.put_nowait(b"question")
    far.incoming.put_nowait(b"answer")
    await until(lambda: far.written == [b"question"] and near.written == [b"answer"])
    far.incoming.put_nowait(b"")
    await asyncio.wait_for(asyncio.gather(connecting, accepting), 10)
    party.task.cancel()


async def test_a_connection_waits_for_a_party_that_is_about_to_dial(running):
    switchboard = Switchboard()
    connecting = running(switchboard.connect(HUB, "bank", Memory()))
    await asyncio.sleep(0.01)
    party = Party(switchboard)
    await party.offered()
    assert not connecting.done()
    party.task.cancel()


async def test_a_party_that_is_not_there_is_said_to_be_away(impatient):
    switchboard = Switchboard()
    with pytest.raises(PartyAway, match="bank has not dialled in"):
        await switchboard.connect(HUB, "bank", Memory())
    assert "start it" in switchboard.absence("bank")


async def test_only_the_party_that_a_connection_is_for_can_take_it_and_only_once(running):
    switchboard = Switchboard()
    party, thief = Party(switchboard), Party(switchboard, "shop")
    running(switchboard.connect(HUB, "bank", Memory()))
    offered = await party.offered()
    with pytest.raises(ConnectionUnknown):
        await switchboard.accept("shop", offered, Memory())
    running(switchboard.accept("bank", offered, Memory()))
    await asyncio.sleep(0)
    with pytest.raises(ConnectionUnknown):
        await switchboard.accept("bank", offered, Memory())
    party.task.cancel()
    thief.task.cancel()


async def test_when_a_party_goes_whoever_speaks_with_it_is_told_at_once(running):
    switchboard = Switchboard()
    party = Party(switchboard)
    taken = running(switchboard.connect(HUB, "bank", Memory()))
    running(switchboard.accept("bank", await party.offered(), Memory()))
    waiting = running(switchboard.connect(SHOP, "bank", Memory()))
    await party.offered(2)
    party.task.cancel()
    await asyncio.wait_for(taken, 10)
    with pytest.raises(PartyAway, match="has gone"):
        await asyncio.wait_for(waiting, 10)


async def test_a_second_registration_takes_the_place_of_the_first():
    switchboard = Switchboard()
    first = Party(switchboard)
    await until(lambda: first.offers)
    second = Party(switchboard)
    await asyncio.wait_for(first.task, 10)
    assert "run one service" in str(first.problem)
    assert switchboard.absence("bank") == ""
    second.task.cancel()


async def test_connections_are_limited_for_each_party_and_each_caller(running):
    switchboard = Switchboard(Limits(to_party=3, by_caller=2))
    party = Party(switchboard)
    for caller in (HUB, HUB, SHOP):
        running(switchboard.connect(caller, "bank", Memory()))
    await party.offered(3)
    with pytest.raises(TooManyConnections, match="2 of them by hub"):
        await switchboard.connect(HUB, "bank", Memory())
    with pytest.raises(TooManyConnections, match="3 connections"):
        await switchboard.connect(Caller("party", "telco"), "bank", Memory())
    party.task.cancel()


async def test_a_party_that_does_not_accept_is_not_waited_for_for_ever(monkeypatch):
    monkeypatch.setattr(module, "ACCEPT_SECONDS", 0.01)
    switchboard = Switchboard()
    party = Party(switchboard)
    await until(lambda: party.offers)
    with pytest.raises(PartyAway, match="did not accept"):
        await switchboard.connect(HUB, "bank", Memory())
    party.task.cancel()


async def test_whoever_waits_for_arrivals_is_told_of_them():
    arrived = []
    switchboard = Switchboard(arrived=arrived.append)
    party = Party(switchboard)
    await until(lambda: arrived == ["bank"])
    party.task.cancel()
