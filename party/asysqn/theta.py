"""Sums of θ that any party of an AsySQN session asks for and opens itself, while the others go on with their own work.

A request is a count and the name of a batch, sent straight to every peer. Requests wait in one queue and are answered
together, in a thread of their own; partial sums then climb the requester's trees (or go straight to it, under masks
that cancel). A sum that does not come in time is given up, and its number stays used.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Executor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parley.party.peers import PeerFlooded, PeerLost, Peers
from parley.party.tree_sums import TREES, climb
from parley.privacy.release import Addend, OpenedSum, Release, TreeName, TreeSum
from parley.privacy.requested_sums import RequestedSums
from parley.protocols.asysqn.codec import (
    decode_partial,
    decode_request,
    encode_partial,
    encode_request,
    encode_share,
)
from parley.protocols.asysqn.messages import RowsName, ThetaRequest
from parley.protocols.tensor.codec import Blobs, MessageInvalid

Vector = NDArray[np.float64]
Answer = Callable[[Sequence[tuple[int, RowsName]]], list[Vector]]
"""Shares of θ at the party's present w, for several requests."""
Key = tuple[str, int]
"""Tree (or `share`) and sender."""


class ThetaPlane:
    """One party's part in everybody's sums, its own included."""

    def __init__(
        self,
        index: int,
        parties: int,
        peers: Peers,
        sums: RequestedSums,
        answer: Answer,
        worker: Executor,
        *,
        most_waiting: int,
        seconds: float,
    ) -> None:
        self._index, self._others = index, [party for party in range(parties) if party != index]
        self._peers, self._sums, self._answer, self._worker = peers, sums, answer, worker
        self._most_waiting, self._seconds = most_waiting, seconds
        self._waiting: deque[tuple[int, ThetaRequest]] = deque()
        self._news = asyncio.Event()
        self._arrived: list[dict[int, dict[Key, asyncio.Future[TreeSum | Addend]]]] = [{} for _ in range(parties)]
        self._done = [0] * parties
        self._tasks: set[asyncio.Task[None]] = set()
        self._round = 0
        self.answered = 0
        """Requests of others that were answered: how often others have called."""
        self.failure: Exception | None = None
        """What stopped this party from answering."""
        peers.on("theta_request", self._take_request)
        peers.on("partial_theta", self._take_partial)
        self._spawn(self._answer_all())

    async def read(self, rows: RowsName, own: Vector) -> OpenedSum:
        """Ask everyone for their share of θ on some rows, and open the sum.

        Raises:
            PeerLost: if a party cannot be reached or does not answer in time.
        """
        self._round += 1
        request = ThetaRequest(self._round, rows)
        try:
            async with asyncio.timeout(self._seconds):
                message = encode_request(request)
                parts = [self._peers.push(party, deque(), theta_request=message) for party in self._others]
                total, _ = await asyncio.gather(self._open(request.round, own), asyncio.gather(*parts))
                return total
        except TimeoutError:
            raise PeerLost(f"a sum was not complete within {self._seconds:g} s") from None
        finally:
            self._end(self._index, request.round)

    async def close(self) -> None:
        """Stop answering."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _open(self, number: int, own: Vector) -> OpenedSum:
        if self._sums.by_trees:
            gate = self._sums.tree_gate(self._index)
            gate.begin(number, own)
            values, _ = await asyncio.gather(*(self._climb(self._index, number, tree) for tree in TREES))
            assert values is not None  # noqa: S101 (the requester is the root of the tree of values)
            masks = await self._part(self._index, number, ("masks root", self._sums.mask_roots[self._index]))
            assert isinstance(masks, TreeSum)  # noqa: S101 (_take_partial has looked)
            return self._sums.open_trees(values.content, masks)
        addends = {self._index: self._sums.gate(self._index).release(number, own).content}
        for party in self._others:
            part = await self._part(self._index, number, ("share", party))
            assert isinstance(part, Addend)  # noqa: S101 (_take_partial has looked)
            addends[party] = part
        return self._sums.open([addends[party] for party in sorted(addends)])

    async def _answer_all(self) -> None:
        """Answer whatever waits, all at once, and again."""
        loop = asyncio.get_running_loop()
        while True:
            await self._news.wait()
            self._news.clear()
            requests, self._waiting = list(self._waiting), deque()
            if not requests:
                continue
            named = [(requester, request.rows) for requester, request in requests]
            try:
                shares = await loop.run_in_executor(self._worker, self._answer, named)
            except ArithmeticError as error:  # this party has diverged; the coordinator is told at its next look
                self.failure = error
                return
            for (requester, request), share in zip(requests, shares, strict=True):
                self._spawn(self._contribute(requester, request.round, share))

    async def _contribute(self, requester: int, number: int, share: Vector) -> None:
        try:
            async with asyncio.timeout(self._seconds):
                if self._sums.by_trees:
                    self._sums.tree_gate(requester).begin(number, share)
                    await asyncio.gather(*(self._climb(requester, number, tree) for tree in TREES))
                else:
                    blobs: Blobs = deque()
                    release = self._sums.gate(requester).release(number, share)
                    await self._send(requester, encode_share(requester, number, release, blobs), blobs)
            self.answered += 1
        except (TimeoutError, PeerLost):
            return  # the requester has given up or will, and asks anew
        finally:
            self._end(requester, number)

    async def _climb(self, requester: int, number: int, tree: TreeName) -> Release[TreeSum] | None:
        """This party's part of a requester's tree; the sum itself where the requester is this party."""

        async def part(child: int) -> TreeSum:
            found = await self._part(requester, number, (tree, child))
            assert isinstance(found, TreeSum)  # noqa: S101 (_take_partial has looked)
            return found

        async def send(parent: int, release: Release[TreeSum]) -> None:
            blobs: Blobs = deque()
            await self._send(parent, encode_partial(requester, release, blobs), blobs)

        root = await climb(self._sums.tree_gate(requester), number, tree, part, send)
        if root is None or requester == self._index:
            return root
        await send(requester, root)
        return None

    async def _send(self, receiver: int, part: Any, blobs: Blobs) -> None:
        await self._peers.push(receiver, blobs, partial_theta=part)

    def _take_request(self, sender: int, message: Any, _: Blobs) -> None:
        if len(self._waiting) >= self._most_waiting:
            raise PeerFlooded(f"{self._most_waiting} requests wait here: ask again later")
        self._waiting.append((sender, decode_request(message)))
        self._news.set()

    def _take_partial(self, sender: int, message: Any, blobs: Blobs) -> None:
        requester, number, part = decode_partial(message, blobs)
        if requester >= len(self._arrived) or isinstance(part, TreeSum) != self._sums.by_trees:
            raise MessageInvalid("a partial sum came for a party, or a way of summing, that this session has not")
        if isinstance(part, TreeSum):
            from_root = requester == self._index and part.tree == "masks" and sender == self._sums.mask_roots[requester]
            key: Key = ("masks root" if from_root else part.tree, sender)
        else:
            key = ("share", sender)
        if number > self._done[requester]:
            future = self._future(requester, number, key)
            if not future.done():  # a repeated one is the same one
                future.set_result(part)

    async def _part(self, requester: int, number: int, key: Key) -> TreeSum | Addend:
        return await self._future(requester, number, key)

    def _future(self, requester: int, number: int, key: Key) -> asyncio.Future[TreeSum | Addend]:
        rounds = self._arrived[requester]
        if number not in rounds and len(rounds) >= self._most_waiting:
            raise PeerFlooded(f"sums of {len(rounds)} rounds wait here: the parties are out of step")
        parts = rounds.setdefault(number, {})
        if key not in parts:
            parts[key] = asyncio.get_running_loop().create_future()
        return parts[key]

    def _end(self, requester: int, number: int) -> None:
        """Forget a sum that is done, or was given up, and older ones that never began here."""
        self._done[requester] = max(self._done[requester], number)
        for old in [known for known in self._arrived[requester] if known <= number]:
            del self._arrived[requester][old]
        if self._sums.by_trees:
            self._sums.tree_gate(requester).abandon(number)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finish)

    def _finish(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self.failure = self.failure or error
