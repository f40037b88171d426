"""The server of the page: it keeps few connections, and hangs up on those that ask for nothing.

Descriptors that the page takes are missing at gRPC, and anyone may connect before showing a token. So connections are
counted when they are accepted, before TLS; where they are too many, the oldest that waits for its request gives way.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_CONNECTIONS = 100
HANDSHAKE_SECONDS = 5.0
"""TLS must be agreed upon by then."""
REQUEST_SECONDS = 15.0
"""A request must be here as a whole by then, from its connection or its first byte on."""
BACKLOG = 128
PAUSE_SECONDS = 0.2
"""After the system has refused to accept a connection."""

logger = logging.getLogger(__name__)


class TimedConnection(H11Protocol):
    """A connection whose requests must come in time; an answer may take as long as it likes."""

    _deadline: asyncio.TimerHandle | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._expect()

    def data_received(self, data: bytes) -> None:
        """Take a part of a request."""
        if self._deadline is None and self.is_waiting:
            self._expect()
        super().data_received(data)
        if self.cycle is not None and not self.cycle.more_body:
            self._stop_expecting()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is to come."""
        self._stop_expecting()
        super().connection_lost(exc)

    def hang_up(self) -> None:
        """End the connection at once."""
        self._stop_expecting()
        self.transport.abort()

    def _expect(self) -> None:
        self._deadline = self.loop.call_later(REQUEST_SECONDS, self.hang_up)

    def _stop_expecting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class PageServer(uvicorn.Server):
    """A server inside another service's process, which owns the signals."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._handshakes: dict[asyncio.Task[None], None] = {}
        self._connections: dict[TimedConnection, None] = {}
        """Both in the order of their coming."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals alone."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections on sockets that are bound already."""
        self.servers = []
        self._accepting = [asyncio.create_task(self._accept(listener)) for listener in sockets or ()]
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more, and end what is open."""
        for task in [*self._accepting, *self._handshakes]:
            task.cancel()
        await asyncio.gather(*self._accepting, *self._handshakes, return_exceptions=True)
        await super().shutdown(sockets)

    async def _accept(self, listener: socket.socket) -> None:
        listener.setblocking(False)
        listener.listen(BACKLOG)
        while True:
            try:
                accepted, _ = await asyncio.get_running_loop().sock_accept(listener)
            except OSError as error:  # such as too many open files: some will be closed soon
                logger.warning("a connection to the page could not be accepted (%s)", error.strerror)
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            if self._is_full and not self._make_room():
                accepted.close()
                continue
            task = asyncio.create_task(self._admit(accepted))
            self._handshakes[task] = None
            task.add_done_callback(self._handshakes.pop)

    @property
    def _is_full(self) -> bool:
        self._connections = {each: None for each in self._connections if not each.transport.is_closing()}
        return len(self._handshakes) + len(self._connections) >= MOST_CONNECTIONS

    def _make_room(self) -> bool:
        """Hang up on the oldest connection that asks for nothing; false if all are being served."""
        handshake = next((task for task in self._handshakes if not task.cancelling()), None)
        if handshake is not None:
            handshake.cancel()
            return True
        waiting = next((each for each in self._connections if each.is_waiting), None)
        if waiting is not None:
            waiting.hang_up()
        return waiting is not None

    async def _admit(self, accepted: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        connection = TimedConnection(self.config, self.server_state, {}, loop)
        secure, patience = self.config.ssl, HANDSHAKE_SECONDS if self.config.ssl else None
        try:
            await loop.connect_accepted_socket(lambda: connection, accepted, ssl=secure, ssl_handshake_timeout=patience)
        except OSError:  # no TLS, or hung up: nobody to tell
            accepted.close()
        except asyncio.CancelledError:
            accepted.close()
            raise
        else:
            self._connections[connection] = None
