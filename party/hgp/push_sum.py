"""Push-Sum between the parties of a session: a step's portions go to the neighbours that the network gives it.

Both forms of delivery wait for everything that is due, so that a party that is silent for a while delays the others
and changes no figure: where its neighbours went on without it they would push mass into nowhere and divide by weights
that vanish. Synchronous delivery trusts the links. Robust delivery sends running totals of each edge, and sends them
again until the receiver is known to have them; a duplicate brings nothing.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from google.protobuf.message import Message

from parley.numerics.networks import (
    NetworkPlan,
    Weights,
    in_neighbours,
    links,
    metropolis_weights,
    out_neighbours,
    push_weights,
)
from parley.numerics.push_sum import EdgeTotals, Mass, MassMismatch, RunningTotal, absorb, push
from parley.party.peers import PeerFlooded, PeerLost, Peers
from parley.privacy.release import ClearPortionGate
from parley.protocols.decentralised.messages import PeerTraffic
from parley.protocols.hgp.codec import ReceivedPortion, decode_push_sum, encode_push_sum
from parley.protocols.tensor.codec import Blobs, MessageInvalid

Shares = Mapping[int, float] | None
LONGEST_WAIT = 32
"""By how much the time between two repetitions may grow while nothing is heard."""
WEIGHT_TOLERANCE = 1e-9
"""How far a party's weight may be from the one that the network gives it; rounding stays far below."""


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
        window: int = 1,
    ) -> None:
        """`patience_seconds` make delivery robust: after so long without progress everything unconfirmed goes again.

        `window` is within how many steps a time-varying network joins all its parties.
        """
        self._index, self._plan, self._peers = index, plan, peers
        self._doubly_stochastic, self._patience, self._most_waiting = doubly_stochastic, patience_seconds, most_waiting
        self._gate = ClearPortionGate()
        self._arrived: dict[int, dict[int, ReceivedPortion]] = {}
        """By step, then by sender."""
        self._waiting = 0
        self._taken = -1
        """The last step whose portions were used."""
        self._edges = EdgeTotals()
        self._unconfirmed: dict[int, dict[int, tuple[Message, Blobs]]] = {}
        """Robust: by receiver, then by step, what it may not have got."""
        self._lead = plan.size * (1 if plan.static else window)
        """No party is further ahead of another one than this: news of all goes round in as many steps."""
        self._resending: asyncio.Task[None] | None = None
        self._due: tuple[int, frozenset[int]] = (-1, frozenset())
        self._ready: asyncio.Future[None] | None = None
        self._messages = 0
        self._sent = 0
        """Steps that were sent, each counted once."""
        self._weights, self._weighed = np.ones(plan.size), 0
        """Every party's weight before step `_weighed`, as the network alone determines it."""
        self._derived: Callable[[int], tuple[tuple[int, ...], frozenset[int], Shares]] = lru_cache(8)(self._derive)
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
        self._weights, self._weighed = np.ones(self._plan.size), step
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
            if self._patience is not None:
                self._confirm(receiver, step - self._lead)
                self._unconfirmed.setdefault(receiver, {})[step] = encoded[content]
            await self._deliver(receiver, *encoded[content])
        self._sent += 1
        if self._patience is not None and self._resending is None:
            self._resending = asyncio.create_task(self._resend(self._patience))

    async def receive(self, step: int) -> dict[int, Mass]:
        """What came for a step, by sender: everything that is due."""
        _, senders, _ = self._neighbours(step)
        await self._wait(step, senders)
        found = self._pop(step)
        if found.keys() != senders:
            raise MessageInvalid(f"step {step}: portions came from {sorted(found)}, due are those of {sorted(senders)}")
        if self._patience is not None:
            return self._news(found)
        return {sender: portion.mass for sender, portion in found.items() if portion.mass is not None}

    def check_weight(self, step: int, weight: float) -> None:
        """Refuse to go on with a weight before `step` that is not the network's: mass was lost, late or taken twice.

        The links of all steps are known to everyone, and with them every weight.
        """
        if self._patience is None:
            return  # every portion is there, by the check of `receive`
        while self._weighed < step:
            mixing = _mixing(self._plan, self._schedule_step(self._weighed), self._doubly_stochastic)
            self._weights, self._weighed = mixing @ self._weights, self._weighed + 1
        due = float(self._weights[self._index])
        if not abs(weight - due) <= WEIGHT_TOLERANCE * due:
            raise MassMismatch(
                f"step {step}: this party's Push-Sum weight is {weight:g} where the network gives {due:g}: messages of "
                "an outage were lost or taken twice, so the average would be wrong; resume the run from its checkpoint"
            )

    def confirm_before(self, step: int) -> None:
        """What was sent before `step` need not be sent again: every party has told the coordinator that it has it."""
        for receiver in self._unconfirmed:
            self._confirm(receiver, step)

    def confirm_all(self) -> None:
        """Nothing need be sent again: every party has told the coordinator that its average has ended."""
        self._unconfirmed.clear()

    async def close(self) -> None:
        """Send nothing again."""
        self.confirm_all()
        if self._resending is not None:
            self._resending.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._resending

    async def _deliver(self, receiver: int, message: Message, blobs: Blobs) -> None:
        self._messages += 1
        try:
            await self._peers.push(receiver, blobs.copy(), push_sum=message)
        except PeerLost:
            if self._patience is None:
                raise
            # Robust: it is sent again until the receiver has it, or the stretch's deadline ends the wait.

    async def _resend(self, seconds: float) -> None:
        """Repeat what may have been lost whenever this party has sent no new step for a while.

        The waits grow while nothing moves: on a slow machine repetitions would otherwise be what keeps it slow.
        """
        delay = seconds
        while True:
            before = self._sent
            await asyncio.sleep(delay)
            if self._sent != before:
                delay = seconds
                continue
            await asyncio.gather(*(self._deliver_again(receiver) for receiver in list(self._unconfirmed)))
            delay = min(2 * delay, LONGEST_WAIT * seconds)

    async def _deliver_again(self, receiver: int) -> None:
        for message, blobs in list(self._unconfirmed.get(receiver, {}).values()):
            await self._deliver(receiver, message, blobs)

    def _take(self, sender: int, message: Any, blobs: Blobs) -> None:
        portion = decode_push_sum(message, blobs)
        if (portion.total is None) != (self._patience is None):
            raise MessageInvalid("push_sum: portions and running totals do not mix: see the run's `delivery`")
        self._confirm(sender, portion.step)
        if portion.step <= self._taken:
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
        return senders <= self._arrived.get(step, {}).keys()

    def _confirm(self, receiver: int, step: int) -> None:
        # Whoever sends a step has taken all that was due to it at the steps before.
        kept = self._unconfirmed.get(receiver, {})
        for known in [past for past in kept if past < step]:
            del kept[known]

    async def _wait(self, step: int, senders: frozenset[int]) -> None:
        self._due = (step, senders)
        if self._is_complete():
            return
        self._ready = asyncio.get_running_loop().create_future()
        try:
            if self._resending is None:
                await self._ready
                return
            await asyncio.wait([self._ready, self._resending], return_when=asyncio.FIRST_COMPLETED)
            if not self._ready.done():
                await self._resending  # it ends only by an error, which is this step's
        finally:
            self._ready = None

    def _pop(self, step: int) -> dict[int, ReceivedPortion]:
        self._taken = max(self._taken, step)
        found = self._arrived.pop(step, {})
        self._waiting -= len(found)
        return found

    def _news(self, found: Mapping[int, ReceivedPortion]) -> dict[int, Mass]:
        """What the totals of a step bring beyond those of the steps before."""
        news: dict[int, Mass] = {}
        for sender, portion in found.items():
            if portion.total is not None:
                self._edges, brought = absorb(self._edges, sender, portion.total)
                if brought is not None:
                    news[sender] = brought
        return news

    def _neighbours(self, step: int) -> tuple[tuple[int, ...], frozenset[int], Shares]:
        return self._derived(self._schedule_step(step))

    def _schedule_step(self, step: int) -> int:
        """A step with the links of this one: the first, where the network does not change."""
        return 0 if self._plan.static else step

    def _derive(self, step: int) -> tuple[tuple[int, ...], frozenset[int], Shares]:
        matrix = _links(self._plan, step)
        receivers = out_neighbours(matrix, self._index)
        shares = None
        if self._doubly_stochastic:
            weights = _mixing(self._plan, step, True)
            shares = {receiver: float(weights[receiver, self._index]) for receiver in receivers}
        return receivers, frozenset(in_neighbours(matrix, self._index)), shares


# Parties of one process ask for the same steps of the same network.
_links = lru_cache(16)(links)


@lru_cache(16)
def _mixing(plan: NetworkPlan, step: int, doubly_stochastic: bool) -> Weights:
    matrix = _links(plan, step)
    return metropolis_weights(matrix) if doubly_stochastic else push_weights(matrix)
