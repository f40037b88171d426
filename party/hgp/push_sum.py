"""Push-Sum between the parties of a session: a step's portions go to the neighbours that the network gives it.

Synchronous delivery waits for every portion. Robust delivery sends running totals of each edge and goes on after a
while without those that did not come: a lost message only delays mass, the next total on its edge brings it.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from google.protobuf.message import Message

from parley.numerics.networks import NetworkPlan, in_neighbours, links, metropolis_weights, out_neighbours
from parley.numerics.push_sum import EdgeTotals, Mass, RunningTotal, absorb, push
from parley.party.peers import PeerFlooded, PeerLost, Peers
from parley.privacy.release import ClearPortionGate
from parley.protocols.decentralised.messages import PeerTraffic
from parley.protocols.hgp.codec import ReceivedPortion, decode_push_sum, encode_push_sum
from parley.protocols.tensor.codec import Blobs, MessageInvalid

Shares = Mapping[int, float] | None
_links = lru_cache(16)(links)
"""Parties of one process ask for the same steps of the same network."""


class PushSumPlane:
    """One party's edges. Steps are those of the network's schedule, which every party derives for itself."""

    def __init__(
        self,
        index: int,
        plan: NetworkPlan,
        peers: Peers,
        *,
        doubly_stochastic: bool = False,
        patience_seconds: float | None = None,
        most_waiting: int,
    ) -> None:
        self._index, self._plan, self._peers = index, plan, peers
        self._doubly_stochastic, self._patience, self._most_waiting = doubly_stochastic, patience_seconds, most_waiting
        self._gate = ClearPortionGate()
        self._arrived: dict[int, dict[int, ReceivedPortion]] = {}
        """By step, then by sender."""
        self._waiting = 0
        self._taken = -1
        """The last step whose portions were used."""
        self._edges = EdgeTotals()
        self._due: tuple[int, frozenset[int]] = (-1, frozenset())
        self._ready: asyncio.Future[None] | None = None
        self._messages = 0
        self._neighbours: Callable[[int], tuple[tuple[int, ...], frozenset[int], Shares]] = lru_cache(8)(self._derive)
        peers.on("push_sum", self._take)

    @property
    def traffic(self) -> PeerTraffic:
        """What this party has sent so far."""
        return PeerTraffic(self._index, self._messages, self._peers.sent_bytes)

    def receivers(self, step: int) -> tuple[tuple[int, ...], Shares]:
        """To whom this party sends at a step, and which shares where they are not equal."""
        receivers, _, shares = self._neighbours(step)
        return receivers, shares

    def begin(self, step: int) -> None:
        """Start a new average at this step: what is still under way belongs to an average that has ended."""
        self._taken = step - 1
        self._edges = EdgeTotals()
        for old in [known for known in self._arrived if known < step]:
            self._waiting -= len(self._arrived.pop(old))

    async def send(self, step: int, portions: Mapping[int, Mass]) -> None:
        """Push a step's portions, one for each receiver."""
        totals: dict[int, RunningTotal] = {}
        if self._patience is not None:
            self._edges, totals = push(self._edges, portions)
        encoded: dict[int, tuple[Message, Blobs]] = {}  # receivers with equal shares get one and the same portion
        for receiver, mass in portions.items():
            total = totals.get(receiver)
            content = id(total or mass)
            if content not in encoded:
                blobs: Blobs = deque()
                encoded[content] = encode_push_sum(self._gate.release(step, mass, total), blobs), blobs
            message, blobs = encoded[content]
            self._messages += 1
            try:
                await self._peers.push(receiver, blobs.copy(), push_sum=message)
            except PeerLost:
                if self._patience is None:
                    raise
                # Robust: the next total on this edge carries what this one would have brought.

    async def receive(self, step: int) -> dict[int, Mass]:
        """What came for a step, by sender: everything that is due, or (robust) what came in time."""
        _, senders, _ = self._neighbours(step)
        await self._wait(step, senders)
        if self._patience is not None:
            return self._news(step)
        found = self._pop(step)
        if found.keys() != senders:
            raise MessageInvalid(f"step {step}: portions came from {sorted(found)}, due are those of {sorted(senders)}")
        return {sender: portion.mass for sender, portion in found.items() if portion.mass is not None}

    def _take(self, sender: int, message: Any, blobs: Blobs) -> None:
        portion = decode_push_sum(message, blobs)
        if (portion.total is None) != (self._patience is None):
            raise MessageInvalid("push_sum: portions and running totals do not mix: see the run's `delivery`")
        if portion.step <= self._taken and portion.mass is not None:
            return  # a repeated one
        known = self._arrived.setdefault(portion.step, {})
        if sender not in known:
            if self._waiting >= self._most_waiting:
                raise PeerFlooded(f"more than {self._most_waiting} portions wait here: the parties are out of step")
            known[sender] = portion
            self._waiting += 1
        if self._ready is not None and not self._ready.done() and self._is_complete():
            self._ready.set_result(None)

    def _is_complete(self) -> bool:
        step, senders = self._due
        if senders <= self._arrived.get(step, {}).keys():
            return True
        if self._patience is None:
            return False
        # A later total on the same edge says that the one of this step is lost, or was overtaken.
        later = {sender for known, found in self._arrived.items() if known >= step for sender in found}
        return senders <= later

    async def _wait(self, step: int, senders: frozenset[int]) -> None:
        self._due = (step, senders)
        if self._is_complete():
            return
        self._ready = asyncio.get_running_loop().create_future()
        try:
            if self._patience is None:
                await self._ready
            else:
                await asyncio.wait([self._ready], timeout=self._patience)
        finally:
            self._ready = None

    def _pop(self, step: int) -> dict[int, ReceivedPortion]:
        self._taken = max(self._taken, step)
        found = self._arrived.pop(step, {})
        self._waiting -= len(found)
        return found

    def _news(self, step: int) -> dict[int, Mass]:
        """What the newest totals up to a step bring beyond those that were seen before."""
        found: dict[int, Mass] = {}
        for known in sorted(past for past in self._arrived if past <= step):
            for sender, portion in self._pop(known).items():
                if portion.total is None:
                    continue
                self._edges, news = absorb(self._edges, sender, portion.total)
                if news is not None:
                    found[sender] = found[sender] + news if sender in found else news
        return found

    def _derive(self, step: int) -> tuple[tuple[int, ...], frozenset[int], Shares]:
        matrix = _links(self._plan, step)
        receivers = out_neighbours(matrix, self._index)
        shares = None
        if self._doubly_stochastic:
            weights = metropolis_weights(matrix)
            shares = {receiver: float(weights[receiver, self._index]) for receiver in receivers}
        return receivers, frozenset(in_neighbours(matrix, self._index)), shares
