"""A small HTTP proxy that knows CONNECT, as companies put between their networks and others."""

import asyncio
import threading
from typing import Self

from parley.services.wire.tunnels import SocketSide, splice


class ConnectProxy:
    """Runs in a thread of its own; remembers what it was asked to connect to."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.address = ""
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _run(self) -> None:
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        host, port = server.sockets[0].getsockname()
        self.address = f"http://{host}:{port}"
        self._started.set()
        self._loop.run_forever()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        method, target, _ = head.split("\r\n")[0].split(" ")
        if method != "CONNECT":
            writer.write(b"HTTP/1.1 405 Method Not Allowed\r\n\r\n")
            writer.close()
            return
        self.asked.append(target)
        host, _, port = target.rpartition(":")
        far = SocketSide(*await asyncio.open_connection(host, int(port)))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await splice(SocketSide(reader, writer), far)
        await far.close()
        writer.close()
