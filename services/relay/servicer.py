"""RelayService: who may register, accept and connect, and what they are refused."""

from collections.abc import AsyncIterator, Callable

import grpc

from parley.contracts.relay.v1 import relay_service_pb2 as pb
from parley.contracts.relay.v1 import relay_service_pb2_grpc as pb_grpc
from parley.protocols.refusals import Catalogue, Refusal
from parley.services.relay.switchboard import (
    ConnectionUnknown,
    PartyAway,
    RegistrationReplaced,
    Switchboard,
    TooManyConnections,
)
from parley.services.wire.authorisation import caller_of
from parley.services.wire.framing import reader
from parley.services.wire.tunnels import ServedSide

SERVICE = pb.DESCRIPTOR.services_by_name["RelayService"]
METHODS = {
    f"/{SERVICE.full_name}/Register": frozenset({"party"}),
    f"/{SERVICE.full_name}/Accept": frozenset({"party"}),
    f"/{SERVICE.full_name}/Connect": frozenset({"coordinator", "party"}),
}
"""Who may call what. A client has nothing to say to a party."""
REFUSALS: Catalogue = {
    PartyAway: Refusal("UNAVAILABLE", "PARTY_AWAY"),
    ConnectionUnknown: Refusal("NOT_FOUND", "CONNECTION_UNKNOWN"),
    RegistrationReplaced: Refusal("FAILED_PRECONDITION", "REGISTRATION_REPLACED"),
    TooManyConnections: Refusal("RESOURCE_EXHAUSTED", "TOO_MANY_CONNECTIONS"),
}


class RelayServicer(pb_grpc.RelayServiceServicer):
    """What a relay does for parties and those who speak with them."""

    def __init__(self, switchboard: Switchboard, require_served: Callable[[str], None] = lambda _: None) -> None:
        """`require_served` raises for a party that does not register here."""
        self._switchboard, self._require_served = switchboard, require_served

    async def Register(
        self, request: pb.RegisterRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.RegisterResponse]:
        """Connections to the caller, as they come."""
        party = caller_of(context).name
        self._require_served(party)
        async for connection_id in self._switchboard.register(party):
            yield pb.RegisterResponse(connection_id=connection_id)

    async def Accept(  # type: ignore[override]  # it writes to the context itself
        self, request_iterator: AsyncIterator[pb.AcceptRequest], context: grpc.aio.ServicerContext
    ) -> None:
        """One connection, at the party's side."""
        first = await reader(request_iterator)()
        side = ServedSide(request_iterator, context, pb.AcceptResponse)
        await self._switchboard.accept(caller_of(context).name, first.connection_id, side)

    async def Connect(  # type: ignore[override]
        self, request_iterator: AsyncIterator[pb.ConnectRequest], context: grpc.aio.ServicerContext
    ) -> None:
        """One connection, at the side of whoever opened it."""
        first = await reader(request_iterator)()
        side = ServedSide(request_iterator, context, pb.ConnectResponse)
        await self._switchboard.connect(caller_of(context), first.party, side)
