"""Byte streams through other byte streams: sides to read from and write to, and sockets that stand for them.

gRPC multiplexes streams and holds back whoever writes faster than the other end reads, so a connection here is one call
and holds at most one piece of data in each direction beside gRPC's own window.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

import grpc

PIECE_BYTES = 256 * 1024
"""Most bytes that travel as one message."""
CLOSE_SECONDS = 2.0
"""How long the last bytes may take to be read."""
LONGEST_PATH = 100
"""Of a socket, in bytes: systems take 104 to 108."""
ENDED = (OSError, EOFError, grpc.aio.AioRpcError, asyncio.InvalidStateError)
"""How a side fails that has ended."""
logger = logging.getLogger(__name__)


class SocketPathTooLong(ValueError):
    """No socket can be made at a path."""


class Side(Protocol):
    """One end of a byte stream."""

    async def read(self) -> bytes:
        """The next bytes; none once the stream has ended."""

    async def write(self, data: bytes) -> None:
        """Send bytes; returns when there is room for more."""


class SocketSide:
    """A connection of this machine."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def read(self) -> bytes:
        """The next bytes; none once the connection has ended."""
        return await self._reader.read(PIECE_BYTES)

    async def write(self, data: bytes) -> None:
        """Send bytes; returns when there is room for more."""
        self._writer.write(data)
        await self._writer.drain()

    async def close(self) -> None:
        """End the connection; what was written is sent first, unless nobody reads it."""
        self._writer.close()
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._writer.wait_closed()
        except TimeoutError:
            self._writer.transport.abort()
        except OSError:
            pass  # it had ended


class CallSide:
    """A call that this process made, whose messages carry `data`."""

    def __init__(self, call: Any, request: Callable[..., Any]) -> None:
        self._call, self._request = call, request

    async def read(self) -> bytes:
        """The next message's bytes; none once the call has ended."""
        message = await self._call.read()
        return b"" if message is grpc.aio.EOF else bytes(message.data)

    async def write(self, data: bytes) -> None:
        """Send a message."""
        await self._call.write(self._request(data=data))


class ServedSide:
    """A call that this process serves, whose messages carry `data`."""

    def __init__(
        self, requests: AsyncIterator[Any], context: grpc.aio.ServicerContext, response: Callable[..., Any]
    ) -> None:
        self._requests, self._context, self._response = requests, context, response

    async def read(self) -> bytes:
        """The next message's bytes; none once the caller has ended."""
        async for request in self._requests:
            return bytes(request.data)
        return b""

    async def write(self, data: bytes) -> None:
        """Send a message."""
        await self._context.write(self._response(data=data))


async def splice(one: Side, other: Side) -> None:
    """Pass bytes both ways until either side ends."""
    ways = [asyncio.create_task(_pass_on(*way)) for way in ((one, other), (other, one))]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.wait(ways)
    for way in ways:
        if not way.cancelled():
            way.result()


async def _pass_on(source: Side, target: Side) -> None:
    with contextlib.suppress(*ENDED):
        while data := await source.read():
            await target.write(data)


class Endpoint:
    """A socket in a private directory of this machine: each connection to it is handed on."""

    def __init__(self, path: Path, hand_on: Callable[[Side], Awaitable[None]]) -> None:
        """`hand_on` has the connection until it returns. Needs a running loop."""
        self.address = socket_address(path)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.unlink(missing_ok=True)  # of a process that was killed
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(path))
        listening.listen()  # from now on whoever dials is kept waiting, not refused
        self._path, self._hand_on = path, hand_on
        self._open: set[asyncio.Task[Any]] = set()
        self._serving = asyncio.create_task(self._serve(listening))

    async def close(self) -> None:
        """End every connection, and take no others."""
        tasks = [self._serving, *self._open]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        self._path.unlink(missing_ok=True)

    async def _serve(self, listening: socket.socket) -> None:
        server = await asyncio.start_unix_server(self._take, sock=listening, limit=PIECE_BYTES)
        async with server:
            await server.serve_forever()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task, side = asyncio.current_task(), SocketSide(reader, writer)
        assert task is not None  # noqa: S101 (asyncio runs this in one)
        self._open.add(task)
        try:
            await self._hand_on(side)
        except asyncio.CancelledError:
            pass  # closed; asyncio would log it
        finally:
            self._open.discard(task)
            await side.close()


def socket_address(path: Path) -> str:
    """The address of a socket file, for gRPC.

    Raises:
        SocketPathTooLong: if no system takes it.
    """
    if len(str(path).encode()) > LONGEST_PATH:
        raise SocketPathTooLong(
            f"{path} is too long a name for a socket ({LONGEST_PATH} bytes at most): choose a shorter `state`"
        )
    return f"unix:{path.absolute()}"
