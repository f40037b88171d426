"""The peer plane of one session: partial sums up the aggregation trees and messages of roles, party to party."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import Message

from parley.contracts.peer.v1 import peer_service_pb2 as pb
from parley.contracts.peer.v1 import peer_service_pb2_grpc as pb_grpc
from parley.numerics.arrays import Vector
from parley.party.peers import PeerFlooded, PeerLost, Take
from parley.party.tree_sums import TREES, climb
from parley.privacy.release import Addend, Release, TreeGate, TreeName, TreeSum
from parley.protocols.aggregation.codec import decode_tree_sum, encode_tree_sum
from parley.protocols.protocol import EXTENSION, CrossingProtocol
from parley.protocols.tensor.codec import Blobs, MessageInvalid
from parley.services.wire.envelopes import extension, from_extension
from parley.services.wire.framing import framed
from parley.services.wire.transport import open_channel

_FIELDS = frozenset(pb.PushRequest.DESCRIPTOR.fields_by_name)
MOST_WAITING = 1024
"""Partial sums that may wait for this party to come to their round."""

Waiting = tuple[TreeName, int, int]


class PeerPlane:
    """What one party says to, and hears from, the others of its session."""

    def __init__(
        self,
        session_id: str,
        names: Sequence[str],
        addresses: Sequence[str],
        identity: Path,
        seconds: float,
        protocol: CrossingProtocol,
    ) -> None:
        self._session_id, self._names, self._addresses = session_id, names, addresses
        self._identity, self._seconds, self._protocol = identity, seconds, protocol
        self._arrived: dict[Waiting, asyncio.Future[TreeSum]] = {}
        self._streams: dict[int, grpc.aio.StreamUnaryCall] = {}
        self._channels: dict[int, grpc.aio.Channel] = {}
        self._summed = 0
        self._writing = [asyncio.Lock() for _ in names]
        self._takers: dict[str, Take] = {}
        self.sent_bytes = 0
        """Bytes of the messages that were sent, serialised."""

    def on(self, body: str, take: Take) -> None:
        """Let a role take messages of one kind; before that they are refused."""
        self._takers[body] = take

    def take(self, sender: str, body: str, message: Any, blobs: Blobs) -> None:
        """Hand a message that another party pushed to whoever takes its kind."""
        if body == "masked_theta":
            self.deliver(sender, decode_tree_sum(message, blobs))
            return
        if body == EXTENSION:
            message = from_extension(self._protocol, message, self._protocol.peer_messages)
            body = type(message).__name__
        taker = self._takers.get(body)
        if taker is None:
            raise MessageInvalid(f"this session takes no {body} from peers")
        taker(self._names.index(sender), message, blobs)

    def deliver(self, sender: str, part: TreeSum) -> None:
        """Take a partial sum that another party pushed; one of a round that is over is a repetition."""
        if part.round <= self._summed:
            return
        future = self._future((part.tree, part.round, self._names.index(sender)))
        if not future.done():  # a repeated one is the same one
            future.set_result(part)

    async def sum_up_trees(self, gate: TreeGate, number: int, draft: Vector) -> Release[Addend]:
        """Add this party's share on both trees, and pass the sums on; what ends here goes to the coordinator."""
        gate.begin(number, draft)
        try:
            async with asyncio.timeout(self._seconds):
                ends = await asyncio.gather(*(self._climb(gate, number, tree) for tree in TREES))
        except TimeoutError:
            raise PeerLost(f"round {number}: a partial sum did not come within {self._seconds:g} s") from None
        self._summed = number
        return gate.addend([end for end in ends if end is not None])

    async def _climb(self, gate: TreeGate, number: int, tree: TreeName) -> Release[TreeSum] | None:
        async def part(child: int) -> TreeSum:
            key = (tree, number, child)
            found = await self._future(key)
            del self._arrived[key]
            return found

        async def send(parent: int, release: Release[TreeSum]) -> None:
            blobs: Blobs = deque()
            await self.push(parent, blobs, masked_theta=encode_tree_sum(release, blobs))

        return await climb(gate, number, tree, part, send)

    def _future(self, key: Waiting) -> asyncio.Future[TreeSum]:
        if key not in self._arrived:
            if len(self._arrived) >= MOST_WAITING:
                raise PeerFlooded(f"more than {MOST_WAITING} partial sums wait here: the parties are out of step")
            self._arrived[key] = asyncio.get_running_loop().create_future()
        return self._arrived[key]

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
                # The first message, or the stream has ended since the last one: a message twice is the same one.
                attach = pb.PushRequest(attach=pb.Attach(session_id=self._session_id))
                await self._write(receiver, self._dial(receiver), [attach, *parts])
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
                why = error.details() if isinstance(error, grpc.aio.AioRpcError) else "its stream has ended"
                raise PeerLost(f"{self._names[receiver]} cannot be reached: {why}") from None

    async def _write(self, receiver: int, stream: grpc.aio.StreamUnaryCall, parts: list[pb.PushRequest]) -> None:
        try:
            for part in parts:
                await stream.write(part)
                self.sent_bytes += part.ByteSize()
        except BaseException:
            # Also if whoever sends is cancelled: what comes next must not follow half a message, or miss its attach.
            stream.cancel()
            raise
        self._streams[receiver] = stream

    def _dial(self, receiver: int) -> grpc.aio.StreamUnaryCall:
        if receiver not in self._channels:
            name, address = self._names[receiver], self._addresses[receiver]
            self._channels[receiver] = open_channel(address, self._identity, "party", name, own_connection=True)
        return pb_grpc.PeerServiceStub(self._channels[receiver]).Push()

    async def close(self) -> None:
        """End every stream."""
        self._takers.clear()
        for stream in self._streams.values():
            stream.cancel()
        for channel in self._channels.values():
            await channel.close()
