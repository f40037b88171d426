"""Entity alignment, driven: one stream to every party, in step, and the result stored here as well."""

import asyncio
import hashlib
import re
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from parley.contracts.alignment.v1 import alignment_service_pb2 as pb
from parley.contracts.alignment.v1 import alignment_service_pb2_grpc as pb_grpc
from parley.coordinator.alignment import Alignment as Intersection
from parley.coordinator.alignment import AnswerUnusable
from parley.coordinator.labels import LabelsMissing
from parley.privacy.psi import LeaderKeys, PsiError, evaluated_of, slots_of
from parley.privacy.psi_curve import Blinding, PointRefused
from parley.privacy.psi_files import Unfinished, forget_old
from parley.privacy.psi_workers import Workers
from parley.privacy.release import AlignmentGate
from parley.protocols.refusals import Catalogue, Refusal
from parley.protocols.tensor.codec import MessageInvalid
from parley.services.coordinator.config import LabelConfig
from parley.services.coordinator.fleet import Fleet, PartyLost, PartyRefused, as_party_error
from parley.services.coordinator.negotiation import negotiate
from parley.services.wire.alignment_codec import BATCH_IDS, MOST_IDS, encode_blinded, encode_duplicates, encode_matches
from parley.spec.run import RunSpec
from parley.tables.alignments import Alignment, AlignmentDamaged, AlignmentStore, AlignmentTaken, AlignmentUnknown
from parley.tables.id_lists import IdList
from parley.tables.identities import (
    AlignmentStale,
    DistinctIds,
    Duplicates,
    IdsMissing,
    IdsRepeated,
    RowChoice,
    identified,
)
from parley.tables.loading import load_ids

ANSWER_SECONDS = 1800.0
"""Longest wait for a party's next message; keepalive finds one that is gone sooner."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")

REFUSALS: Catalogue = {
    AlignmentTaken: Refusal("ALREADY_EXISTS", "ALIGNMENT_TAKEN"),
    AlignmentUnknown: Refusal("NOT_FOUND", "ALIGNMENT_UNKNOWN"),
    AlignmentDamaged: Refusal("DATA_LOSS", "ALIGNMENT_DAMAGED"),
    AlignmentStale: Refusal("FAILED_PRECONDITION", "ALIGNMENT_STALE"),
    IdsRepeated: Refusal("FAILED_PRECONDITION", "IDS_REPEATED"),
    IdsMissing: Refusal("FAILED_PRECONDITION", "LABELS_INVALID"),
}
"""What a coordinator refuses in an alignment, and in a run that names one."""


@dataclass(frozen=True)
class Order:
    """What a client asks for."""

    name: str
    parties: tuple[tuple[str, str], ...]
    """Each party and its table."""
    labels: str
    duplicates: Duplicates


@dataclass(frozen=True)
class Progress:
    """How far an alignment is."""

    stage: str
    done: int
    total: int


@dataclass(frozen=True)
class HeldTable:
    """What an organisation's table held."""

    holder: str
    table: str
    rows: int
    missing: int
    duplicates: int
    ids: int


@dataclass(frozen=True)
class Result:
    """A finished alignment."""

    matched: int
    digest: str
    tables: tuple[HeldTable, ...]


class AlignmentRunner:
    """Aligns the rows of parties with a label table of this coordinator."""

    def __init__(self, coordinator: str, state: Path, labels: dict[str, LabelConfig], fleet: Fleet) -> None:
        self._coordinator, self._labels, self._fleet = coordinator, labels, fleet
        self._alignments = AlignmentStore(state)
        self._turns: dict[str, asyncio.Lock] = {}

    async def align(self, order: Order, report: Callable[[Progress], None]) -> Result:
        """Run one alignment, or go on with one of the same order; `report` is called with how far it is."""
        self._check(order)
        async with self._turns.setdefault(order.name, asyncio.Lock()):
            if self._alignments.has(order.name):
                raise AlignmentTaken(f"there is an alignment {order.name!r} already: choose another name")
            report(Progress("reading", 0, 0))
            own = await asyncio.to_thread(self._identities, order)
            forget_old(self._alignments.unfinished)
            kept = Unfinished(self._alignments.unfinished / hashlib.sha256(order.name.encode()).hexdigest()[:32])
            try:
                return await self._go_on(order, own, kept, report)
            except PartyLost:
                raise
            except PartyRefused as refusal:
                if refusal.reason != "TOO_MANY_ALIGNMENTS":  # later it may be served
                    kept.end()
                raise
            except Exception:
                kept.end()
                raise

    async def _go_on(
        self, order: Order, own: DistinctIds, kept: Unfinished, report: Callable[[Progress], None]
    ) -> Result:
        beginning = await asyncio.to_thread(_beginning, order, own)
        while True:
            facts = kept.facts
            if facts is None or {name: facts[name] for name in beginning} != beginning:
                facts = beginning | _drawn()
                kept.begin(facts)
            streams = [_PartyStream(party, self._fleet.bulk_channel(party)) for party, _ in order.parties]
            try:
                opened = await self._open(order, facts, len(own.ids), streams, kept)
                if facts["opened"] not in (None, (known := [_known(answer) for answer in opened])):
                    kept.end()  # a party began anew, and so does everyone: with other keys
                    continue
                kept.note(facts | {"opened": known})
                with Workers() as workers:
                    result = await self._intersect(order, own, opened, streams, workers, report, kept)
                kept.end()
                return result
            finally:
                for stream in streams:
                    await stream.close()

    async def _intersect(
        self,
        order: Order,
        own: DistinctIds,
        opened: Sequence[pb.Opened],
        streams: Sequence["_PartyStream"],
        workers: Workers,
        report: Callable[[Progress], None],
        kept: Unfinished,
    ) -> Result:
        facts, gate, count = kept.facts or {}, AlignmentGate(), len(own.ids)
        sizes = {stream.party: answer.ids for stream, answer in zip(streams, opened, strict=True)}
        keys = LeaderKeys(
            Blinding(bytes.fromhex(facts["scalar"]), bytes.fromhex(facts["inverse"])), bytes.fromhex(facts["order_key"])
        )
        work = await asyncio.to_thread(Intersection, own.ids, facts["alignment_id"], sizes, keys, kept)
        await self._shuffle(streams, [answer.key for answer in opened])
        held = [answer.blinded_held for answer in opened]
        for first in range(min(held), count, BATCH_IDS):
            last = min(first + BATCH_IDS, count)
            points = await asyncio.to_thread(work.blinded, workers, first, last)
            await _all(
                stream.send([encode_blinded(gate.release(points.after(max(0, has - first))))])
                for stream, has in zip(streams, held, strict=True)
                if has < last
            )
            report(Progress("blinding", last, count))
        await self._compare(work, streams, workers, report)
        report(Progress("matching", 0, 0))
        total = await asyncio.to_thread(work.match)
        await _all(
            stream.send(encode_matches(gate.release(part), total) for part in work.matches(stream.party))
            for stream in streams
        )
        accepted = await _all(stream.expect("accepted") for stream in streams)
        shares = {stream.party: answer.shuffle_share for stream, answer in zip(streams, accepted, strict=True)}
        common = await asyncio.to_thread(work.common, shares)
        return await self._store(order, own, opened, common, streams)

    async def _open(
        self,
        order: Order,
        facts: Mapping[str, Any],
        ids: int,
        streams: Sequence["_PartyStream"],
        kept: Unfinished,
    ) -> Sequence[pb.Opened]:
        tables = dict(order.parties)

        agreed = await negotiate(self._fleet, list(tables))

        async def open_(holder: int, stream: _PartyStream) -> pb.Opened:
            request = pb.Open(
                alignment_id=facts["alignment_id"],
                name=order.name,
                table=tables[stream.party],
                parties=list(tables),
                coordinator_ids=ids,
                duplicates=encode_duplicates(order.duplicates),
                version=agreed.versions[stream.party],
                protocol=agreed.protocol,
                evaluated_held=len(evaluated_of(kept, holder)),
                slots_held=len(slots_of(kept, holder)),
            )
            await stream.send([pb.IntersectRequest(open=request)])
            opened: pb.Opened = await stream.expect("opened")
            if not 0 < opened.ids <= MOST_IDS:
                raise PartyRefused(stream.party, "MESSAGE_INVALID", f"{opened.ids} ids cannot be aligned")
            if opened.blinded_held > ids:
                raise PartyRefused(stream.party, "MESSAGE_INVALID", "it has more ids than were sent")
            return opened

        return await _all(open_(holder, stream) for holder, stream in enumerate(streams))

    async def _shuffle(self, streams: Sequence["_PartyStream"], keys: Sequence[Any]) -> None:
        begin = pb.IntersectRequest(begin=pb.Begin(keys=keys))
        await _all(stream.send([begin]) for stream in streams)
        begun = [list(answer.sealed_shares) for answer in await _all(stream.expect("begun") for stream in streams)]
        for stream, shares in zip(streams, begun, strict=True):
            if len(shares) != len(streams):
                raise PartyRefused(stream.party, "MESSAGE_INVALID", "it sent no share of the shuffle for each party")
        await _all(
            stream.send([pb.IntersectRequest(shuffle=pb.Shuffle(sealed_shares=[shares[index] for shares in begun]))])
            for index, stream in enumerate(streams)
        )

    async def _compare(
        self,
        work: Intersection,
        streams: Sequence["_PartyStream"],
        workers: Workers,
        report: Callable[[Progress], None],
    ) -> None:
        total = len(work.leader) * len(streams)

        async def take(stream: _PartyStream) -> None:
            answer = work.answers[stream.party]
            try:
                while answer.wants_points:
                    points = (await stream.expect("evaluated_ids")).points
                    # Written here and not in the thread, which goes on when this alignment is interrupted.
                    answer.evaluated.append(await asyncio.to_thread(answer.unblinded, points, workers))
                    done = sum(len(each.evaluated) for each in work.answers.values())
                    report(Progress("comparing", done, total))
                while answer.wants_slots:
                    part = await stream.expect("table_slots")
                    answer.take_slots(part.salt, part.slots)
            except (AnswerUnusable, PsiError, PointRefused) as error:
                raise PartyRefused(stream.party, "MESSAGE_INVALID", f"its answer is unusable: {error}") from None

        await _all(take(stream) for stream in streams)

    async def _store(
        self,
        order: Order,
        own: DistinctIds,
        opened: Sequence[pb.Opened],
        common: IdList,
        streams: Sequence["_PartyStream"],
    ) -> Result:
        parties = tuple(party for party, _ in order.parties)
        ids = await asyncio.to_thread(common.sorted)
        digest = await asyncio.to_thread(ids.digest)
        alignment = Alignment(order.name, order.labels, self._coordinator, parties, order.duplicates, digest, ids)
        commit = pb.IntersectRequest(commit=pb.Commit(id_digest=bytes.fromhex(alignment.digest)))
        await _all(stream.send([commit]) for stream in streams)
        await _all(stream.expect("committed") for stream in streams)
        # Last, so that a name that is stored here is stored everywhere; until then it can be used again.
        await asyncio.to_thread(self._alignments.save, alignment)
        tables = [
            HeldTable(self._coordinator, order.labels, own.total, own.missing, own.duplicates, len(own.ids)),
            *(
                HeldTable(party, table, answer.rows, answer.missing, answer.duplicates, answer.ids)
                for (party, table), answer in zip(order.parties, opened, strict=True)
            ),
        ]
        return Result(len(common), alignment.digest, tuple(tables))

    def _check(self, order: Order) -> None:
        names = [party for party, _ in order.parties]
        if not _NAME.fullmatch(order.name):
            raise MessageInvalid("name: choose 1 to 63 letters, digits, dots, dashes or underscores")
        if not names or len(set(names)) != len(names) or len(names) > 64:
            raise MessageInvalid("parties: name 1 to 64 parties, each once")
        for name in names:
            self._fleet.address(name)
        if order.labels not in self._labels:
            raise LabelsMissing(
                f"the coordinator has no labels {order.labels!r}, only {sorted(self._labels)}: name one of them with "
                "--labels, or add the table to the coordinator's configuration"
            )

    def _identities(self, order: Order) -> DistinctIds:
        config = self._labels[order.labels]
        texts = load_ids(
            config.source,
            config.format,
            config.id,
            column=config.column,
            delimiter=config.delimiter,
            unlabelled="drop" if config.unlabelled == "drop" else "keep",
        )
        found = identified(texts, order.duplicates, holder=self._coordinator, table=order.labels)
        if len(found.ids) > MOST_IDS:
            raise MessageInvalid(f"{order.labels} has {len(found.ids)} ids; at most {MOST_IDS} are aligned")
        return found


def _beginning(order: Order, own: DistinctIds) -> dict[str, Any]:
    """What must be the same for an alignment to go on."""
    asked = {"parties": [list(each) for each in order.parties], "labels": order.labels, "duplicates": order.duplicates}
    return {"asked": asked, "ids": own.ids.digest()}


def _drawn() -> dict[str, Any]:
    """What an alignment draws when it begins."""
    keys = LeaderKeys.fresh()
    return {
        "alignment_id": secrets.token_hex(12),
        "scalar": keys.blinding.scalar.hex(),
        "inverse": keys.blinding.inverse.hex(),
        "order_key": keys.order.hex(),
        "opened": None,
    }


def _known(opened: pb.Opened) -> str:
    """What a party says again if it goes on; one that began anew has another key."""
    same = pb.Opened()
    same.CopyFrom(opened)
    same.ClearField("blinded_held")
    return same.SerializeToString(deterministic=True).hex()


class _PartyStream:
    """The stream to one party; failures are told apart as lost or refused."""

    def __init__(self, party: str, channel: grpc.aio.Channel) -> None:
        self.party, self._channel = party, channel
        self._stream: Any = pb_grpc.AlignmentServiceStub(channel).Intersect()

    async def send(self, messages: Iterable[pb.IntersectRequest]) -> None:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                for message in messages:
                    await self._stream.write(message)
        except TimeoutError:
            raise PartyLost(self.party, f"it took nothing for {ANSWER_SECONDS:g} s") from None
        except grpc.aio.AioRpcError as error:
            raise as_party_error(self.party, error) from None
        except asyncio.InvalidStateError:
            await self._read()  # the stream has ended; reading tells why
            raise PartyLost(self.party, "it ended the stream") from None

    async def expect(self, expected: str) -> Any:
        answer = await self._read()
        if answer.WhichOneof("body") != expected:
            raise PartyRefused(self.party, "MESSAGE_INVALID", f"`{expected}` was expected of it")
        return getattr(answer, expected)

    async def _read(self) -> pb.IntersectResponse:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                answer = await self._stream.read()
        except TimeoutError:
            raise PartyLost(self.party, f"no answer within {ANSWER_SECONDS:g} s") from None
        except grpc.aio.AioRpcError as error:
            raise as_party_error(self.party, error) from None
        if answer is grpc.aio.EOF:
            raise PartyLost(self.party, "it ended the stream")
        return answer  # type: ignore[no-any-return]

    async def close(self) -> None:
        self._stream.cancel()
        await self._channel.close()


async def _all(calls: Iterable[Any]) -> list[Any]:
    """Every call's result; the first failure ends the others."""
    tasks = [asyncio.ensure_future(one) for one in calls]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def followed(runner: AlignmentRunner, order: Order) -> AsyncIterator[Progress | Result]:
    """Progress of an alignment, and at last its result; the alignment ends if the client stops listening."""
    news: asyncio.Queue[Progress | None] = asyncio.Queue()
    aligning = asyncio.create_task(runner.align(order, news.put_nowait))
    aligning.add_done_callback(lambda _: news.put_nowait(None))
    try:
        while (step := await news.get()) is not None:
            yield step
        yield await aligning
    finally:
        aligning.cancel()
        await asyncio.gather(aligning, return_exceptions=True)


def chosen_rows(store: AlignmentStore, coordinator: str, spec: RunSpec) -> RowChoice | None:
    """The rows of the label table that a run's alignment chose; None for all of them.

    An alignment is of the table that parties read; other label tables about the same rows serve with it as well.
    """
    if spec.alignment is None:
        return None
    aligned = [spec.table_of(index) for index in range(len(spec.parties))]
    return store.load(spec.alignment, spec.label_table, coordinator, aligned).choice
