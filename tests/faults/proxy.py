"""A TCP proxy that can delay, cut, refuse and swallow, for every connection to one service."""

import asyncio
import contextlib
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass
class Weather:
    """What happens to the bytes that pass; may be changed at any time."""

    delay_seconds: float = 0.0
    """Added to every piece of data in both directions."""
    swallow: bool = False
    """Read and forget: the ends see an open connection on which nothing comes."""
    refuse: bool = False
    """Close new connections at once."""
    bytes_per_second: float = math.inf
    """How fast data pass in each direction."""


class Proxy:
    """Listens on a free port of this machine and passes everything on to `target`."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.weather = Weather()
        self.connections = 0
        self.passed_bytes = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server: asyncio.Server = self._call(asyncio.start_server(self._serve, "127.0.0.1", 0))

    @property
    def address(self) -> str:
        """Where to dial instead of the target."""
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        """Drop every connection that is open now."""
        self._soon(self._drop)

    def close(self) -> None:
        """Stop listening and drop every connection."""
        if self._loop.is_running():
            self._soon(self._server.close)
            self._soon(self._drop)
            self._soon(self._loop.stop)
            self._thread.join(5)

    def _call(self, awaitable: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(awaitable, self._loop).result(10)

    def _soon(self, function: Callable[[], Any]) -> None:
        self._loop.call_soon_threadsafe(function)

    def _drop(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.weather.refuse:
            writer.transport.abort()
            return
        host, _, port = self.target.rpartition(":")
        try:
            onward_reader, onward_writer = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.transport.abort()
            return
        self.connections += 1
        self._writers |= {writer, onward_writer}
        try:
            await asyncio.gather(self._pass_on(reader, onward_writer), self._pass_on(onward_reader, writer))
        finally:
            for one in (writer, onward_writer):
                self._writers.discard(one)
                one.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                if self.weather.swallow:
                    continue
                if seconds := self.weather.delay_seconds + len(data) / self.weather.bytes_per_second:
                    await asyncio.sleep(seconds)
                self.passed_bytes += len(data)
                writer.write(data)
                await writer.drain()
        writer.transport.abort()
