"""A party's line to the coordinator's labels: sums of θ up, slopes of the loss down, one after the other."""

import asyncio
from collections import deque
from typing import Any, cast

import grpc

from parley.contracts.coordinator.v1 import coordinator_service_pb2 as pb
from parley.contracts.coordinator.v1 import coordinator_service_pb2_grpc as pb_grpc
from parley.privacy.asysqn_rounds import RowsName
from parley.services.party.config import PartyConfig
from parley.services.party.peers import PeerLost
from parley.services.wire.asysqn_codec import decode_slopes, encode_question
from parley.services.wire.framing import framed, receive
from parley.services.wire.tensors import Array, Blobs, MessageInvalid
from parley.services.wire.transport import open_channel


class CoordinatorLabels:
    """Asks the coordinator for ∂L/∂θ at sums that this party opened."""

    def __init__(self, config: PartyConfig, session_id: str) -> None:
        self._config, self._session_id = config, session_id
        self._channel: grpc.aio.Channel | None = None
        self._stream: Any = None
        self._turn = asyncio.Lock()

    async def ask(self, rows: RowsName, opened: Array) -> Array:
        """∂L/∂θ on some rows.

        Raises:
            PeerLost: if the coordinator cannot be reached, or does not answer for this session now.
        """
        blobs: Blobs = deque()
        question = encode_question(self._session_id, rows, opened, blobs)
        async with self._turn:
            try:
                stream = self._stream or self._dial()
                for message in framed(pb.AskSlopesRequest, blobs, question=question):
                    await stream.write(message)
                answer = await self._read()
                if answer.WhichOneof("body") != "slopes":
                    raise MessageInvalid("slopes were expected")
                return decode_slopes(answer.slopes, await receive(answer, self._read))
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
                self._stream = None
                raise PeerLost(f"the coordinator gave no slopes: {error}") from None

    async def close(self) -> None:
        """Hang up."""
        if self._stream is not None:
            self._stream.cancel()
        if self._channel is not None:
            await self._channel.close()

    async def _read(self) -> pb.AskSlopesResponse:
        answer = await self._stream.read()
        if answer is grpc.aio.EOF:
            self._stream = None
            raise PeerLost("the coordinator ended the stream of slopes")
        return cast(pb.AskSlopesResponse, answer)

    def _dial(self) -> Any:
        coordinator = self._config.coordinator
        if coordinator is None:
            raise PeerLost("this party's configuration names no coordinator to ask for slopes")
        if self._channel is None:
            self._channel = open_channel(
                coordinator.address, self._config.identity, "coordinator", coordinator.name, own_connection=True
            )
        self._stream = pb_grpc.CoordinatorServiceStub(self._channel).AskSlopes()
        return self._stream
