"""The coordinator's connections to parties: control calls on one channel, the data plane on another."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TypeVar, cast

import grpc

from parley.contracts.party.v1 import party_service_pb2 as pb
from parley.contracts.party.v1 import party_service_pb2_grpc as pb_grpc
from parley.services.wire.certificates import CertificateError
from parley.services.wire.refusals import reason_of
from parley.services.wire.relay_line import cause_of
from parley.services.wire.routes import Routes
from parley.services.wire.traces import Traces
from parley.services.wire.transport import CONTROL_SECONDS, Stamp, identity_stamp

Response = TypeVar("Response")
LOST_CODES = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}
LOST_REASONS = {"SESSION_UNKNOWN"}
BROKEN_CODES = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN}
"""What gRPC itself says of a connection that broke in the middle; a party's own failure comes with a reason."""
PREPARE_SECONDS = 600.0
"""Deadline of a call that may load a party's table. Keepalive finds a party that is gone sooner."""

READING_SECONDS = 5.0
"""How long a party that reads a table for the first time is waited for, where only its width is asked."""


class PartyUnknown(LookupError):
    """A party is not in the address book."""


class PartyLost(ConnectionError):
    """A party does not answer; waiting may help."""

    def __init__(self, party: str, problem: str) -> None:
        super().__init__(f"{party} does not answer: {problem}")
        self.party = party


NAMELESS = frozenset({"DIVERGED", "RANGE_EXCEEDED"})
"""Refusals where a client's choice, such as a step size, meets one party's values: by asking again with others it could
bisect how large they are, if it were told whose they are."""


class PartyRefused(RuntimeError):
    """A party refused; waiting does not help."""

    def __init__(self, party: str, reason: str, message: str) -> None:
        super().__init__(f"{'a party' if reason in NAMELESS else party} refused ({reason}): {message}")
        self.party, self.reason = party, reason


class Fleet:
    """The parties of the address book."""

    def __init__(
        self,
        identity: Path,
        addresses: Mapping[str, str],
        routes: Routes,
        absence: Callable[[str], str] = lambda _: "",
        traces: Traces | None = None,
    ) -> None:
        """`addresses` are hosts and ports, or relays; `absence` says why a party cannot be reached."""
        self.traces = traces or Traces()
        """Records the rounds that are made with the parties."""
        self._identity = identity
        self._addresses, self._routes, self._absence = addresses, routes, absence
        self._control: dict[str, tuple[Stamp, grpc.aio.Channel]] = {}
        self._arrivals: dict[str, asyncio.Event] = {}
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def names(self) -> list[str]:
        """Every party."""
        return sorted(self._addresses)

    def address(self, party: str) -> str:
        """Where a party is dialled."""
        if party not in self._addresses:
            raise PartyUnknown(
                f"{party} is not in the coordinator's address book, which has {self.names}: "
                "correct the spec, or add the party to the coordinator's configuration"
            )
        return self._addresses[party]

    def stub(self, party: str) -> "pb_grpc.PartyServiceAsyncStub":
        """Control calls to a party, with the certificate that is on disk now."""
        self._require_present(party)
        stamp = identity_stamp(self._identity)
        if party not in self._control:
            self._control[party] = stamp, self._dial(party)
        elif self._control[party][0] != stamp:
            with contextlib.suppress(CertificateError):  # half replaced: the old one serves until both files are there
                channel = self._dial(party)
                self._retire(party)
                self._control[party] = stamp, channel
        return cast("pb_grpc.PartyServiceAsyncStub", pb_grpc.PartyServiceStub(self._control[party][1]))

    def _dial(self, party: str) -> grpc.aio.Channel:
        return self._routes.channel(self.address(party), "party", party)

    def _require_present(self, party: str) -> None:
        if absence := self._absence(party):
            raise PartyLost(party, absence)

    def bulk_channel(self, party: str) -> grpc.aio.Channel:
        """A connection of its own for one data plane."""
        self._require_present(party)
        return self._routes.channel(self.address(party), "party", party, own_connection=True)

    def arrived(self, party: str) -> None:
        """Note that a party has come up: dial it anew, and let whoever waits for it go on."""
        self._arrivals.setdefault(party, asyncio.Event()).set()
        self._retire(party)

    def _retire(self, party: str) -> None:
        if party not in self._control:
            return
        _, channel = self._control.pop(party)
        # Calls of other runs may be on it: they keep their own deadline.
        closing = asyncio.create_task(channel.close(grace=PREPARE_SECONDS))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def wait_for_arrival(self, party: str, seconds: float) -> None:
        """Wait until a party announces itself, but no longer than `seconds`.

        An arrival since the last wait counts: a party may be back before its loss was noticed.
        """
        event = self._arrivals.setdefault(party, asyncio.Event())
        try:
            await asyncio.wait_for(event.wait(), seconds)
        except TimeoutError:
            return
        event.clear()

    async def reach(self, party: str) -> None:
        """Make sure that a party answers; nothing changes there."""
        await call(party, lambda: self.stub(party).Describe(pb.DescribeRequest()))

    async def widths(self, tables: Mapping[str, str]) -> dict[str, int]:
        """Feature columns of one table of each party, of those who answer and have read it."""
        found = await asyncio.gather(*(self._width(party, table) for party, table in tables.items()))
        return {party: width for party, width in zip(tables, found, strict=True) if width}

    async def _width(self, party: str, table: str) -> int:
        deadline = asyncio.get_running_loop().time() + READING_SECONDS
        while True:
            try:
                answer = await call(party, lambda: self.stub(party).Describe(pb.DescribeRequest()))
            except (PartyUnknown, PartyLost, PartyRefused):
                return 0
            offer = next((offer for offer in answer.tables if offer.name == table), None)
            if offer is None or offer.loaded_percent == 100 or asyncio.get_running_loop().time() > deadline:
                return 0 if offer is None else int(offer.features)
            await asyncio.sleep(0.1)

    async def close(self) -> None:
        """Close every control channel."""
        for closing in self._closing:
            closing.cancel()
        for _, channel in self._control.values():
            await channel.close()


async def call(party: str, make: Callable[[], Awaitable[Response]], seconds: float = CONTROL_SECONDS) -> Response:
    """A call to a party, its failure told apart: lost or refused."""
    try:
        return await asyncio.wait_for(make(), seconds)
    except TimeoutError:
        raise PartyLost(party, f"no answer within {seconds:g} s") from None
    except grpc.aio.AioRpcError as error:
        raise as_party_error(party, error) from None
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        # The channel was closed under the call; nobody cancelled the run.
        raise PartyLost(party, "its connection was closed") from None


def as_party_error(party: str, error: grpc.aio.AioRpcError) -> PartyLost | PartyRefused:
    """A gRPC error as what it means for a run."""
    reason = reason_of(error)
    broken = reason is None and error.code() in BROKEN_CODES
    if broken or error.code() in LOST_CODES or reason in LOST_REASONS:
        return PartyLost(party, cause_of(error))
    return PartyRefused(party, reason or error.code().name, error.details() or "")
