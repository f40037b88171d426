"""Which parties wait for connections here, and the connections to them."""

import asyncio
import contextlib
import logging
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parley.services.wire.authorisation import Caller
from parley.services.wire.relay_line import LONGEST_DELAY_SECONDS, RelayPlace, endpoint_path
from parley.services.wire.tunnels import Endpoint, Side, splice

GRACE_SECONDS = LONGEST_DELAY_SECONDS + 2.0
"""How long a party that has gone, or not come yet, is waited for: as long as it may take to dial again."""
ACCEPT_SECONDS = 10.0
"""How long a party may take to accept a connection."""
logger = logging.getLogger(__name__)


class PartyAway(ConnectionError):
    """A party is not registered, or does not take the connection."""


class ConnectionUnknown(LookupError):
    """No such connection waits for this party."""


class RegistrationReplaced(RuntimeError):
    """The same party has registered again."""


class TooManyConnections(RuntimeError):
    """There are as many connections as there may be."""


@dataclass(frozen=True)
class Limits:
    """Connections that may be open at once; each holds a bounded number of bytes."""

    to_party: int = 1024
    """To one party."""
    by_caller: int = 256
    """To one party by one caller."""


@dataclass(eq=False)
class _Connection:
    caller: Caller
    side: Side
    accepted: "asyncio.Future[None]"
    passing: "asyncio.Task[None] | None" = None

    def end(self) -> None:
        if self.passing is not None:
            self.passing.cancel()
        if not self.accepted.done():
            self.accepted.cancel()


@dataclass(eq=False)
class _Registration:
    offers: "asyncio.Queue[str | None]"
    connections: dict[str, _Connection] = field(default_factory=dict)

    def end(self) -> None:
        """Its party is gone: whoever speaks with it is told at once."""
        for connection in self.connections.values():
            connection.end()


class Switchboard:
    """Registrations by party, and the connections to each."""

    def __init__(self, limits: Limits | None = None, arrived: Callable[[str], None] = lambda _: None) -> None:
        """`arrived` is told of every party that registers."""
        self._limits, self._arrived = limits or Limits(), arrived
        self._registered: dict[str, _Registration] = {}
        self._gone: dict[str, float] = {}
        self._since = time.monotonic()
        self._news = asyncio.Event()

    def absence(self, party: str) -> str:
        """Why a party cannot be reached through this relay; empty if it can, or is expected any moment."""
        if party in self._registered or self._left(party) > 0:
            return ""
        return "it has not dialled in: start it, or correct its `connect`"

    async def register(self, party: str) -> AsyncIterator[str]:
        """Ids of connections to accept, as long as the party listens; the first is empty.

        Raises:
            RegistrationReplaced: if the party registers elsewhere.
        """
        before = self._registered.get(party)
        if before is not None:
            before.offers.put_nowait(None)
            before.end()
        own = self._registered[party] = _Registration(asyncio.Queue())
        self._news.set()
        self._news = asyncio.Event()
        try:
            yield ""
            self._arrived(party)
            while offered := await own.offers.get():
                yield offered
            raise RegistrationReplaced(
                f"{party} has registered once more, and this registration ends: run one service under a name"
            )
        finally:
            own.end()
            if self._registered.get(party) is own:
                del self._registered[party]
                self._gone[party] = time.monotonic()
                logger.info("%s has gone", party)

    async def connect(self, caller: Caller, party: str, side: Side) -> None:
        """Connect a side to a party, until either ends.

        Raises:
            PartyAway: if the party is not there, or does not accept.
            TooManyConnections: if the limit is reached.
        """
        registration = await self._find(party)
        self._check_room(caller, party, registration)
        connection_id = secrets.token_hex(16)
        connection = _Connection(caller, side, asyncio.get_running_loop().create_future())
        registration.connections[connection_id] = connection
        registration.offers.put_nowait(connection_id)
        try:
            async with asyncio.timeout(ACCEPT_SECONDS):
                await connection.accepted
            assert connection.passing is not None  # noqa: S101 (whoever accepts sets it first)
            await asyncio.wait([connection.passing])
        except TimeoutError:
            raise PartyAway(f"{party} did not accept the connection within {ACCEPT_SECONDS:g} s") from None
        except asyncio.CancelledError:
            if connection.accepted.cancelled() and not _is_cancelled():
                raise PartyAway(f"{party} has gone") from None
            raise
        finally:
            connection.end()
            del registration.connections[connection_id]

    async def accept(self, party: str, connection_id: str, side: Side) -> None:
        """Let a party take a connection that was announced to it, until either side ends.

        Raises:
            ConnectionUnknown: if none of this id waits for it.
        """
        registration = self._registered.get(party)
        connection = registration.connections.get(connection_id) if registration is not None else None
        if connection is None or connection.accepted.done():
            raise ConnectionUnknown("no such connection waits here: it was taken, or whoever opened it has gone")
        connection.passing = asyncio.create_task(splice(connection.side, side))
        connection.accepted.set_result(None)
        try:
            await asyncio.wait([connection.passing])
        finally:
            connection.passing.cancel()

    async def _find(self, party: str) -> _Registration:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, self._left(party))):
                while party not in self._registered:
                    await self._news.wait()
        found = self._registered.get(party)
        if found is None:
            raise PartyAway(f"{party} has not dialled in: start it, or correct its `connect`")
        return found

    def _left(self, party: str) -> float:
        """How much longer a party that is not there is expected."""
        return self._gone.get(party, self._since) + GRACE_SECONDS - time.monotonic()

    def _check_room(self, caller: Caller, party: str, registration: _Registration) -> None:
        callers = Counter(connection.caller for connection in registration.connections.values())
        if callers.total() >= self._limits.to_party or callers[caller] >= self._limits.by_caller:
            raise TooManyConnections(
                f"{callers.total()} connections to {party} are open, {callers[caller]} of them by {caller.name}, the "
                "limit: close some"
            )


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class OwnLine:
    """The way of the service that runs a relay to the parties behind it."""

    def __init__(self, switchboard: Switchboard, owner: Caller, sockets: Path) -> None:
        self._switchboard, self._owner, self._sockets = switchboard, owner, sockets
        self._endpoints: dict[str, Endpoint] = {}

    def endpoint(self, party: str) -> str:
        """Where to dial, on this machine, to reach a party."""
        if party not in self._endpoints:
            path = endpoint_path(self._sockets, RelayPlace(self._owner.role, self._owner.name), party)
            self._endpoints[party] = Endpoint(path, lambda side: self._connect(party, side))
        return self._endpoints[party].address

    async def close(self) -> None:
        """End every connection."""
        for endpoint in self._endpoints.values():
            await endpoint.close()

    async def _connect(self, party: str, side: Any) -> None:
        try:
            await self._switchboard.connect(self._owner, party, side)
        except (PartyAway, TooManyConnections) as problem:
            logger.info("no connection to %s: %s", party, problem)
