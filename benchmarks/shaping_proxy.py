"""A TCP proxy that is a link: what passes is late by half a round trip, and all of it shares one line of a given speed.

It stands between the coordinator and its parties, so the line is the coordinator's, with its speed in each direction.
Bytes arrive when the line would have carried the last of them. Windows and slow starts of TCP over a long way are not
in it, and nothing is ever lost.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from parley.benchmarks.counting_proxy import CountingProxy


@dataclass(frozen=True)
class Link:
    """What lies between the coordinator and its parties."""

    rtt: float
    """Milliseconds there and back."""
    speed: float
    """Mbit/s of the coordinator's line, in each direction."""

    def __str__(self) -> str:
        return f"{self.rtt:g} ms, {self.speed:g} Mbit/s"

    def seconds(self, count: int) -> float:
        """What the line takes for so many bytes."""
        return 8 * count / (1e6 * self.speed)

    def bound(self, rounds: float, sent_bytes: float) -> float:
        """Seconds of so many rounds if nothing is computed and one direction is busy at a time."""
        return rounds * self.rtt / 1e3 + self.seconds(int(sent_bytes))


class ShapingProxy(CountingProxy):
    """One listening port for each name, and one line for all of them; `link` may change at any time."""

    def __init__(self, names: Sequence[str], target: Callable[[str], str], link: Link) -> None:
        super().__init__(names, target)
        self.link = link
        self._free = {"there": 0.0, "back": 0.0}
        """When the line will have carried all that it was given, by the loop's clock."""

    async def _pipe(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: str) -> None:
        blocks: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        await asyncio.gather(self._take(reader, blocks, way), self._deliver(blocks, writer))

    async def _take(self, reader: asyncio.StreamReader, blocks: "asyncio.Queue[tuple[float, bytes]]", way: str) -> None:
        """Note for each block when it will arrive; an empty one is the end."""
        clock = asyncio.get_running_loop().time
        try:
            while block := await self._next_block(reader):
                self._free[way] = max(clock(), self._free[way]) + self.link.seconds(len(block))
                blocks.put_nowait((self._free[way] + self.link.rtt / 2e3, block))
        finally:
            blocks.put_nowait((0.0, b""))

    async def _deliver(self, blocks: "asyncio.Queue[tuple[float, bytes]]", writer: asyncio.StreamWriter) -> None:
        clock = asyncio.get_running_loop().time
        try:
            while (arrival := await blocks.get())[1]:
                await asyncio.sleep(max(0.0, arrival[0] - clock()))
                writer.write(arrival[1])
                await writer.drain()
        except ConnectionError:
            pass  # either end may hang up; what has passed is counted
        finally:
            writer.close()
