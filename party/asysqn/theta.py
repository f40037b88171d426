"""A sum of θ, from the party that asks for it to all others and back, while everyone goes on with its own work.

`ThetaRequests.read` sends every other party a request: a count and the name of a batch. `ThetaAnswers` answers whatever
requests wait, together, at this party's newest w. `sums` (the module) brings the shares to the requester, which opens
the sum. A sum that does not come in time is given up, and its number stays used.
"""

import asyncio
from collections import deque
from collections.abc import Coroutine
from concurrent.futures import Executor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parley.party.asysqn.block import Block
from parley.party.asysqn.state import Latest
from parley.party.asysqn.sums import ThetaSums
from parley.party.peers import PeerFlooded, PeerLost, Peers
from parley.privacy.release import OpenedSum
from parley.protocols.asysqn.codec import decode_request, encode_request
from parley.protocols.asysqn.messages import RowsName, ThetaRequest
from parley.protocols.tensor.codec import Blobs

Vector = NDArray[np.float64]
Received = tuple[int, ThetaRequest]
"""Requester and request."""


def question_of(request: ThetaRequest) -> bytes:
    """What a request asks for, to the byte: it goes into the masks of its sum."""
    return encode_request(request).SerializeToString(deterministic=True)


class ThetaRequests:
    """A party's own sums of θ, one after the other."""

    def __init__(self, index: int, parties: int, peers: Peers, sums: ThetaSums, seconds: float) -> None:
        self._index, self._others = index, [party for party in range(parties) if party != index]
        self._peers, self._sums, self._seconds = peers, sums, seconds
        self._number = 0

    async def read(self, rows: RowsName, own: Vector) -> OpenedSum:
        """Ask everyone for their share of θ on some rows, and open the sum.

        Raises:
            PeerLost: if a party cannot be reached or does not answer in time.
        """
        self._number += 1
        number = self._number
        request = ThetaRequest(number, rows)
        message = encode_request(request)
        try:
            async with asyncio.timeout(self._seconds):
                pushes = [self._peers.push(party, deque(), theta_request=message) for party in self._others]
                opening = self._sums.open(number, own, question_of(request))
                opened, _ = await asyncio.gather(opening, asyncio.gather(*pushes))
                return opened
        except TimeoutError:
            raise PeerLost(f"a sum was not complete within {self._seconds:g} s") from None
        finally:
            self._sums.end(self._index, number)


class ThetaAnswers:
    """A party's shares in the sums of others, at its newest w, computed in a thread of their own."""

    def __init__(
        self,
        block: Block,
        latest: Latest,
        peers: Peers,
        sums: ThetaSums,
        worker: Executor,
        *,
        most_waiting: int,
        seconds: float,
    ) -> None:
        self._block, self._latest, self._sums, self._worker = block, latest, sums, worker
        self._most_waiting, self._seconds = most_waiting, seconds
        self._waiting: list[Received] = []
        self._is_answering = False
        self._tasks: set[asyncio.Task[None]] = set()
        self.answered = 0
        """Requests of others that were answered: how often others have called."""
        self.failure: Exception | None = None
        """What stopped this party from answering."""
        peers.on("theta_request", self._take)

    async def close(self) -> None:
        """Stop answering."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _take(self, sender: int, message: Any, _: Blobs) -> None:
        if len(self._waiting) >= self._most_waiting:
            raise PeerFlooded(f"{self._most_waiting} requests wait here: ask again later")
        self._waiting.append((sender, decode_request(message)))
        if not self._is_answering:
            self._is_answering = True
            self._spawn(self._answer())

    async def _answer(self) -> None:
        """Answer all that waits together, then what has come meanwhile."""
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                received, self._waiting = self._waiting, []
                shares = await loop.run_in_executor(self._worker, self._shares, received)
                for (requester, request), share in zip(received, shares, strict=True):
                    self._spawn(self._contribute(requester, request, share))
        finally:
            self._is_answering = False

    def _shares(self, received: list[Received]) -> list[Vector]:
        named = [(requester, request.rows) for requester, request in received]
        return self._block.shares(self._latest.loop_state.state, named)

    async def _contribute(self, requester: int, request: ThetaRequest, share: Vector) -> None:
        try:
            async with asyncio.timeout(self._seconds):
                await self._sums.contribute(requester, request.round, share, question_of(request))
            self.answered += 1
        except (TimeoutError, PeerLost):
            return  # the requester has given up or will, and asks anew
        finally:
            self._sums.end(requester, request.round)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finish)

    def _finish(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self.failure = self.failure or error
