"""What the wire itself can do: bare gRPC and raw TCP in the layout of a federation.

One hub process fans a message out to every echo process and waits for all answers, as a coordinator does with its
parties. Nothing is computed, encoded or checked. `python -m benchmarks.echo serve` is one echo process; `Hub` starts
the hub and asks it for measurements, one JSON line each.

Bare gRPC is `grpc.aio` with bytes as messages, one bidirectional stream for each echo and default options but for the
message size; with mutual TLS unless a measurement says otherwise. Raw TCP is blocking sockets without TLS.
"""

import asyncio
import contextlib
import json
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import grpc
import numpy as np

from parley.services.wire.certificates import load_identity, tls_name
from parley.services.wire.transport import channel_credentials

METHOD = "/echo/Exchange"
SINGLE = "/echo/Answer"
"""One message, which comes back."""
OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
WARM_UP = 20
SIZES = struct.Struct("<QQ")
"""First message of a stream or connection: bytes of every later message down, and of every answer."""

Transport = Literal["grpc+mtls", "grpc", "tcp"]


@dataclass(frozen=True)
class Measurement:
    """One fan-out to measure."""

    transport: Transport
    addresses: tuple[str, ...]
    down: int
    """Bytes of a message to an echo."""
    up: int
    """Bytes of its answer."""
    steps: int
    average: bool = False
    """Whether the hub averages the answers as float32 arrays."""


class HubEnded(RuntimeError):
    """The hub process stopped in the middle of a measurement."""


@dataclass
class Hub:
    """The hub and its echoes as processes; `with` starts and stops them."""

    names: Sequence[str]
    certificates: Path
    """Folder with one identity for each echo, and `coordinator` for the hub."""

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "parley.benchmarks.echo"]
        self._echoes = [
            subprocess.Popen([*command, "serve", str(self.certificates / name)], stdout=subprocess.PIPE, text=True)
            for name in self.names
        ]
        self.ports = [json.loads(_line(echo)) for echo in self._echoes]
        self._hub = subprocess.Popen(
            [*command, "hub", str(self.certificates / "coordinator"), *self.names],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in (self._hub, *self._echoes):
            process.terminate()
            process.wait()

    @property
    def pids(self) -> list[int]:
        """The hub's and the echoes' processes."""
        return [process.pid for process in (self._hub, *self._echoes)]

    def addresses(self, transport: Transport, count: int) -> tuple[str, ...]:
        """Where the first echoes listen."""
        return tuple(f"127.0.0.1:{ports[transport]}" for ports in self.ports[:count])

    def seconds(self, measurement: Measurement) -> float:
        """Seconds of one step."""
        assert self._hub.stdin is not None  # noqa: S101 (it was opened as a pipe)
        self._hub.stdin.write(json.dumps(asdict(measurement)) + "\n")
        self._hub.stdin.flush()
        return float(json.loads(_line(self._hub))["seconds"]) / measurement.steps


@contextlib.contextmanager
def echo_process(identity: Path) -> Iterator[tuple[int, dict[str, int]]]:
    """One echo by itself: its process, and its port for each transport."""
    process = subprocess.Popen(
        [sys.executable, "-m", "parley.benchmarks.echo", "serve", str(identity)], stdout=subprocess.PIPE, text=True
    )
    try:
        yield process.pid, json.loads(_line(process))
    finally:
        process.terminate()
        process.wait()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None  # noqa: S101 (it was opened as a pipe)
    line = process.stdout.readline()
    if not line:
        raise HubEnded(f"{process.args!r} ended: its message is above")
    return line


# The echo process.


async def _answer(requests: AsyncIterator[bytes], _: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
    sizes = await anext(requests)
    answer = bytes(SIZES.unpack(sizes)[1])
    async for _message in requests:
        yield answer


async def _answer_once(request: bytes, _: grpc.aio.ServicerContext) -> bytes:
    return request


async def _serve(identity_directory: Path) -> None:
    identity = load_identity(identity_directory)
    server = grpc.aio.server(options=OPTIONS)
    handlers = {
        METHOD: grpc.stream_stream_rpc_method_handler(_answer),
        SINGLE: grpc.unary_unary_rpc_method_handler(_answer_once),
    }
    for path, handler in handlers.items():
        service, method = path.strip("/").split("/")
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, {method: handler})])
    credentials = grpc.ssl_server_credentials(
        [(identity.private_key, identity.certificate_chain)], identity.ca, require_client_auth=True
    )
    ports = {
        "grpc+mtls": server.add_secure_port("127.0.0.1:0", credentials),
        "grpc": server.add_insecure_port("127.0.0.1:0"),
        "tcp": _serve_tcp(),
    }
    await server.start()
    print(json.dumps(ports), flush=True)
    await server.wait_for_termination()


def _serve_tcp() -> int:
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=_answer_tcp, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return int(listener.getsockname()[1])


def _answer_tcp(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sizes = bytearray(SIZES.size)
    _receive(connection, sizes)
    down, up = SIZES.unpack(sizes)
    buffer, answer = bytearray(down), bytes(up)
    while _receive(connection, buffer):
        connection.sendall(answer)


def _receive(connection: socket.socket, buffer: bytearray) -> bool:
    """Fill the buffer; false at the end of the connection."""
    view = memoryview(buffer)
    while view:
        count = connection.recv_into(view)
        if not count:
            return False
        view = view[count:]
    return True


# The hub process.


async def _measure_grpc(measurement: Measurement, identity: Path, names: Sequence[str]) -> float:
    channels = [
        _channel(address, measurement.transport, identity, name)
        for address, name in zip(measurement.addresses, names, strict=False)
    ]
    streams = [channel.stream_stream(METHOD)() for channel in channels]
    for stream in streams:
        await stream.write(SIZES.pack(measurement.down, measurement.up))
    message = bytes(measurement.down)

    async def step() -> None:
        # No task for each echo: all are written to before the first is waited for, and awaiting in turn costs least.
        for stream in streams:
            await stream.write(message)
        answers = [await stream.read() for stream in streams]
        if measurement.average:
            _average(answers)

    for _ in range(WARM_UP):
        await step()
    started = time.perf_counter()
    for _ in range(measurement.steps):
        await step()
    seconds = time.perf_counter() - started
    for stream, channel in zip(streams, channels, strict=True):
        stream.cancel()
        await channel.close()
    return seconds


def _channel(address: str, transport: Transport, identity: Path, name: str) -> grpc.aio.Channel:
    options = [*OPTIONS, ("grpc.use_local_subchannel_pool", 1)]
    if transport == "grpc":
        return grpc.aio.insecure_channel(address, options)
    credentials = channel_credentials(load_identity(identity))
    return grpc.aio.secure_channel(
        address, credentials, [*options, ("grpc.ssl_target_name_override", tls_name("party", name))]
    )


def _average(answers: Sequence[Any]) -> Any:
    total = np.zeros(len(answers[0]) // 4, np.float32)
    for answer in answers:
        total += np.frombuffer(answer, np.float32)
    total /= len(answers)
    return total


def _measure_tcp(measurement: Measurement) -> float:
    connections = []
    for address in measurement.addresses:
        host, _, port = address.rpartition(":")
        connections.append(socket.create_connection((host, int(port))))
        connections[-1].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connections[-1].sendall(SIZES.pack(measurement.down, measurement.up))
    message, buffer = bytes(measurement.down), bytearray(measurement.up)

    def step() -> None:
        for connection in connections:
            connection.sendall(message)
        for connection in connections:
            _receive(connection, buffer)

    for _ in range(WARM_UP):
        step()
    started = time.perf_counter()
    for _ in range(measurement.steps):
        step()
    seconds = time.perf_counter() - started
    for connection in connections:
        connection.close()
    return seconds


async def _hub(identity: Path, names: Sequence[str]) -> None:
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        fields = json.loads(line)
        measurement = Measurement(**{**fields, "addresses": tuple(fields["addresses"])})
        if measurement.transport == "tcp":
            seconds = _measure_tcp(measurement)
        else:
            seconds = await _measure_grpc(measurement, identity, names)
        print(json.dumps({"seconds": seconds}), flush=True)


if __name__ == "__main__":
    role, directory, *parties = sys.argv[1:]
    asyncio.run(_hub(Path(directory), parties) if role == "hub" else _serve(Path(directory)))
