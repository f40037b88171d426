"""How shares of θ reach the party that asked for their sum, hidden: up its two trees, or under masks that cancel."""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from parley.party.mailbox import Mailbox
from parley.party.peers import Peers
from parley.party.roles import Begun
from parley.party.tree_sums import TREES, subtree_sum
from parley.privacy.release import Addend, OpenedSum, TreeName, TreeSum
from parley.privacy.requested_sums import RequestedMaskedSums, RequestedTreeSums
from parley.protocols.asysqn.codec import decode_partial, encode_partial, encode_share
from parley.protocols.asysqn.settings import AsysqnSpec
from parley.protocols.tensor.codec import Blobs, MessageInvalid

Vector = NDArray[np.float64]


class ThetaSums(Protocol):
    """One party's part in everybody's sums. A requester numbers its sums; a number is used once.

    `question` is the request as it came: a sum opens only if everybody was asked the same.
    """

    async def contribute(self, requester: int, number: int, share: Vector, question: bytes) -> None:
        """Add this party's share to a sum of another party, and send it on."""

    async def open(self, number: int, share: Vector, question: bytes) -> OpenedSum:
        """Open a sum of this party, with its own share, once everybody else's has come."""

    def end(self, requester: int, number: int) -> None:
        """Forget a sum that is done or was given up, and older ones of that requester."""


class SumsUpTrees:
    """Partial sums climb the requester's two trees: shares plus masks to the requester, masks to another root."""

    def __init__(self, index: int, sums: RequestedTreeSums, peers: Peers, most_waiting: int) -> None:
        self._index, self._sums, self._peers = index, sums, peers
        self._parts = [Mailbox[TreeSum](most_waiting) for _ in sums.gates]
        """Of the sums of each requester."""
        peers.on("partial_theta", self._take)

    async def contribute(self, requester: int, number: int, share: Vector, question: bytes) -> None:
        """Send both partial sums to this party's parents; what ends here, to the requester."""
        self._sums.gates[requester].begin(number, share, told_all(question, len(self._sums.gates)))
        await asyncio.gather(*(self._pass_on(requester, number, tree) for tree in TREES))

    async def open(self, number: int, share: Vector, question: bytes) -> OpenedSum:
        """The values end here; the masks are passed on as for any sum, and come back from their root."""
        gate, parts = self._sums.gates[self._index], self._parts[self._index]
        gate.begin(number, share, told_all(question, len(self._sums.gates)))
        values, _, masks = await asyncio.gather(
            subtree_sum(gate, parts, number, "values"),
            self._pass_on(self._index, number, "masks"),
            parts.get(self._sums.mask_roots[self._index], number, "masks"),
        )
        return self._sums.open(values.content, masks)

    def end(self, requester: int, number: int) -> None:
        """Drop the parts, and this party's own summands where they were not sent."""
        self._parts[requester].close(number)
        self._sums.gates[requester].abandon(number)

    async def _pass_on(self, requester: int, number: int, tree: TreeName) -> None:
        gate = self._sums.gates[requester]
        release, parent = await subtree_sum(gate, self._parts[requester], number, tree), gate.parent(tree)
        blobs: Blobs = deque()
        message = encode_partial(requester, release, blobs)
        await self._peers.push(requester if parent is None else parent, blobs, partial_theta=message)

    def _take(self, sender: int, message: Any, blobs: Blobs) -> None:
        requester, number, part = decode_partial(message, blobs)
        if requester >= len(self._parts) or not isinstance(part, TreeSum):
            raise MessageInvalid("a partial sum came for no party of this session, or for sums that climb no tree")
        self._parts[requester].put(sender, number, part.tree, part)


class SumsUnderMasks:
    """Every share goes straight to the requester, under masks that cancel in the sum (or in the clear)."""

    def __init__(self, index: int, sums: RequestedMaskedSums, peers: Peers, most_waiting: int) -> None:
        self._index, self._sums, self._peers = index, sums, peers
        self._others = [party for party in range(len(sums.gates)) if party != index]
        self._parts = Mailbox[Addend](most_waiting)
        """Of this party's own sums."""
        peers.on("partial_theta", self._take)

    async def contribute(self, requester: int, number: int, share: Vector, question: bytes) -> None:
        """Send the share to the requester."""
        blobs: Blobs = deque()
        release = self._sums.gates[requester].release(number, share, told=told_all(question, len(self._sums.gates)))
        message = encode_share(requester, number, release, blobs)
        await self._peers.push(requester, blobs, partial_theta=message)

    async def open(self, number: int, share: Vector, question: bytes) -> OpenedSum:
        """Wait for everybody's share."""
        own = self._sums.gates[self._index].release(number, share, told=told_all(question, len(self._sums.gates)))
        addends = {self._index: own.content}
        for party in self._others:
            addends[party] = await self._parts.get(party, number, "share")
        return self._sums.open([addends[party] for party in sorted(addends)])

    def end(self, requester: int, number: int) -> None:
        """Drop the shares of a sum of this party; those of others have not come here."""
        if requester == self._index:
            self._parts.close(number)

    def _take(self, sender: int, message: Any, blobs: Blobs) -> None:
        requester, number, part = decode_partial(message, blobs)
        if requester != self._index or not isinstance(part, Addend):
            raise MessageInvalid("a share came for another party, or for sums that climb trees")
        self._parts.put(sender, number, "share", part)


class CountedSums:
    """The same sums, each counted in the party's register of exposure before its share leaves."""

    def __init__(self, sums: ThetaSums, count: Callable[[], None]) -> None:
        self._sums, self._count = sums, count

    async def contribute(self, requester: int, number: int, share: Vector, question: bytes) -> None:
        """Count, then add the share."""
        self._count()
        await self._sums.contribute(requester, number, share, question)

    async def open(self, number: int, share: Vector, question: bytes) -> OpenedSum:
        """Count, then add the share and open."""
        self._count()
        return await self._sums.open(number, share, question)

    def end(self, requester: int, number: int) -> None:
        """Forget a sum."""
        self._sums.end(requester, number)


def told_all(question: bytes, parties: int) -> Mapping[int, bytes]:
    """The same question for everyone."""
    return dict.fromkeys(range(parties), question)


def sums_of(begun: Begun) -> ThetaSums:
    """The way of summing that the run asks for."""
    index, settings = begun.index, begun.spec.privacy.aggregation
    count, most_waiting = len(begun.spec.parties), begun.spec.settings(AsysqnSpec).asynchrony.waiting_requests

    def secrets(requester: int) -> Mapping[int, bytes]:
        return begun.secrets(f"asysqn/{requester}")

    beyond = begun.opened.floors.beyond
    if settings.kind == "two_tree":
        trees = RequestedTreeSums(index, count, settings, secrets, beyond)
        return CountedSums(SumsUpTrees(index, trees, begun.peers, most_waiting), begun.count_sum)
    sums = RequestedMaskedSums(index, count, settings, secrets, beyond)
    return CountedSums(SumsUnderMasks(index, sums, begun.peers, most_waiting), begun.count_sum)
