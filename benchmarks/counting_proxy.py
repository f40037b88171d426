"""A TCP proxy that counts: every byte of TLS and HTTP/2 that passes between two processes, headers of TCP/IP aside."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

BLOCK = 1 << 18


class CountingProxy:
    """One listening port for each name; `target` says where a name's connections go when one comes."""

    def __init__(self, names: Sequence[str], target: Callable[[str], str]) -> None:
        self._names, self._target = names, target
        self._counted = 0
        self._writers: list[asyncio.StreamWriter] = []
        self.addresses: dict[str, str] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        for name in self._names:
            self.addresses[name] = asyncio.run_coroutine_threadsafe(self._listen(name), self._loop).result()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._hang_up(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    @property
    def counted(self) -> int:
        """Bytes so far, both ways."""
        return self._counted

    async def _hang_up(self) -> None:
        for writer in self._writers:
            writer.transport.abort()  # both pipes of the connection end by themselves
        await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}), return_exceptions=True)

    async def _listen(self, name: str) -> str:
        async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            host, _, port = self._target(name).rpartition(":")
            onward_reader, onward_writer = await asyncio.open_connection(host, int(port))
            self._writers += [writer, onward_writer]
            await asyncio.gather(self._pipe(reader, onward_writer, "there"), self._pipe(onward_reader, writer, "back"))

        server = await asyncio.start_server(connect, "127.0.0.1", 0)
        return f"127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def _pipe(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: str) -> None:  # noqa: ARG002
        """Pass on what comes, in one direction."""
        try:
            while block := await self._next_block(reader):
                writer.write(block)
                await writer.drain()
        except ConnectionError:
            pass  # either end may hang up; what has passed is counted
        finally:
            writer.close()

    async def _next_block(self, reader: asyncio.StreamReader) -> bytes:
        """What has come, counted; nothing at the end."""
        try:
            block = await reader.read(BLOCK)
        except ConnectionError:
            return b""  # the other end has hung up
        self._counted += len(block)
        return block
