"""A session with all parties of a run: open, check, begin, and one round trip for each round."""

import asyncio
import logging
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import Message

from parley.contracts.party.v1 import party_service_pb2 as pb
from parley.contracts.serving.v1.serving_pb2 import GivenFeatures, ServedRows
from parley.coordinator.programs import RecoverableProgram, WireForm
from parley.numerics.arrays import Vector
from parley.privacy.aggregation import SumOpening, SurvivorsSum
from parley.privacy.receipts import LedgerHead
from parley.privacy.release import Addend, Release
from parley.protocols.protocol import CrossingProtocol
from parley.protocols.tensor.codec import Blobs
from parley.services.coordinator.fleet import PREPARE_SECONDS, Fleet, PartyLost, PartyRefused, call
from parley.services.coordinator.negotiation import Negotiated, negotiate
from parley.services.coordinator.receipts import Receipts
from parley.services.coordinator.recovery import RecoverableRounds, members_of, merge_settled
from parley.services.coordinator.streams import REFUSAL_SECONDS, Declined, PartyStream, Read, RoundTrip, Traffic
from parley.services.wire import metrics
from parley.services.wire.envelopes import packed
from parley.services.wire.framing import framed
from parley.spec.run import RunSpec
from parley.tables.errors import RowsDiffer

logger = logging.getLogger(__name__)
CLOSE_SECONDS = 5.0
"""Longest wait for parties to close a session; one that stays open is dropped by the run's next session."""


class ColumnsDiffer(ValueError):
    """The parties hold rows of different tables."""


@dataclass
class Session:
    """All parties of a run, in the order of their blocks."""

    fleet: Fleet
    spec: RunSpec
    spec_yaml: str
    run_id: str
    protocol: CrossingProtocol
    session_id: str = field(default_factory=lambda: secrets.token_hex(12))
    traffic: Traffic = field(default_factory=Traffic)
    opened: Sequence[pb.OpenSessionResponse] = ()
    ledger: LedgerHead = field(default_factory=LedgerHead)
    """The label ledger's newest entry; parties sign it with their receipts."""
    _negotiated: Negotiated = field(default_factory=lambda: Negotiated(0, {}))
    _receipts: Receipts = field(default_factory=Receipts)
    _form: WireForm | None = None
    _opening: SumOpening | None = None
    _recovery: RecoverableRounds | None = None
    _streams: list[PartyStream] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        """The parties."""
        return [entry.name for entry in self.spec.parties]

    @property
    def protocol_number(self) -> int:
        """The version of the protocol that the session is held in; 0 before it is open."""
        return self._negotiated.protocol

    async def open(
        self, purpose: int = pb.PURPOSE_TRAIN, table: str = "", ids: Sequence[str] = (), deployment: str = ""
    ) -> None:
        """Find what everyone speaks, open a session at every party and check that their rows are the same."""
        for name in self.names:
            self.fleet.address(name)
        self._negotiated = await negotiate(self.fleet, self.names)
        request = pb.OpenSessionRequest(
            run_id=self.run_id,
            session_id=self.session_id,
            spec_yaml=self.spec_yaml,
            protocol=self._negotiated.protocol,
            purpose=purpose,  # type: ignore[arg-type]
            table=table,
            ids=ids,
            deployment=deployment,
        )
        opening = []
        for name in self.names:
            own = pb.OpenSessionRequest(version=self._negotiated.versions[name])
            own.MergeFrom(request)
            opening.append(call(name, self._method(name, "OpenSession", own), PREPARE_SECONDS))
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

    async def begin(self, checkpoint: int, form: WireForm) -> None:
        """Give every party all keys, and open the data plane."""
        self._form, self._opening = form, SumOpening(self.spec.privacy.aggregation, len(self.names))
        request = pb.BeginSessionRequest(
            session_id=self.session_id,
            keys=[answer.key for answer in self.opened],
            upper_sizes=[answer.upper_size for answer in self.opened],
            checkpoint=checkpoint,
            peer_addresses=[self.fleet.address(name) for name in self.names],
            outputs=form.outputs,
            run_checkpoint=checkpoint,
        )
        requests = dict.fromkeys(self.names, request)
        codec = self.protocol.recovery
        if self._recovers and codec is not None and isinstance(form, RecoverableProgram):
            settled = merge_settled(codec.decode_settled(answer.settled) for answer in self.opened)
            self._recovery = RecoverableRounds(
                self, form, codec, self._opening, self.spec, self.session_id, members_of(settled)
            )
            if settled:
                form.expect_rejoiners()
            known: Any = codec.encode_settled((phase, k, whom) for (phase, k), whom in settled.items())
            request.settled.extend(known)
            requests = {name: self._from_its_newest(request, answer) for name, answer in self._answers}
        beginning = [self._method(name, "BeginSession", request) for name, request in requests.items()]
        await _all([call(name, begin, PREPARE_SECONDS) for name, begin in zip(requests, beginning, strict=True)])
        attach = pb.ExchangeRequest(attach=pb.Attach(session_id=self.session_id)).SerializeToString()
        for index, name in enumerate(self.names):
            channel = self.fleet.bulk_channel(name)
            self._streams.append(PartyStream(index, name, channel, attach, self.traffic, self.protocol))

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

    @property
    def left(self) -> Mapping[int, PartyLost]:
        """Parties that the session has gone on without, and how they were lost."""
        return self._recovery.left if self._recovery is not None else {}

    async def exchange(self, release: Release[Any]) -> Vector | SurvivorsSum | None:
        """One round: the instruction to its participants, and the sum of what they contribute."""
        form = self._form
        assert form is not None and self._opening is not None  # noqa: S101, PT018 (begin has set them)
        started, before = time.perf_counter(), self.traffic.sent_bytes + self.traffic.received_bytes
        with self.fleet.traces.round(self.run_id, self.session_id, self.traffic.rounds + 1) as figures:
            if self._recovery is not None:
                outcome: Vector | SurvivorsSum | None = await self._recovery.exchange(release.content)
            else:
                outcome = await self._exchange(form, self._opening, release)
            figures["parley.bytes"] = self.traffic.sent_bytes + self.traffic.received_bytes - before
        metrics.note_round(self.protocol.name, time.perf_counter() - started)
        return outcome

    async def _exchange(self, form: WireForm, opening: SumOpening, release: Release[Any]) -> Vector | None:
        instruction, blobs = form.encode(self.next_number(), release)
        named = release.content.participants
        chosen: Sequence[int] = range(len(self.names)) if named is None else named

        def read(_: int, message: Any, blobs: Blobs) -> Addend | None:
            return form.decode(message, blobs, release)

        trip = RoundTrip(self.traffic.rounds, chosen, read, patient=False, receipts=self._receipts.note)
        messages = self._serialised(instruction, blobs)
        for index in chosen:
            owed = self._receipts.owed(index)
            self._streams[index].ask(trip, self._serialised(instruction, blobs, owed) if owed else messages)
        answers = await trip.answers(self.spec.round_seconds)
        _raise_failure(answers.values())
        for index in chosen:
            if index not in answers:
                raise self._late(index)
        addends = [answers[index] for index in chosen if answers[index] is not None]
        return opening.open(addends, chosen) if addends else None

    async def serve(
        self, release: Release[Any], served: ServedRows, features: Mapping[int, GivenFeatures]
    ) -> Vector | Mapping[str, Declined]:
        """One round over rows that it names: their sums, or who declined and why. A refusal ends the session."""
        form, opening = self._form, self._opening
        assert form is not None and opening is not None  # noqa: S101, PT018 (begin has set them)
        started = time.perf_counter()
        instruction, blobs = form.encode(self.next_number(), release)

        def read(_: int, message: Any, blobs: Blobs) -> Addend | None:
            return form.decode(message, blobs, release)

        everyone = range(len(self.names))
        trip = RoundTrip(self.traffic.rounds, everyone, read, patient=True, may_decline=True)
        (envelope,) = framed(pb.ExchangeRequest, blobs, **{self.protocol.body: packed(self.protocol, instruction)})
        envelope.served.CopyFrom(served)
        common = envelope.SerializeToString()
        for index in everyone:
            message = common
            if index in features:  # of this party alone
                envelope.features.CopyFrom(features[index])
                message = envelope.SerializeToString()
                envelope.ClearField("features")
            self._streams[index].ask(trip, [message])
        answers = await trip.answers(self.spec.round_seconds)
        _raise_failure(answers.values())
        for index in everyone:
            if index not in answers:
                raise self._late(index)
        metrics.note_round(self.protocol.name, time.perf_counter() - started)
        declined = {self.names[index]: answers[index] for index in everyone if isinstance(answers[index], Declined)}
        return declined or opening.open([answers[index] for index in everyone], everyone)

    def next_number(self) -> int:
        """A number for the next round trip."""
        self.traffic.rounds += 1
        return self.traffic.rounds

    async def ask(self, messages: Mapping[int, Message], blobs: Blobs, read: Read) -> dict[int, Any]:
        """One round trip with some parties: their answers, or how they were lost. Refusals are raised."""
        trip = RoundTrip(self.traffic.rounds, messages, read, patient=True, receipts=self._receipts.note)
        for index, message in messages.items():
            self._streams[index].ask(trip, self._serialised(message, blobs, self._receipts.owed(index)))
        answers = await trip.answers(self.spec.round_seconds)
        _raise_failure(answer for answer in answers.values() if not isinstance(answer, PartyLost))
        return {index: answers.get(index, self._late(index)) for index in messages}

    def _serialised(self, instruction: Message, blobs: Blobs, receipts: Sequence[Any] = ()) -> list[bytes]:
        body = {self.protocol.body: packed(self.protocol, instruction)}
        messages = framed(pb.ExchangeRequest, blobs, **body)
        messages[0].receipts.extend(receipts)
        messages[0].ledger_entries, messages[0].ledger_head = self.ledger.entries, self.ledger.head
        return [message.SerializeToString() for message in messages]

    def _late(self, index: int) -> PartyLost:
        return PartyLost(self.names[index], f"round {self.traffic.rounds} took more than {self.spec.round_seconds:g} s")

    def end_stream(self, party: int) -> None:
        """End the stream of a party that the session goes on without."""
        self._streams[party].end()

    def _method(self, party: str, name: str, request: Message) -> Callable[[], Awaitable[Any]]:
        return lambda: getattr(self.fleet.stub(party), name)(request)

    async def leave(self) -> None:
        """End the streams; parties that work on their own go on."""
        streams, self._streams = self._streams, []
        await asyncio.gather(*(stream.close() for stream in streams))

    async def close(self) -> None:
        """End the streams and let every party forget the session; one that is gone has nothing to forget."""
        await self.leave()
        if self.opened:
            metrics.SESSIONS.dec()
            self.opened = ()
        closing = []
        for index, name in enumerate(self.names):
            request = pb.CloseSessionRequest(session_id=self.session_id, receipts=self._receipts.owed(index))
            closing.append(call(name, self._method(name, "CloseSession", request), CLOSE_SECONDS))
        for name, outcome in zip(self.names, await asyncio.gather(*closing, return_exceptions=True), strict=True):
            if isinstance(outcome, PartyRefused):
                logger.error("%s does not accept the last receipts of session %s: %s", name, self.session_id, outcome)


def _raise_failure(results: Iterable[Any]) -> None:
    """Raise the first failure, if any; a refusal before a loss, since waiting does not help against it."""
    failures = [result for result in results if isinstance(result, Exception)]
    if failures:
        raise next((failure for failure in failures if isinstance(failure, PartyRefused)), failures[0])


async def _all(calls: Sequence[Any]) -> list[Any]:
    """Every call's result.

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
    _raise_failure(results)
    return results
