"""A session with all parties of a run: open, check, begin, and one round trip for each round."""

import asyncio
import functools
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import grpc
from google.protobuf.message import Message

from contracts.party.v1 import party_service_pb2 as pb
from privacy.aggregation import SumDesk
from privacy.fedbio_rounds import SurvivorsSum
from privacy.release import Addend, Release, bitmap
from privacy.rounds import Vector
from services.coordinator.fleet import PREPARE_SECONDS, Fleet, PartyLost, PartyRefused, as_party_error, call
from services.coordinator.recovery import Read, RecoverableRounds, RecoveringCodec, merge_settled
from services.wire import metrics
from services.wire.fedbio_codec import decode_settled, encode_settled
from services.wire.framing import chunks, receive
from services.wire.tensors import Blobs, MessageInvalid
from services.wire.version import VERSION
from spec.run import RunSpec

EXCHANGE = "/parley.party.v1.PartyService/Exchange"
CLOSE_SECONDS = 5.0
"""Longest wait for parties to forget a session; what is not forgotten is dropped with the run's next session."""
REFUSAL_SECONDS = 0.5
"""How long the other parties may still answer once one is lost."""


class Codec(Protocol):
    """How an algorithm's rounds look on the wire."""

    @property
    def body(self) -> str:
        """The field of the envelopes that holds its messages."""

    @property
    def outputs(self) -> int:
        """Columns of the summed embedding."""

    def encode(self, number: int, release: Release[Any]) -> tuple[Message, Blobs]:
        """The instruction of a round."""

    def decode(self, message: Any, blobs: Blobs, release: Release[Any]) -> Addend | None:
        """A party's contribution to a round, checked."""


class RowsDiffer(ValueError):
    """The parties' rows are not the same."""


class ColumnsDiffer(ValueError):
    """The parties hold rows of different tables."""


@dataclass
class Traffic:
    """What a session has sent and received."""

    rounds: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0


@dataclass
class Session:
    """All parties of a run, in the order of their blocks."""

    fleet: Fleet
    spec: RunSpec
    spec_yaml: str
    run_id: str
    session_id: str = field(default_factory=lambda: secrets.token_hex(12))
    traffic: Traffic = field(default_factory=Traffic)
    opened: Sequence[pb.OpenSessionResponse] = ()
    _codec: Codec | None = None
    _desk: SumDesk | None = None
    _recovery: RecoverableRounds | None = None
    _streams: list[Any] = field(default_factory=list)
    _channels: list[grpc.aio.Channel] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        """The parties."""
        return [entry.name for entry in self.spec.parties]

    async def open(self, purpose: int = pb.PURPOSE_TRAIN, table: str = "", ids: Sequence[str] = ()) -> None:
        """Open a session at every party and check that their rows are the same."""
        request = pb.OpenSessionRequest(
            run_id=self.run_id,
            session_id=self.session_id,
            spec_yaml=self.spec_yaml,
            version=VERSION,
            purpose=purpose,  # type: ignore[arg-type]
            table=table,
            ids=ids,
        )
        for name in self.names:
            self.fleet.address(name)
        opening = [call(name, self._method(name, "OpenSession", request), PREPARE_SECONDS) for name in self.names]
        self.opened = await _all(opening)
        metrics.SESSIONS_OPENED.inc()
        metrics.SESSIONS.inc()
        if self.spec.train.layout == "vertical":
            self._check_rows()
        else:
            self._check_columns()

    def _check_columns(self) -> None:
        first = self.opened[0]
        for name, answer in self._answers:
            if (answer.features, answer.column_digest) != (first.features, first.column_digest):
                raise ColumnsDiffer(
                    f"{name}'s {answer.features} columns are not {self.names[0]}'s {first.features}, by name and "
                    "order: name the common ones as `columns` of every party"
                )

    def _check_rows(self) -> None:
        first = self.opened[0]
        for name, answer in self._answers:
            if answer.rows != first.rows:
                raise RowsDiffer(
                    f"{name} has {answer.rows} rows where {self.names[0]} has {first.rows}: align the tables by id, "
                    "so that every organisation keeps the same rows"
                )
            if answer.id_digest != first.id_digest:
                raise RowsDiffer(
                    f"{name} and {self.names[0]} have {first.rows} rows each, but not the same ids: align the tables"
                )

    async def begin(self, checkpoint: int, codec: Codec) -> None:
        """Give every party all keys, and open the data plane."""
        self._codec, self._desk = codec, SumDesk(self.spec.privacy.aggregation, len(self.names))
        request = pb.BeginSessionRequest(
            session_id=self.session_id,
            keys=[answer.key for answer in self.opened],
            upper_sizes=[answer.upper_size for answer in self.opened],
            checkpoint=checkpoint,
            peer_addresses=[self.fleet.address(name) for name in self.names],
            outputs=codec.outputs,
        )
        requests = dict.fromkeys(self.names, request)
        if self._recovers:
            program = cast("RecoveringCodec", codec)  # the spec lets no other algorithm ask for recovery
            settled = merge_settled(decode_settled(answer.settled) for answer in self.opened)
            self._recovery = RecoverableRounds(self, program, self._desk, self.spec, self.session_id, settled)
            if settled:
                program.take_back()
            request.settled.extend(encode_settled((phase, k, bitmap(p)) for (phase, k), p in settled.items()))
            requests = {name: self._from_its_newest(request, answer) for name, answer in self._answers}
        beginning = [self._method(name, "BeginSession", request) for name, request in requests.items()]
        await _all([call(name, begin, PREPARE_SECONDS) for name, begin in zip(requests, beginning, strict=True)])
        attach = pb.ExchangeRequest(attach=pb.Attach(session_id=self.session_id)).SerializeToString()
        for name in self.names:
            channel = self.fleet.bulk_channel(name)
            self._channels.append(channel)
            # Serialised once for all parties: every party gets the same bytes.
            exchange = channel.stream_stream(
                EXCHANGE, request_serializer=bytes, response_deserializer=pb.ExchangeResponse.FromString
            )
            self._streams.append(exchange())
        await _all([self._attach(index, attach) for index in range(len(self.names))])

    @property
    def _recovers(self) -> bool:
        return self.spec.privacy.aggregation.recovery

    @property
    def _answers(self) -> list[tuple[str, pb.OpenSessionResponse]]:
        return list(zip(self.names, self.opened, strict=True))

    def common_checkpoint(self, committed: int) -> int:
        """The newest committed checkpoint that every party can read; 0 begins anew.

        With recovery, those that a sum needs are enough: the others come back from an older one of their own.
        """
        needed = len(self.names)
        if self._recovers:
            needed = self.spec.privacy.aggregation.needed(self.spec.sampled, len(self.names))
        holders = Counter(k for answer in self.opened for k in set(answer.checkpoints))
        return max((k for k, count in holders.items() if count >= needed and k <= committed), default=0)

    @staticmethod
    def _from_its_newest(request: pb.BeginSessionRequest, answer: pb.OpenSessionResponse) -> pb.BeginSessionRequest:
        own = pb.BeginSessionRequest()
        own.CopyFrom(request)
        own.checkpoint = max((k for k in answer.checkpoints if k <= request.checkpoint), default=0)
        return own

    async def _attach(self, index: int, message: bytes) -> None:
        try:
            async with asyncio.timeout(self.spec.round_seconds):
                await self._write(index, [message])
        except TimeoutError:
            raise PartyLost(self.names[index], f"no stream within {self.spec.round_seconds:g} s") from None

    @property
    def left(self) -> Mapping[int, PartyLost]:
        """Parties that the session has gone on without, and how they were lost."""
        return self._recovery.left if self._recovery is not None else {}

    async def exchange(self, release: Release[Any]) -> Vector | SurvivorsSum | None:
        """One round: the instruction to its participants, and the sum of what they contribute."""
        codec = self._codec
        assert codec is not None and self._desk is not None  # noqa: S101, PT018 (begin has set them)
        started = time.perf_counter()
        if self._recovery is not None:
            outcome: Vector | SurvivorsSum | None = await self._recovery.exchange(release.content)
        else:
            outcome = await self._exchange(codec, self._desk, release)
        metrics.ROUNDS.labels(codec.body).inc()
        metrics.STEP_SECONDS.labels(codec.body).observe(time.perf_counter() - started)
        return outcome

    async def _exchange(self, codec: Codec, desk: SumDesk, release: Release[Any]) -> Vector | None:
        instruction, blobs = codec.encode(self.next_number(), release)
        messages = [_serialised(codec, instruction), *_serialised_chunks(blobs)]
        # A round that names no participants is for everyone.
        chosen: Sequence[int] = getattr(release.content, "participants", None) or range(len(self.names))

        def read(message: Any, blobs: Blobs) -> Addend | None:
            return codec.decode(message, blobs, release)

        addends = await _all([self._round_trip(codec, index, messages, read) for index in chosen])
        summed = [addend for addend in addends if addend is not None]
        return desk.open(summed, chosen) if summed else None

    def next_number(self) -> int:
        """A number for the next round trip."""
        self.traffic.rounds += 1
        return self.traffic.rounds

    async def ask(self, messages: Mapping[int, Message], blobs: Blobs, read: Read) -> dict[int, Any]:
        """One round trip with some parties: their answers, or how they were lost. Refusals are raised."""
        codec = self._codec
        assert codec is not None  # noqa: S101 (begin has set it)
        following = _serialised_chunks(blobs)
        trips = [
            self._round_trip(codec, index, [_serialised(codec, one), *following], functools.partial(read, index))
            for index, one in messages.items()
        ]
        answers = await asyncio.gather(*trips, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, PartyLost):
                raise answer
        return dict(zip(messages, answers, strict=True))

    def hang_up(self, party: int) -> None:
        """End the stream of a party that the session goes on without."""
        self._streams[party].cancel()

    async def _round_trip(
        self, codec: Codec, index: int, messages: list[bytes], read: Callable[[Any, Blobs], Any]
    ) -> Any:
        party, number = self.names[index], self.traffic.rounds
        try:
            async with asyncio.timeout(self.spec.round_seconds):
                await self._write(index, messages)
                answer = await self._read(index)
                body = answer.WhichOneof("body")
                if body != codec.body or getattr(answer, body).round != number:
                    raise MessageInvalid("the answer belongs to another round")
                blobs = await receive(answer, lambda: self._read(index))
                return read(getattr(answer, body), blobs)
        except TimeoutError:
            raise PartyLost(party, f"round {number} took more than {self.spec.round_seconds:g} s") from None
        except MessageInvalid as error:
            raise PartyRefused(party, "MESSAGE_INVALID", f"its answer is unusable: {error}") from None

    def _method(self, party: str, name: str, request: Message) -> Callable[[], Awaitable[Any]]:
        return lambda: getattr(self.fleet.stub(party), name)(request)

    async def _write(self, index: int, messages: list[bytes]) -> None:
        try:
            for message in messages:
                self.traffic.sent_bytes += len(message)
                metrics.EDGE_BYTES.labels(self.names[index], metrics.SENT).inc(len(message))
                await self._streams[index].write(message)
        except grpc.aio.AioRpcError as error:
            raise as_party_error(self.names[index], error) from None
        except asyncio.InvalidStateError:
            await self._read(index)  # the stream has ended; reading tells why

    async def _read(self, index: int) -> pb.ExchangeResponse:
        stream = self._streams[index]
        try:
            answer = await stream.read()
        except grpc.aio.AioRpcError as error:
            raise as_party_error(self.names[index], error) from None
        if answer is grpc.aio.EOF:
            raise PartyLost(self.names[index], "it ended the stream")
        size = answer.ByteSize()
        self.traffic.received_bytes += size
        metrics.EDGE_BYTES.labels(self.names[index], metrics.RECEIVED).inc(size)
        return answer  # type: ignore[no-any-return]

    async def leave(self) -> None:
        """End the streams; parties that work on their own go on."""
        for stream in self._streams:
            stream.cancel()
        for channel in self._channels:
            await channel.close()
        self._streams, self._channels = [], []

    async def close(self) -> None:
        """End the streams and let every party forget the session; one that is gone has nothing to forget."""
        await self.leave()
        if self.opened:
            metrics.SESSIONS.dec()
            self.opened = ()
        request = pb.CloseSessionRequest(session_id=self.session_id)
        closing = [call(name, self._method(name, "CloseSession", request), CLOSE_SECONDS) for name in self.names]
        await asyncio.gather(*closing, return_exceptions=True)


def _serialised(codec: Codec, instruction: Message) -> bytes:
    envelope: dict[str, Any] = {codec.body: instruction}
    return pb.ExchangeRequest(**envelope).SerializeToString()


def _serialised_chunks(blobs: Blobs) -> list[bytes]:
    return [pb.ExchangeRequest(chunk=chunk).SerializeToString() for chunk in chunks(blobs)]


async def _all(calls: Sequence[Any]) -> list[Any]:
    """Every call's result; where several fail, a refusal (which waiting cannot mend) is told before a loss.

    A first failure ends the others after a moment: parties that wait for a lost one would keep the rest waiting too.
    """
    tasks = [asyncio.ensure_future(one) for one in calls]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        if not all(task.done() for task in tasks):
            await asyncio.wait(tasks, timeout=REFUSAL_SECONDS)
    finally:
        for task in tasks:
            task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    failures = [result for result in results if isinstance(result, Exception)]
    if failures:
        raise next((failure for failure in failures if isinstance(failure, PartyRefused)), failures[0])
    return results
