"""AlignmentService: a party's side of entity alignment, and the stored rows that runs then read."""

import asyncio
import contextlib
import hashlib
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc

from parley.contracts.alignment.v1 import alignment_service_pb2 as pb
from parley.contracts.alignment.v1 import alignment_service_pb2_grpc as pb_grpc
from parley.party.alignment import (
    AlignmentRefused,
    AlignmentRules,
    TooFewMatches,
    TooManyAlignments,
    check_matches,
    check_rate,
    check_request,
)
from parley.privacy.psi import POWERS, Holder, HolderKeys, PsiError
from parley.privacy.psi_curve import POINT_BYTES, PointRefused
from parley.privacy.psi_files import Unfinished, forget_old
from parley.privacy.psi_workers import Workers
from parley.privacy.release import AlignmentGate
from parley.privacy.session_keys import SessionKey, pair_secret, verify_signed_key
from parley.protocols.refusals import Catalogue, Refusal
from parley.protocols.tensor.codec import MessageInvalid
from parley.services.party.alignment_attempts import AttemptLog
from parley.services.party.config import PartyConfig
from parley.services.party.signed_keys import decode_key, encode_key, require_standing
from parley.services.party.tables import TableStore
from parley.services.party.versions import require_spoken
from parley.services.wire.alignment_codec import (
    BATCH_IDS,
    MOST_IDS,
    decode_duplicates,
    encode_evaluated,
    encode_sealed,
    encode_share,
    encode_table,
)
from parley.services.wire.authorisation import NotAuthorised, caller_of
from parley.services.wire.certificates import load_identity
from parley.spec.run import RunSpec
from parley.tables.alignments import Alignment, AlignmentDamaged, AlignmentStore, AlignmentTaken, AlignmentUnknown
from parley.tables.id_lists import IdList
from parley.tables.identities import AlignmentStale, DistinctIds, Duplicates, IdsMissing, IdsRepeated, identified

AT_ONCE = 2
"""Alignments that a party serves at once."""
ENDING_SECONDS = 60.0
"""Longest wait for an alignment to end whose coordinator is back already."""
SILENCE_SECONDS = 1800.0
"""Longest wait for the coordinator's next message."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")

REFUSALS: Catalogue = {
    AlignmentRefused: Refusal("PERMISSION_DENIED", "POLICY_REFUSED"),
    TooManyAlignments: Refusal("RESOURCE_EXHAUSTED", "TOO_MANY_ALIGNMENTS"),
    TooFewMatches: Refusal("PERMISSION_DENIED", "TOO_FEW_MATCHES"),
    AlignmentTaken: Refusal("ALREADY_EXISTS", "ALIGNMENT_TAKEN"),
    AlignmentUnknown: Refusal("NOT_FOUND", "ALIGNMENT_UNKNOWN"),
    AlignmentDamaged: Refusal("DATA_LOSS", "ALIGNMENT_DAMAGED"),
    AlignmentStale: Refusal(
        "FAILED_PRECONDITION",
        "ALIGNMENT_STALE",
        "the table no longer has all aligned rows: align the tables again under a new name",
    ),
    IdsRepeated: Refusal("FAILED_PRECONDITION", "IDS_REPEATED"),
    IdsMissing: Refusal("FAILED_PRECONDITION", "DATA_INVALID"),
    PsiError: Refusal("INVALID_ARGUMENT", "MESSAGE_INVALID"),
    PointRefused: Refusal("INVALID_ARGUMENT", "MESSAGE_INVALID"),
}
"""What a party refuses in an alignment, and in a run that names one."""


class Interrupted(MessageInvalid):
    """The coordinator has stopped speaking; it can go on later."""


@dataclass(frozen=True)
class Request:
    """What a coordinator asks for, checked."""

    alignment_id: str
    name: str
    table: str
    parties: tuple[str, ...]
    coordinator: str
    coordinator_ids: int
    duplicates: Duplicates
    evaluated_held: int
    slots_held: int

    @property
    def key(self) -> str:
        """Where it is kept while it has not ended: a coordinator has one alignment of a name at a time."""
        return hashlib.sha256(f"{self.coordinator}/{self.name}".encode()).hexdigest()[:32]

    @property
    def terms(self) -> list[Any]:
        """What must be the same for an alignment to go on."""
        asked = [self.alignment_id, self.table, list(self.parties), self.coordinator, self.coordinator_ids]
        return [*asked, self.duplicates]


class AlignmentServicer(pb_grpc.AlignmentServiceServicer):
    """What a coordinator may ask of this party to align rows."""

    def __init__(self, config: PartyConfig) -> None:
        self._config, self._tables = config, TableStore(config.tables, config.workspace)
        self._alignments = AlignmentStore(config.state)
        self._attempts = AttemptLog(self._alignments.directory)
        self._serving: dict[str, asyncio.Event] = {}
        forget_old(self._alignments.unfinished)

    async def Intersect(  # noqa: N802 (gRPC spells method names)
        self, request_iterator: AsyncIterator[pb.IntersectRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.IntersectResponse]:
        """One alignment, from the first message to the last."""
        caller = caller_of(context).name
        if caller not in self._config.policy.coordinators:
            raise NotAuthorised(f"{self._config.name}'s policy does not name coordinator {caller}")
        following = _conversation(request_iterator)
        request = self._request((await following("open")).open, caller)
        with contextlib.suppress(TimeoutError):
            if (earlier := self._serving.get(request.key)) is not None:  # whose stream broke a moment ago
                await asyncio.wait_for(earlier.wait(), ENDING_SECONDS)
        if len(self._serving) >= AT_ONCE or request.key in self._serving:
            raise TooManyAlignments(
                f"{self._config.name} serves {len(self._serving)} alignments, and none of a name twice: try again later"
            )
        ended = self._serving[request.key] = asyncio.Event()
        kept = Unfinished(self._alignments.unfinished / request.key)
        try:
            forget_old(self._alignments.unfinished)
            with Workers() as workers:
                async for response in self._serve(request, following, workers, kept):
                    yield response
            kept.end()
        except Interrupted:
            raise
        except Exception:
            kept.end()
            raise
        finally:
            del self._serving[request.key]
            ended.set()

    async def _serve(
        self, request: Request, following: Callable[[str], Awaitable[Any]], workers: Workers, kept: Unfinished
    ) -> AsyncIterator[pb.IntersectResponse]:
        ids, opened = await asyncio.to_thread(self._begun, request, kept)
        facts = kept.facts or {}
        opened.blinded_held = len(kept.records(POWERS, POINT_BYTES))
        yield pb.IntersectResponse(opened=opened)

        begin = (await following("begin")).begin
        holder = self._holder(begin, request, ids, facts, kept)
        gate = AlignmentGate(lambda: self._record(request, facts, kept, begin))
        yield encode_sealed(await asyncio.to_thread(gate.release, holder.sealed_shares()))

        # The party's own ids are hashed while the coordinator's are on their way.
        building = asyncio.ensure_future(asyncio.to_thread(holder.make_table, workers))
        try:
            shares = (await following("shuffle")).shuffle
            self._bind("shuffle", shares.SerializeToString(deterministic=True), facts, kept)
            holder.open_shares(shares.sealed_shares)
            await self._take_powers(request, following, holder, workers)
            for points in holder.shuffled(request.evaluated_held):
                yield encode_evaluated(gate.release(points))
            await building
            for part in holder.table(request.slots_held):
                yield encode_table(gate.release(part))
        finally:
            workers.close()  # ends the thread, which writes into the same files as the next attempt
            await asyncio.wait([building])

        tags = await self._tags(request, following)
        self._bind("matches", tags, facts, kept)  # or each time it goes on would be one more question
        common = await asyncio.to_thread(holder.common, tags)
        check_matches(self._rules, self._config.name, len(common))
        yield encode_share(gate.release(holder.share()))

        alignment = await asyncio.to_thread(alignment_of, request, common)
        commit = (await following("commit")).commit
        if commit.id_digest.hex() != alignment.digest:
            raise MessageInvalid("the coordinator's common ids are not this party's: nothing is stored, align again")
        await asyncio.to_thread(self._alignments.save, alignment)
        yield pb.IntersectResponse(committed=pb.Committed())

    async def _take_powers(
        self, request: Request, following: Callable[[str], Awaitable[Any]], holder: Holder, workers: Workers
    ) -> None:
        due = request.coordinator_ids - len(holder.powers)
        while due:
            points = (await following("blinded_ids")).blinded_ids.points
            if not 0 < len(points) <= min(BATCH_IDS, due) * POINT_BYTES:
                raise MessageInvalid(
                    f"blinded ids come in batches of 1 to {BATCH_IDS}, and no more than were announced"
                )
            # Written here and not in the thread, which goes on when this alignment is interrupted.
            holder.take(await asyncio.to_thread(holder.power, points, workers))
            due -= len(points) // POINT_BYTES

    async def _tags(self, request: Request, following: Callable[[str], Awaitable[Any]]) -> bytearray:
        first = (await following("matches")).matches
        tags, due = bytearray(first.tags), 16 * first.total
        if first.total > request.coordinator_ids:
            raise MessageInvalid("more ids are common than the coordinator has")
        while len(tags) < due:
            part = (await following("matches")).matches.tags
            if not part:
                raise MessageInvalid("a message of matches holds none")
            tags += part
        if len(tags) != due:
            raise MessageInvalid("the matches are not as many as were announced")
        return tags

    @property
    def _rules(self) -> AlignmentRules:
        policy = self._config.policy
        settings = policy.alignment
        return AlignmentRules(settings.allowed, settings.minimum_matches, settings.per_day, policy.tables)

    def _request(self, message: pb.Open, coordinator: str) -> Request:
        parties = tuple(message.parties)
        if not _NAME.fullmatch(message.name) or not 8 <= len(message.alignment_id) <= 64:
            raise MessageInvalid("name: 1 to 63 letters, digits, dots, dashes or underscores; alignment_id: 8 to 64")
        if self._config.name not in parties or len(set(parties)) != len(parties) or len(parties) > 64:
            raise MessageInvalid(f"parties: up to 64 different names, {self._config.name} among them")
        if not 0 < message.coordinator_ids <= MOST_IDS:
            raise MessageInvalid(f"coordinator_ids: between 1 and {MOST_IDS}")
        require_spoken(self._config.name, message.version, message.protocol)
        duplicates = decode_duplicates(message.duplicates)
        check_request(self._rules, self._config.name, message.table, message.coordinator_ids)
        return Request(
            message.alignment_id,
            message.name,
            message.table,
            parties,
            coordinator,
            message.coordinator_ids,
            duplicates,
            message.evaluated_held,
            message.slots_held,
        )

    def _begun(self, request: Request, kept: Unfinished) -> tuple[IdList, pb.Opened]:
        """The party's ids, and what it says of them: the same again if the alignment goes on."""
        self._alignments.refuse_others(request.name, request.coordinator)
        facts = kept.facts
        goes_on = facts is not None and facts["request"] == request.terms
        if not goes_on:
            self._check_rate(request, time.time())
        found = identified(
            self._tables.ids(request.table), request.duplicates, holder=self._config.name, table=request.table
        )
        if len(found.ids) > MOST_IDS:
            raise AlignmentRefused(f"table {request.table} has {len(found.ids)} ids; at most {MOST_IDS} are aligned")
        digest = found.ids.digest()
        if facts is None or not goes_on or facts["ids"] != digest:
            self._check_rate(request, time.time())
            key, drawn = SessionKey.generate(), HolderKeys.fresh()
            opened = self._opened(found, key, request)
            facts = {"request": request.terms, "ids": digest, "opened": opened.SerializeToString().hex()}
            facts |= {"key": key.private_bytes.hex(), "scalar": drawn.scalar.hex(), "share": drawn.share.hex()}
            kept.begin(facts)
        return found.ids, pb.Opened.FromString(bytes.fromhex(facts["opened"]))

    def _opened(self, found: DistinctIds, key: SessionKey, request: Request) -> pb.Opened:
        return pb.Opened(
            rows=found.total,
            missing=found.missing,
            duplicates=found.duplicates,
            ids=len(found.ids),
            key=encode_key(self._config, key, request.alignment_id),
        )

    def _holder(
        self, begin: pb.Begin, request: Request, ids: IdList, facts: dict[str, Any], kept: Unfinished
    ) -> Holder:
        if len(begin.keys) != len(request.parties):
            raise MessageInvalid(f"a key for each of {list(request.parties)} is needed")
        require_standing(self._config, begin.keys)
        ca, own, secrets = load_identity(self._config.identity).ca, self._config.name, {}
        key = SessionKey(bytes.fromhex(facts["key"]))
        for index, (name, sent) in enumerate(zip(request.parties, begin.keys, strict=True)):
            if name != own:
                signed = decode_key(sent, request.alignment_id)
                verify_signed_key(signed, ca, name, request.alignment_id, 0)
                secrets[index] = pair_secret(
                    key, own, name, sent.public_key, run_id=request.alignment_id, attempt=0, purpose="alignment"
                )
        keys = HolderKeys(bytes.fromhex(facts["scalar"]), bytes.fromhex(facts["share"]))
        return Holder(ids, request.parties.index(own), secrets, request.alignment_id.encode(), keys, kept)

    def _record(self, request: Request, facts: dict[str, Any], kept: Unfinished, begin: pb.Begin) -> None:
        """Count the attempt, once for all times that it goes on: nothing but the same can be asked again."""
        if "begin" not in facts:
            now = time.time()
            with self._attempts.turn:
                self._check_rate(request, now)
                self._attempts.add(request.coordinator, request.table, request.name, now)
        self._bind("begin", begin.SerializeToString(deterministic=True), facts, kept)

    def _bind(self, name: str, content: bytes | bytearray, facts: dict[str, Any], kept: Unfinished) -> None:
        """Take one message of a kind, and no other when the alignment goes on."""
        digest = hashlib.sha256(content).hexdigest()
        if facts.setdefault(name, digest) != digest:
            raise MessageInvalid(f"`{name}` is not what came before this alignment was interrupted")
        kept.note(facts)

    def _check_rate(self, request: Request, now: float) -> None:
        earlier = self._attempts.times(request.coordinator, request.table)
        check_rate(self._rules, self._config.name, request.table, earlier, now)


def alignment_of(request: Request, common: IdList) -> Alignment:
    """What is stored."""
    ids = common.sorted()
    return Alignment(
        request.name, request.table, request.coordinator, request.parties, request.duplicates, ids.digest(), ids
    )


def aligned_tables(
    tables: TableStore, alignments: AlignmentStore, spec: RunSpec, table: str, coordinator: str
) -> TableStore:
    """The tables that a run reads: of an aligned table only the rows that everyone has."""
    if spec.alignment is None:
        return tables
    return tables.only(table, alignments.load(spec.alignment, table, coordinator).choice)


def _conversation(stream: AsyncIterator[pb.IntersectRequest]) -> Callable[[str], Awaitable[pb.IntersectRequest]]:
    """Read the next message, which must be of the expected kind."""

    async def following(expected: str) -> pb.IntersectRequest:
        try:
            async with asyncio.timeout(SILENCE_SECONDS):
                async for message in stream:
                    if message.WhichOneof("body") != expected:
                        raise MessageInvalid(f"`{expected}` was expected")
                    return message
        except TimeoutError:
            raise Interrupted(f"no `{expected}` came within {SILENCE_SECONDS:g} s") from None
        raise Interrupted(f"the stream ended where `{expected}` was expected")

    return following
