"""The data plane: one stream to each party, and round trips over several of them at once."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from parley.contracts.party.v1 import party_service_pb2 as pb
from parley.protocols.protocol import CrossingProtocol
from parley.protocols.tensor.codec import Blobs, MessageInvalid
from parley.services.coordinator.fleet import PartyLost, PartyRefused, as_party_error
from parley.services.wire import metrics
from parley.services.wire.envelopes import unpacked
from parley.services.wire.framing import receive

EXCHANGE = "/parley.party.v1.PartyService/Exchange"
REFUSAL_SECONDS = 0.5
"""How long the other parties may still answer once one is lost."""


@dataclass(frozen=True)
class Declined:
    """Why a party takes no part in a round of a session that serves, and of which rows."""

    reason: str
    message: str
    rows: Sequence[int]


Read = Callable[[int, Any, Blobs], Any]
"""Decodes a party's answer: its index, the message, and the large tensors that followed it."""
NoteReceipt = Callable[[int, Any], None]
"""Takes a party's receipt."""


@dataclass
class Traffic:
    """What a session has sent and received."""

    rounds: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0


class RoundTrip:
    """A question to some parties: what each answers, or how it failed."""

    def __init__(
        self,
        number: int,
        parties: Iterable[int],
        read: Read,
        *,
        patient: bool,
        receipts: NoteReceipt = lambda *_: None,
        may_decline: bool = False,
    ) -> None:
        """`patient`: wait for every party, although one has failed. `receipts` is told what comes with answers.

        `may_decline`: a party may take no part, and the session goes on.
        """
        self.number, self.read, self.receipts, self.may_decline = number, read, receipts, may_decline
        self._answers: dict[int, Any] = {}
        self._missing = set(parties)
        self._patient = patient
        self._loop = asyncio.get_running_loop()
        self._over = self._loop.create_future()

    def settle(self, party: int, answer: Any) -> None:
        """Take a party's answer, or its failure."""
        self._answers[party] = answer
        self._missing.discard(party)
        if not self._missing:
            self._end()
        elif isinstance(answer, Exception) and not self._patient:
            # Parties that wait for a lost one would keep the rest waiting too.
            self._loop.call_later(REFUSAL_SECONDS, self._end)

    async def answers(self, seconds: float) -> dict[int, Any]:
        """What has come when every party has answered, or no later than `seconds`; failures are among them."""
        deadline = self._loop.call_later(seconds, self._end)
        try:
            await self._over
        finally:
            deadline.cancel()
        return self._answers

    def _end(self) -> None:
        if not self._over.done():
            self._over.set_result(None)


class PartyStream:
    """A stream to one party. A task of its own makes its round trips, one after the other.

    A task for each round trip, with a deadline of its own, costs as much as encoding a small message.
    """

    def __init__(
        self,
        index: int,
        party: str,
        channel: grpc.aio.Channel,
        attach: bytes,
        traffic: Traffic,
        protocol: CrossingProtocol,
    ) -> None:
        """`attach` is the first message; the round trips follow it."""
        self._index, self._party, self._channel, self._traffic = index, party, channel, traffic
        self._protocol = protocol
        self._sent, self._received = (party, metrics.SENT), (party, metrics.RECEIVED)
        # Messages are serialised once for all parties, and counted as bytes.
        exchange = channel.stream_stream(EXCHANGE, request_serializer=bytes, response_deserializer=self._decoded)
        self._stream = exchange()
        self._failure: Exception | None = None
        self._next: asyncio.Future[tuple[RoundTrip, Sequence[bytes]]] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._serve(attach))

    def ask(self, trip: RoundTrip, messages: Sequence[bytes]) -> None:
        """Send messages; the trip gets the answer. No other trip may be under way here."""
        if self._failure is not None:
            trip.settle(self._index, self._failure)
        else:
            self._next.set_result((trip, messages))

    def end(self) -> None:
        """End the stream; an answer that is still due counts as lost."""
        self._failure = self._failure or PartyLost(self._party, "its stream was ended")
        self._stream.cancel()

    async def close(self) -> None:
        """End the stream and its connection."""
        self.end()
        self._task.cancel()
        await asyncio.wait([self._task])
        await self._channel.close()

    async def _serve(self, attach: bytes) -> None:
        try:
            await self._write([attach])
            while True:
                trip, messages = await self._next
                await self._write(messages)
                answer = await self._answer(trip)
                self._next = asyncio.get_running_loop().create_future()
                trip.settle(self._index, answer)
        except Exception as error:
            self._fail(error)
        except asyncio.CancelledError:  # by us, or the connection was closed under the stream
            self._fail(PartyLost(self._party, "its connection was closed"))
            raise

    def _fail(self, error: Exception) -> None:
        self._failure = error
        if self._next.done() and not self._next.cancelled():
            self._next.result()[0].settle(self._index, error)

    async def _answer(self, trip: RoundTrip) -> Any:
        try:
            answer = await self._read()
            message = unpacked(self._protocol, answer, self._protocol.contribution)
            if message is None or message.round != trip.number:
                raise MessageInvalid("the answer belongs to another round")
            blobs = await receive(answer, self._read)
            if trip.may_decline and answer.HasField("declined"):
                return Declined(answer.declined.reason, answer.declined.message, list(answer.declined.rows))
            if answer.HasField("receipt"):
                trip.receipts(self._index, answer.receipt)
            return trip.read(self._index, message, blobs)
        except MessageInvalid as error:
            raise PartyRefused(self._party, "MESSAGE_INVALID", f"its answer is unusable: {error}") from None

    async def _write(self, messages: Sequence[bytes]) -> None:
        try:
            for message in messages:
                self._traffic.sent_bytes += len(message)
                metrics.EDGE_BYTES.counts[self._sent] += len(message)
                await self._stream.write(message)
        except grpc.aio.AioRpcError as error:
            raise as_party_error(self._party, error) from None
        except asyncio.InvalidStateError:
            await self._read()  # the stream has ended; reading tells why

    async def _read(self) -> pb.ExchangeResponse:
        try:
            answer = await self._stream.read()
        except grpc.aio.AioRpcError as error:
            raise as_party_error(self._party, error) from None
        if answer is grpc.aio.EOF:
            raise PartyLost(self._party, "it ended the stream")
        return answer  # type: ignore[no-any-return]

    def _decoded(self, data: bytes) -> pb.ExchangeResponse:
        self._traffic.received_bytes += len(data)
        metrics.EDGE_BYTES.counts[self._received] += len(data)
        return pb.ExchangeResponse.FromString(data)
