"""Sums up aggregation trees: what the children sent, plus this party's own summand, goes on to the parent."""

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Any

from parley.numerics.arrays import Vector
from parley.party.mailbox import Mailbox
from parley.party.peers import PeerLost, Peers
from parley.privacy.release import Addend, Release, TreeGate, TreeName, TreeSum
from parley.protocols.aggregation.codec import decode_tree_sum, encode_tree_sum
from parley.protocols.tensor.codec import Blobs

TREES: tuple[TreeName, TreeName] = ("values", "masks")
MOST_SUMS = 32
"""Sums of which a peer's parts may wait here. The coordinator leads all parties through one sum after the other, so
that a peer is never more than one ahead."""


async def subtree_sum(gate: TreeGate, parts: Mailbox[TreeSum], number: int, tree: TreeName) -> Release[TreeSum]:
    """This party's summand and those of everyone below it in a tree, once its children's parts are here."""
    received = [(child, await parts.get(child, number, tree)) for child in gate.children(number, tree)]
    return gate.forward(number, tree, received)


class TreeSums:
    """One party's part in the sums that a coordinator asks for, where they climb two trees."""

    def __init__(self, gate: TreeGate, peers: Peers, seconds: float) -> None:
        """A sum that takes longer than `seconds` has failed."""
        self._gate, self._peers, self._seconds = gate, peers, seconds
        self._parts = Mailbox[TreeSum](MOST_SUMS)
        peers.on("masked_theta", self._take)

    async def add(self, number: int, draft: Vector, told: Mapping[int, bytes] | None = None) -> Release[Addend]:
        """Add this party's share on both trees; the sums that end here are what the coordinator is told.

        `told` is what this party and each other one were both told: where it differs, the sum does not open.

        Raises:
            PeerLost: if a child's part does not come in time, or a parent cannot be reached.
        """
        self._gate.begin(number, draft, told)
        try:
            async with asyncio.timeout(self._seconds):
                ends = await asyncio.gather(*(self._pass_on(number, tree) for tree in TREES))
        except TimeoutError:
            raise PeerLost(f"round {number}: a partial sum did not come within {self._seconds:g} s") from None
        finally:
            self._parts.close(number)
        return self._gate.addend([end for end in ends if end is not None])

    async def _pass_on(self, number: int, tree: TreeName) -> Release[TreeSum] | None:
        release, parent = await subtree_sum(self._gate, self._parts, number, tree), self._gate.parent(tree)
        if parent is None:
            return release
        blobs: Blobs = deque()
        await self._peers.push(parent, blobs, masked_theta=encode_tree_sum(release, blobs))
        return None

    def _take(self, sender: int, message: Any, blobs: Blobs) -> None:
        part = decode_tree_sum(message, blobs)
        self._parts.put(sender, part.round, part.tree, part)
