"""A service's own line to a relay: it registers there, takes connections, and opens some to parties behind it."""

import asyncio
import hashlib
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from parley.contracts.relay.v1 import relay_service_pb2 as pb
from parley.contracts.relay.v1 import relay_service_pb2_grpc as pb_grpc
from parley.services.wire.certificates import CertificateError
from parley.services.wire.transport import Stamp, identity_stamp, open_channel
from parley.services.wire.tunnels import CallSide, Endpoint, Side, SocketSide, splice
from parley.services.wire.version import VERSION

FIRST_DELAY_SECONDS, LONGEST_DELAY_SECONDS = 0.1, 3.0
"""Before a relay that was lost is dialled again; each further time twice as long, up to the longest."""
SCHEME, SOCKET_SCHEME = "relay:", "unix:"
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RelayPlace:
    """A relay: whom its certificate must name, and where it is dialled."""

    role: str
    """`coordinator`, or `relay` for one that runs by itself."""
    name: str
    address: str = ""
    """host:port; empty if whoever dials has to know."""

    def __str__(self) -> str:
        """How it stands in place of a party's own address."""
        return f"{SCHEME}{self.role}/{self.name}" + (f"@{self.address}" if self.address else "")


def relay_in(address: str) -> RelayPlace | None:
    """The relay that an address names; None if it is a host and a port."""
    if not address.startswith(SCHEME):
        return None
    who, _, where = address.removeprefix(SCHEME).partition("@")
    role, _, name = who.partition("/")
    return RelayPlace(role, name, where)


def endpoint_path(directory: Path, relay: RelayPlace, party: str) -> Path:
    """A short file name for the socket that stands for a party behind a relay; names may be long."""
    return directory / hashlib.sha256(f"{relay.role}/{relay.name}/{party}".encode()).hexdigest()[:16]


def cause_of(error: grpc.aio.AioRpcError) -> str:
    """Why a call failed, for people, to whom the socket that stands for a party behind a relay says nothing."""
    details = str(error.details() or error.code().name)
    if SOCKET_SCHEME not in details:
        return details
    return "nothing comes through its relay: start the relay, or the party behind it, or correct their addresses"


class RelayLine:
    """One connection to a relay, shared by everything that passes it."""

    def __init__(self, place: RelayPlace, identity: Path, sockets: Path) -> None:
        """`sockets` is a directory for the sockets that stand for parties behind the relay."""
        self.place = place
        self._identity, self._sockets = identity, sockets
        self._endpoints: dict[str, Endpoint] = {}
        self._current: tuple[Stamp, grpc.aio.Channel] | None = None
        self._retired: list[grpc.aio.Channel] = []
        self._taken: set[asyncio.Task[None]] = set()

    def endpoint(self, party: str) -> str:
        """Where to dial, on this machine, to reach a party behind the relay."""
        if party not in self._endpoints:
            path = endpoint_path(self._sockets, self.place, party)
            self._endpoints[party] = Endpoint(path, lambda side: self._connect(party, side))
        return self._endpoints[party].address

    async def stay_registered(self, service: Path, registered: Callable[[], Awaitable[None]]) -> None:
        """Take connections for the service at a socket of this machine, and dial again whenever the relay is lost.

        `registered` is called each time that the relay has taken the registration. Ends when cancelled.
        """
        delay = FIRST_DELAY_SECONDS
        while True:
            try:
                async for offer in self._stub().Register(pb.RegisterRequest(version=VERSION)):
                    if offer.connection_id:
                        self._keep(self._take(offer.connection_id, service))
                        continue
                    logger.info("registered at %s %s", self.place.role, self.place.name)
                    delay = FIRST_DELAY_SECONDS
                    self._keep(registered())
                problem = "it ended the registration"
            except grpc.aio.AioRpcError as error:
                problem = error.details() or error.code().name
            except CertificateError as error:  # a folder that is being renewed, or has to be
                problem = str(error)
            logger.warning("no line to %s %s at %s: %s", self.place.role, self.place.name, self.place.address, problem)
            await asyncio.sleep(delay * random.uniform(0.5, 1.0))  # so that parties do not come all at once
            delay = min(2 * delay, LONGEST_DELAY_SECONDS)

    async def close(self) -> None:
        """End every connection, and the line."""
        for task in self._taken:
            task.cancel()
        for endpoint in self._endpoints.values():
            await endpoint.close()
        for channel in [*self._retired, *([self._current[1]] if self._current else [])]:
            await channel.close()

    def _stub(self) -> Any:
        """Calls to the relay, with the certificate that is on disk now."""
        stamp = identity_stamp(self._identity)
        if self._current is None or self._current[0] != stamp:
            place = self.place
            channel = open_channel(place.address, self._identity, place.role, place.name, own_connection=True)
            if self._current is not None:
                self._retired.append(self._current[1])  # connections on it go on; certificates change seldom
            self._current = stamp, channel
        return pb_grpc.RelayServiceStub(self._current[1])

    def _keep(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._taken.add(task)
        task.add_done_callback(self._taken.discard)

    async def _take(self, connection_id: str, service: Path) -> None:
        call = self._stub().Accept()
        try:
            await call.write(pb.AcceptRequest(connection_id=connection_id))
            local = SocketSide(*await asyncio.open_unix_connection(str(service)))
            try:
                await splice(CallSide(call, pb.AcceptRequest), local)
            finally:
                await local.close()
        except (OSError, grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            logger.warning("a connection through %s could not be taken: %s", self.place.name, error)
        finally:
            call.cancel()

    async def _connect(self, party: str, side: Side) -> None:
        call = self._stub().Connect()
        try:
            await call.write(pb.ConnectRequest(party=party))
            await splice(side, CallSide(call, pb.ConnectRequest))
            if call.done() and await call.code() is not grpc.StatusCode.OK:
                logger.warning("no connection to %s through %s: %s", party, self.place.name, await call.details())
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            logger.warning("no connection to %s through %s: %s", party, self.place.name, error)
        finally:
            call.cancel()
