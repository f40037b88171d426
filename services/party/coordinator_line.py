"""A party's line to the coordinator: questions up, answers down, one after the other."""

import asyncio
from typing import Any, cast

import grpc
from google.protobuf.message import Message

from parley.contracts.coordinator.v1 import coordinator_service_pb2 as pb
from parley.contracts.coordinator.v1 import coordinator_service_pb2_grpc as pb_grpc
from parley.party.peers import PeerLost
from parley.protocols.tensor.codec import Blobs, MessageInvalid
from parley.services.party.config import Coordinator, PartyConfig
from parley.services.wire.framing import framed, receive
from parley.services.wire.transport import open_channel


class QuestionLine:
    """Asks the coordinator that this party's configuration names; dials when first asked."""

    def __init__(self, config: PartyConfig, coordinator: Coordinator) -> None:
        self._config, self._coordinator = config, coordinator
        self._channel: grpc.aio.Channel | None = None
        self._stream: Any = None
        self._turn = asyncio.Lock()

    async def ask(self, question: Message, blobs: Blobs) -> tuple[Any, Blobs]:
        """The answer to a question.

        Raises:
            PeerLost: if the coordinator cannot be reached, or does not answer for this session now.
        """
        async with self._turn:
            try:
                stream = self._stream or self._dial()
                for message in framed(pb.AskSlopesRequest, blobs, question=question):
                    await stream.write(message)
                answer = await self._read()
                if answer.WhichOneof("body") != "slopes":
                    raise MessageInvalid("slopes were expected")
                return answer.slopes, await receive(answer, self._read)
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
        if self._channel is None:
            address, name = self._coordinator.address, self._coordinator.name
            self._channel = open_channel(address, self._config.identity, "coordinator", name, own_connection=True)
        self._stream = pb_grpc.CoordinatorServiceStub(self._channel).AskSlopes()
        return self._stream
