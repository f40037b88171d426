"""The peer plane of one session: partial sums up the aggregation trees, party to party."""

import asyncio
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import grpc

from contracts.peer.v1 import peer_service_pb2 as pb
from contracts.peer.v1 import peer_service_pb2_grpc as pb_grpc
from privacy.release import Addend, Release, TreeGate, TreeName, TreeSum
from privacy.rounds import Vector
from services.wire.framing import chunks
from services.wire.sum_codec import encode_tree_sum
from services.wire.tensors import Blobs
from services.wire.transport import open_channel

MOST_WAITING = 1024
"""Partial sums that may wait for this party to come to their round."""
TREES: tuple[TreeName, TreeName] = ("values", "masks")

Waiting = tuple[TreeName, int, int]


class PeerLost(ConnectionError):
    """Another party cannot be reached, or did not send what is due."""


class PeerFlooded(RuntimeError):
    """More partial sums came than this party keeps."""


class PeerPlane:
    """What one party says to, and hears from, the others of its session."""

    def __init__(
        self, session_id: str, names: Sequence[str], addresses: Sequence[str], identity: Path, seconds: float
    ) -> None:
        self._session_id, self._names, self._addresses = session_id, names, addresses
        self._identity, self._seconds = identity, seconds
        self._arrived: dict[Waiting, asyncio.Future[TreeSum]] = {}
        self._streams: dict[int, grpc.aio.StreamUnaryCall] = {}
        self._channels: list[grpc.aio.Channel] = []

    def deliver(self, sender: str, part: TreeSum) -> None:
        """Take a partial sum that another party pushed."""
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
        return gate.addend([end for end in ends if end is not None])

    async def _climb(self, gate: TreeGate, number: int, tree: TreeName) -> Release[TreeSum] | None:
        received = []
        for child in gate.children(number, tree):
            key = (tree, number, child)
            received.append((child, await self._future(key)))
            del self._arrived[key]
        release = gate.forward(number, tree, received)
        parent = gate.parent(tree)
        if parent is None:
            return release
        blobs: Blobs = deque()
        message = pb.PushRequest(masked_theta=encode_tree_sum(release, blobs))
        await self._push(parent, [message, *(pb.PushRequest(chunk=chunk) for chunk in chunks(blobs))])
        return None

    def _future(self, key: Waiting) -> asyncio.Future[TreeSum]:
        if key not in self._arrived:
            if len(self._arrived) >= MOST_WAITING:
                raise PeerFlooded(f"more than {MOST_WAITING} partial sums wait here: the parties are out of step")
            self._arrived[key] = asyncio.get_running_loop().create_future()
        return self._arrived[key]

    async def _push(self, receiver: int, messages: Sequence[pb.PushRequest]) -> None:
        name = self._names[receiver]
        try:
            if receiver not in self._streams:
                channel = open_channel(self._addresses[receiver], self._identity, "party", name, own_connection=True)
                self._channels.append(channel)
                self._streams[receiver] = pb_grpc.PeerServiceStub(channel).Push()
                await self._streams[receiver].write(pb.PushRequest(attach=pb.Attach(session_id=self._session_id)))
            for message in messages:
                await self._streams[receiver].write(message)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            raise PeerLost(f"{name} cannot be reached: {error}") from None

    async def close(self) -> None:
        """End every stream."""
        for stream in self._streams.values():
            stream.cancel()
        for channel in self._channels:
            await channel.close()
