"""One session's links to the other parties: a stream to each, and the receivers of what they send."""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import grpc
from google.protobuf.message import Message

from parley.contracts.peer.v1 import peer_service_pb2 as pb
from parley.contracts.peer.v1 import peer_service_pb2_grpc as pb_grpc
from parley.party.peers import PeerLost, Take
from parley.protocols.protocol import EXTENSION, CrossingProtocol
from parley.protocols.tensor.codec import Blobs, MessageInvalid
from parley.services.wire.envelopes import extension, from_extension
from parley.services.wire.framing import framed
from parley.services.wire.relay_line import cause_of
from parley.services.wire.routes import RelayUnknown, Routes

_FIELDS = frozenset(pb.PushRequest.DESCRIPTOR.fields_by_name)


class PeerLinks:
    """What one party sends to, and takes from, the others of its session, over gRPC."""

    def __init__(
        self,
        session_id: str,
        names: Sequence[str],
        addresses: Sequence[str],
        routes: Routes,
        protocol: CrossingProtocol,
    ) -> None:
        """`addresses` are hosts and ports, or the relays that parties are behind."""
        self._session_id, self._names, self._addresses = session_id, names, addresses
        self._routes, self._protocol = routes, protocol
        self._streams: dict[int, grpc.aio.StreamUnaryCall] = {}
        self._channels: dict[int, grpc.aio.Channel] = {}
        self._writing = [asyncio.Lock() for _ in names]
        self._takers: dict[str, Take] = {}
        self.sent_bytes = 0
        """Bytes of the messages that were sent, serialised."""

    def on(self, body: str, take: Take) -> None:
        """Hand messages of one kind to this function; before that they are refused."""
        self._takers[body] = take

    def take(self, sender: str, body: str, message: Any, blobs: Blobs) -> None:
        """Hand a message that another party pushed to whoever takes its kind."""
        if body == EXTENSION:
            message = from_extension(self._protocol, message, self._protocol.peer_messages)
            body = type(message).__name__
        taker = self._takers.get(body)
        if taker is None:
            raise MessageInvalid(f"this session takes no {body} from peers")
        taker(self._names.index(sender), message, blobs)

    async def push(self, receiver: int, blobs: Blobs, **body: Message) -> None:
        """Send a message, and the chunks of what it announces, to the party with block `receiver`.

        `body` names the message: a field of PushRequest, or one of the algorithm's own peer messages.

        Raises:
            PeerLost: if it cannot be reached; the next message dials anew.
        """
        ((name, message),) = body.items()
        if name not in _FIELDS:
            name, message = EXTENSION, extension(self._protocol, message)
        parts = framed(pb.PushRequest, blobs, **{name: message})
        async with self._writing[receiver]:  # a message and its chunks stay together
            known = self._streams.pop(receiver, None)
            try:
                if known is not None:
                    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                        await self._write(receiver, known, parts)
                        return
                # The first message, or the stream has ended since the last one; one that arrives twice counts once.
                attach = pb.PushRequest(attach=pb.Attach(session_id=self._session_id))
                await self._write(receiver, self._dial(receiver), [attach, *parts])
            except RelayUnknown as unknown:
                raise PeerLost(f"{self._names[receiver]} cannot be reached: {unknown}") from None
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
                why = cause_of(error) if isinstance(error, grpc.aio.AioRpcError) else "its stream has ended"
                raise PeerLost(f"{self._names[receiver]} cannot be reached: {why}") from None

    async def _write(self, receiver: int, stream: grpc.aio.StreamUnaryCall, parts: list[pb.PushRequest]) -> None:
        try:
            for part in parts:
                await stream.write(part)
                self.sent_bytes += part.ByteSize()
        except BaseException:
            # Also on cancellation: the next message must not follow half of this one, nor lack its attach.
            stream.cancel()
            raise
        self._streams[receiver] = stream

    def _dial(self, receiver: int) -> grpc.aio.StreamUnaryCall:
        if receiver not in self._channels:
            name, address = self._names[receiver], self._addresses[receiver]
            self._channels[receiver] = self._routes.channel(address, "party", name, own_connection=True)
        return pb_grpc.PeerServiceStub(self._channels[receiver]).Push()

    async def close(self) -> None:
        """End every stream."""
        self._takers.clear()
        for stream in self._streams.values():
            stream.cancel()
        for channel in self._channels.values():
            await channel.close()
