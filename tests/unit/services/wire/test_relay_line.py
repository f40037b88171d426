"""A line to a real relay on this machine, over mutual TLS."""

import asyncio
import contextlib

import grpc
import pytest

from parley.contracts.relay.v1 import relay_service_pb2 as pb
from parley.contracts.relay.v1 import relay_service_pb2_grpc as pb_grpc
from parley.services.relay.servicer import METHODS, REFUSALS, RelayServicer
from parley.services.relay.switchboard import Switchboard
from parley.services.wire import transport
from parley.services.wire.authorisation import Policy
from parley.services.wire.certificates import create_authority, issue
from parley.services.wire.refusals import BoundaryInterceptor
from parley.services.wire.relay_line import RelayLine, RelayPlace, relay_in
from parley.services.wire.routes import RelayUnknown, Routes
from parley.services.wire.transport import listen, make_server, open_channel
from parley.services.wire.tunnels import SocketSide
from tests.unit.services.wire.test_tunnels import until

HELD_BYTES = 32 * 1024 * 1024
"""More than all windows and pieces between two ends together hold."""


class Setting:
    """A relay, a party `bank` behind it whose service echoes, and a party `shop` that dials it."""

    def __init__(self, folder):
        self.folder = folder
        self.authority = create_authority(folder / "authority", "test").parent
        self.relay_identity = issue(self.authority, "hub", "relay", [])
        self.port, self.registered, self.reads = 0, asyncio.Event(), True
        self.switchboard = Switchboard()
        self.open = contextlib.AsyncExitStack()

    async def start(self):
        await self.start_relay()
        service = await asyncio.start_unix_server(self._echo, self.folder / "service")
        self.open.push_async_callback(self._close, service)
        self.bank, self.shop = self.line("bank"), self.line("shop")
        self.task = asyncio.create_task(self.bank.stay_registered(self.folder / "service", self._note))
        await asyncio.wait_for(self.registered.wait(), 20)

    async def start_relay(self):
        self.server = make_server(BoundaryInterceptor(Policy(METHODS), REFUSALS))
        self.switchboard = Switchboard()
        pb_grpc.add_RelayServiceServicer_to_server(RelayServicer(self.switchboard), self.server)
        self.port = listen(self.server, f"127.0.0.1:{self.port}", self.relay_identity)
        await self.server.start()

    def line(self, name):
        identity = issue(self.authority, name, "party", [])
        line = RelayLine(RelayPlace("relay", "hub", f"127.0.0.1:{self.port}"), identity, self.folder / name[0])
        self.open.push_async_callback(line.close)
        return line

    async def dial(self):
        reader, writer = await asyncio.open_unix_connection(self.shop.endpoint("bank").removeprefix("unix:"))
        return SocketSide(reader, writer)

    async def stop(self):
        self.task.cancel()
        await self.open.aclose()
        await self.server.stop(0)

    async def _note(self):
        self.registered.set()

    async def _echo(self, reader, writer):
        with contextlib.suppress(OSError, asyncio.CancelledError):
            while self.reads and (data := await reader.read(1 << 16)):
                writer.write(data)
            await asyncio.Event().wait()

    @staticmethod
    async def _close(service):
        service.close()


@pytest.fixture
async def setting(tmp_path):
    setting = Setting(tmp_path)
    await setting.start()
    yield setting
    await setting.stop()


async def echoed(side, data):
    await side.write(data)
    found = b""
    async with asyncio.timeout(20):
        while len(found) < len(data):
            piece = await side.read()
            assert piece, "the connection has ended"
            found += piece
    return found


async def test_many_connections_at_once_keep_their_bytes_apart(setting):
    sides = [await setting.dial() for _ in range(8)]
    payloads = [bytes([number]) * 100_000 for number in range(8)]
    assert await asyncio.gather(*map(echoed, sides, payloads)) == payloads
    for side in sides:
        await side.close()


async def test_a_reader_that_stops_holds_up_the_writer_and_not_the_relays_memory(setting):
    setting.reads = False
    side, written = await setting.dial(), 0
    with contextlib.suppress(TimeoutError):
        while written < HELD_BYTES:
            await asyncio.wait_for(side.write(bytes(1 << 16)), 1.0)
            written += 1 << 16
    assert written < HELD_BYTES
    await side.close()


async def test_a_line_comes_back_when_its_relay_does(setting):
    assert await echoed(await setting.dial(), b"before") == b"before"
    setting.registered.clear()
    await setting.server.stop(0)
    await setting.start_relay()
    await asyncio.wait_for(setting.registered.wait(), 20)
    assert await echoed(await setting.dial(), b"after") == b"after"


async def test_a_connection_to_a_party_that_is_away_ends(setting, monkeypatch):
    monkeypatch.setattr("parley.services.relay.switchboard.GRACE_SECONDS", 0.0)
    reader, _ = await asyncio.open_unix_connection(setting.shop.endpoint("nobody").removeprefix("unix:"))
    assert await asyncio.wait_for(reader.read(), 20) == b""


async def test_a_line_that_went_silent_is_found_by_pings(tmp_path, monkeypatch):
    """What is between two ends swallows everything, and closes nothing: the registration ends all the same."""
    assert dict(transport.OPTIONS)["grpc.http2.ping_timeout_ms"] <= 10_000
    quick = dict.fromkeys(("grpc.keepalive_time_ms", "grpc.http2.ping_timeout_ms"), 300)
    quick |= {f"grpc.http2.min_{way}ping_interval_without_data_ms": 100 for way in ("", "recv_")}
    monkeypatch.setattr(transport, "OPTIONS", list((dict(transport.OPTIONS) | quick).items()))
    setting = Setting(tmp_path)
    await setting.start_relay()
    silent = asyncio.Event()

    async def swallow(reader, writer):
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", setting.port)

        async def pass_on(source, target):
            while data := await source.read(1 << 16):
                if not silent.is_set():
                    target.write(data)

        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(pass_on(reader, far_writer), pass_on(far_reader, writer), return_exceptions=True)
        far_writer.close()
        writer.close()

    between = await asyncio.start_server(swallow, "127.0.0.1", 0)
    port = between.sockets[0].getsockname()[1]
    identity = issue(setting.authority, "bank", "party", [])
    channel = open_channel(f"127.0.0.1:{port}", identity, "relay", "hub")
    call = pb_grpc.RelayServiceStub(channel).Register(pb.RegisterRequest())
    await asyncio.wait_for(call.read(), 20)
    assert "bank" in setting.switchboard._registered
    silent.set()
    with pytest.raises(grpc.aio.AioRpcError) as lost:
        await asyncio.wait_for(call.read(), 20)
    assert lost.value.code() is grpc.StatusCode.UNAVAILABLE
    await until(lambda: "bank" not in setting.switchboard._registered)
    await channel.close()
    between.close()
    await setting.server.stop(0)


@pytest.mark.parametrize("place", [RelayPlace("coordinator", "hub"), RelayPlace("relay", "r-1", "relay.example:7800")])
def test_a_relay_stands_in_place_of_an_address(place):
    assert relay_in(str(place)) == place
    assert relay_in("bank.example:7700") is None


async def test_a_relay_whose_address_nobody_knows_is_said_to_be_missing(tmp_path):
    routes = Routes(tmp_path, tmp_path)
    with pytest.raises(RelayUnknown, match="name it as `coordinator`"):
        routes.channel(str(RelayPlace("coordinator", "hub")), "party", "bank")
