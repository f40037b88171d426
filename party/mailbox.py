"""Parts of sums that other parties send, kept until this party has come to the sum that they belong to."""

import asyncio
from collections import defaultdict
from typing import Generic, TypeVar

from parley.party.peers import PeerFlooded

Part = TypeVar("Part")
Address = tuple[int, str]
"""The number of a sum, and which of a sender's parts of it: the tree that it climbs, for instance."""


class Mailbox(Generic[Part]):
    """The parts of one sequence of numbered sums. A part may come before this party waits for it, or after.

    Each sender has a limit of its own: one that sends parts of sums that never happen blocks nobody else.
    """

    def __init__(self, most_sums: int) -> None:
        """Parts of at most so many sums are kept for each sender."""
        self._most_sums = most_sums
        self._kept: defaultdict[int, dict[Address, asyncio.Future[Part]]] = defaultdict(dict)
        """By sender."""
        self._closed = 0

    def put(self, sender: int, number: int, kind: str, part: Part) -> None:
        """Keep a part that came; a part of a sum that is over, and one that is here already, are ignored.

        Raises:
            PeerFlooded: if the sender has parts of too many sums waiting here; this one is not kept.
        """
        if number <= self._closed:
            return
        sums = {known for known, _ in self._kept[sender]}
        if number not in sums and len(sums) >= self._most_sums:
            raise PeerFlooded(f"parts of {len(sums)} sums wait here for one sender: the parties are out of step")
        future = self._future(sender, number, kind)
        if not future.done():
            future.set_result(part)

    async def get(self, sender: int, number: int, kind: str) -> Part:
        """A sender's part of a sum, as soon as it is here."""
        return await self._future(sender, number, kind)

    def close(self, number: int) -> None:
        """Forget a sum that is over, and all before it; whoever still waits for a part of them is cancelled."""
        self._closed = max(self._closed, number)
        for parts in self._kept.values():
            for address in [address for address in parts if address[0] <= number]:
                parts.pop(address).cancel()

    def _future(self, sender: int, number: int, kind: str) -> asyncio.Future[Part]:
        parts = self._kept[sender]
        if (number, kind) not in parts:
            parts[number, kind] = asyncio.get_running_loop().create_future()
        return parts[number, kind]
