"""Sessions of a party: one for each run (or prediction) that it takes part in."""

import asyncio
import functools
import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import Message

from parley.contracts.serving.v1.serving_pb2 import GivenFeatures, ServedRows
from parley.numerics.arrays import Vector
from parley.party.roles import (
    Begun,
    Capabilities,
    CheckpointMissing,
    Offer,
    Opened,
    PartyAlgorithm,
    Plan,
    Recovery,
    Role,
    SavedModel,
    scalar,
)
from parley.party.tree_sums import TreeSums
from parley.privacy.aggregation import Pairwise, ring_of, trees_of
from parley.privacy.consent import Agreement, Beginning, Member, check_agreements, consent_of, fresh_nonce
from parley.privacy.mask_graph import MaskGraph
from parley.privacy.receipts import LedgerHead, Receipt
from parley.privacy.recovery import RecoverableSums
from parley.privacy.release import Addend, ClearProtection, RecoveryGate, Release, SumGate, TreeGate
from parley.privacy.session_keys import (
    KeyOfAnotherSession,
    SessionKey,
    check_pin,
    pair_secret,
    verify_signed_key,
)
from parley.privacy.transcript import Heads, Told, Transcript, digest_of
from parley.protocols.protocol import CrossingProtocol
from parley.protocols.recovery.codec import common_digest, has_step
from parley.protocols.tensor.codec import Blobs, MessageInvalid
from parley.services.party.checkpoints import Store
from parley.services.party.exposure import SumCounter
from parley.services.party.peers import PeerLinks
from parley.services.party.read_digests import DigestingTables
from parley.services.party.serving import Question, RowsDeclined, Serving, ServingRole
from parley.services.party.signed_keys import Vouched
from parley.services.party.sum_journal import SumJournal
from parley.services.party.transcripts import Record, TranscriptFile, Witness
from parley.services.wire.adaptive_executor import AdaptiveExecutor
from parley.services.wire.version import PROTOCOLS, SIGNED_PROTOCOL
from parley.spec.digests import spec_digest

ABANDONED_SECONDS = 60.0
"""A session without a stream for so long gives way when there is no room for another."""


class PredictionRefused(ValueError):
    """The run's algorithm has no joint prediction."""


class SpecDiffers(ValueError):
    """The run has begun here with another spec."""


class RoundMismatch(ValueError):
    """An instruction came out of order."""


class SessionUnknown(LookupError):
    """There is no such session here."""


class SessionNotBegun(RuntimeError):
    """The session has no keys yet."""


Hide = Callable[[int, Vector, frozenset[int] | None, Heads], Release[Addend]]
SumUp = Callable[[int, Vector, Heads], Awaitable[Release[Addend]]]
Answer = tuple[Message, Blobs]
Secrets = Callable[[str], Mapping[int, bytes]]
Rows = tuple[ServedRows, GivenFeatures]
"""Of a session that serves: the rows of a round, and this party's features that callers brought along."""


@dataclass
class BegunRole:
    """A role in a session that has begun: its state, and how its drafts are hidden."""

    can: Capabilities
    state: Any
    hide: Hide | None
    """How a draft is hidden in a sum; None where it travels up trees instead."""
    sum_up: SumUp | None
    transcript: Transcript
    """What this party and each other one have both been told; masks depend on it."""
    count: Callable[[int, bool], None] = lambda _sums, _of_every_row: None
    """Notes sums of each row in the register of exposure before they leave."""

    def planned(self, number: int, instruction: Any, heads: Heads) -> tuple[Plan, Release[Any] | None]:
        """Compute and hide in one visit to the compute thread: another visit costs more than the masks of a batch."""
        assert self.can.planning is not None  # noqa: S101 (a role that does not act plans)
        plan = self.can.planning.plan(self.state, instruction)
        return plan, self.hidden(number, plan, heads)

    def hidden(self, number: int, plan: Plan, heads: Heads) -> Release[Any] | None:
        """What a plan's draft becomes before it leaves."""
        if plan.draft is None or self.hide is None:
            return plan.release
        self.count(plan.row_sums, plan.of_every_row)
        return self.hide(number, plan.draft, plan.participants, heads)


@dataclass
class Session:
    """One run at this party: its role, what it has learnt so far, and the last answer for a retry."""

    opened: Opened
    coordinator: str
    algorithm: PartyAlgorithm
    store: Store
    worker: Executor
    """Where the algorithm computes."""
    reads: DigestingTables
    """What the run reads of this party's tables."""
    trained: SavedModel | None = None
    """The saved model, for a prediction; None in training."""
    serving: Serving | None = None
    """What a session that serves knows beside it; None in all others."""
    record: Record | None = None
    """Where the party's word about its sessions goes, and the key that signs it; None keeps none."""
    pins: Mapping[str, str] = field(default_factory=dict)
    """Certificates of other parties that this party's policy pins."""
    spec_yaml: str = ""
    """The spec as it came."""
    protocol_number: int = PROTOCOLS[-1]
    """The version of the protocol that the session is held in."""
    told_table: str = ""
    """The table of a session that predicts, as the coordinator named it; empty for the run's own."""
    key: SessionKey = field(default_factory=SessionKey.generate)
    nonce: bytes = field(default_factory=fresh_nonce)
    """This party's share of the session's salt."""
    peers: PeerLinks | None = None
    offer: Offer = field(default_factory=Offer)
    """What this party said of its block; the coordinator must repeat it."""
    declined: RowsDeclined | None = None
    """Why the last answer has no contribution, in a session that serves."""
    counter: SumCounter | None = None
    """Counts what leaves in the register of exposure; None until the run stands there."""
    _streams: int = 0
    _unattached_since: float = field(default_factory=time.monotonic)
    _begun: BegunRole | None = None
    _witness: Witness | None = None
    _receipt: Receipt | None = None
    """This party's word with its last answer, if there is one."""
    _uncounted: int | None = None
    """The round whose answer is not in the digest of releases yet."""
    _round: int = 0
    _asked: tuple[Message, Blobs, Rows | None] | None = None
    """The last instruction, to tell a retry from another instruction with the same number."""
    _answer: Answer | None = None
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _work: AdaptiveExecutor = field(init=False)

    def __post_init__(self) -> None:
        self._work = AdaptiveExecutor(self.worker)

    @property
    def session_id(self) -> str:
        """The session."""
        return self.opened.session_id

    @property
    def run_id(self) -> str:
        """The run."""
        return self.opened.run_id

    @property
    def names(self) -> list[str]:
        """The parties of the run."""
        return self.opened.names

    @property
    def protocol(self) -> CrossingProtocol:
        """What crosses in this session."""
        return self.algorithm.protocol

    @property
    def is_abandoned(self) -> bool:
        """Whether no stream has been attached for a while; a live coordinator attaches one soon."""
        return not self._streams and time.monotonic() - self._unattached_since > ABANDONED_SECONDS

    def attach(self) -> None:
        """Note that a stream serves the session."""
        self._streams += 1

    def detach(self) -> None:
        """Note that a stream of the session has ended."""
        self._streams -= 1
        self._unattached_since = time.monotonic()

    @property
    def has_begun(self) -> bool:
        """Whether its parties know each other's keys."""
        return self._begun is not None

    @property
    def has_stream(self) -> bool:
        """Whether a coordinator is attached."""
        return self._streams > 0

    @property
    def predicts(self) -> bool:
        """Whether the session uses a saved model."""
        return self.opened.predicts

    @functools.cached_property
    def id_digest(self) -> bytes:
        """SHA-256 over the ids of the rows, where all parties have the same rows; else empty."""
        if self.opened.spec.train.layout != "vertical":
            return b""
        return bytes.fromhex(self.opened.table.row_digest)

    @functools.cached_property
    def agreement(self) -> Agreement:
        """What this party was told when the session opened; it signs it, and compares it with what others signed."""
        common = self.opened.spec.train.layout == "vertical"
        rows, signed = self.id_digest, self.protocol_number >= SIGNED_PROTOCOL
        if self.told_table:  # of two tables with the same ids each party must be told the same one, in any protocol
            rows = hashlib.sha256(rows + self.told_table.encode()).digest()
        return Agreement(
            "serve" if self.serving is not None else "predict" if self.predicts else "train",
            bytes.fromhex(spec_digest(self.opened.spec)),
            self.nonce,
            len(self.opened.table) if common else 0,
            rows,
            self.offer.upper_size,
            self.protocol_number if signed else 0,
        )

    async def begin(
        self,
        keys: Sequence[Vouched],
        ca: bytes,
        upper_sizes: Sequence[int],
        outputs: int,
        checkpoint: int,
        peers: PeerLinks,
        settled: Sequence[Message] = (),
        run_checkpoint: int = 0,
    ) -> None:
        """See that every party was told the same, agree on masks with them, and load what to begin from."""
        self._verify(keys, ca, upper_sizes)
        began = run_checkpoint if self._journal is not None else checkpoint
        told = b"".join(message.SerializeToString(deterministic=True) for message in settled)
        members = [Member(vouched.key.name, vouched.key.public_key, vouched.agreement) for vouched in keys]
        consent = consent_of(Beginning(self.run_id, self.session_id, outputs, began, told), members)
        secrets = functools.partial(self._secrets, keys, consent)
        transcript = Transcript(consent, self.opened.index, len(self.names))
        recovery = self._recovery(secrets, settled, transcript)
        begun = Begun(self.opened, upper_sizes, outputs, peers, secrets, recovery, self._count_sum)

        def prepare() -> tuple[Role, Any]:
            role = self._role(begun)
            if self._journal is not None:
                newest = (k for k in self.store.checkpoints(self.run_id) if k <= run_checkpoint)
                if checkpoint != max(newest, default=0):
                    raise CheckpointMissing(f"checkpoint {checkpoint} is not this party's newest for {run_checkpoint}")
            saved = self.store.load_checkpoint(self.run_id, checkpoint) if checkpoint else None
            if saved is not None and int(saved["k"]) != checkpoint:
                raise CheckpointMissing(f"the checkpoint says {int(saved['k'])} where {checkpoint} is asked for")
            return role, role.begin(saved)

        hide, sum_up = self._protection(secrets, peers, recovery, MaskGraph(consent))
        async with self._turn:
            if self._begun is not None:
                # With the same keys, masks that have been used would hide other values.
                raise RoundMismatch("the session has begun already: open a new one to begin again")
            role, state = await self._compute(prepare)
            await self._witness_beginning(members, keys, consent, outputs, began)
            self.peers, self._begun = (
                peers,
                BegunRole(Capabilities(role), state, hide, sum_up, transcript, self._count_sum),
            )
            self._round, self._asked, self._answer = 0, None, None

    async def _witness_beginning(
        self, members: Sequence[Member], keys: Sequence[Vouched], consent: bytes, outputs: int, checkpoint: int
    ) -> None:
        if self.record is None:
            return
        certificates = [vouched.key.certificate_pem for vouched in keys]
        file = TranscriptFile(self.record.state, self.run_id)
        self._witness = Witness(
            self.opened.index,
            members,
            certificates,
            consent,
            self.record.key_pem,
            file,
            may_miss=self._journal is not None,
        )
        if self.predicts:  # there may be many of them: one line when it ends says what left
            return
        about = {"run": self.run_id, "session": self.session_id, "coordinator": self.coordinator}
        begin = functools.partial(self._witness.begin, **about, outputs=outputs, checkpoint=checkpoint)
        await self._compute(begin)

    @property
    def last_receipt(self) -> Receipt | None:
        """What goes with the answer to a checkpoint, and to the end of training."""
        return self._receipt

    async def take_receipts(self, receipts: Sequence[Receipt]) -> None:
        """Compare everybody's receipts with this party's own."""
        if self._witness is not None and receipts:
            await self._compute(self._witness.take, receipts)

    def _role(self, begun: Begun) -> Role:
        if self.trained is None:
            return self.algorithm.role(begun)
        assert self.algorithm.predictor is not None  # noqa: S101 (a session that predicts is opened only then)
        if self.serving is not None:
            return ServingRole(begun, self.algorithm, self.trained, self.serving)
        return self.algorithm.predictor(begun, self.trained)

    async def handle(
        self, message: Any, blobs: Blobs, ledger: LedgerHead | None = None, rows: Rows | None = None
    ) -> Answer:
        """Plan, pay, commit: one round. A retry of the last one gets the same bytes.

        `ledger` is what the coordinator tells of its label ledger, for the receipt; `rows` are those of a session that
        serves. `declined` says why an answer of such a session has no contribution.
        """
        begun = self._begun
        if begun is None or message is None:
            raise SessionNotBegun("the session takes no such instruction now: call BeginSession first")
        number: int = message.round
        instruction = self.protocol.decode_instruction(message, blobs.copy())
        if self.serving is not None:
            if rows is None:
                raise MessageInvalid("a session that serves is told its rows with every instruction")
            instruction = Question(instruction, *rows)
        async with self._turn:
            if self._answer is not None and number == self._round and (message, blobs, rows) == self._asked:
                return self._answer
            if number != self._round + 1 and not (self.algorithm.sits_out and number > self._round):
                raise RoundMismatch(
                    f"round {number} came where round {self._round + 1} is due: open a new session to begin again"
                )
            if self._witness is not None:
                self._witness.check_due()
                await self._count_release()
            told = await self._told(begun.transcript, message, blobs, instruction)
            self.declined = None
            try:
                plan, release = await self._planned(begun, number, instruction, told.heads)
            except RowsDeclined as declined:  # told all the same: the other parties have answered
                self.declined, plan, release = declined, Plan(begun.state), None
            if plan.draft is not None and begun.sum_up is not None:
                begun.count(plan.row_sums, plan.of_every_row)
                release = await begun.sum_up(number, plan.draft, told.heads)
            await self._keep(begun.can, plan)
            begun.transcript.keep()
            begun.state, self._round, self._asked = plan.state, number, (message, blobs, rows)
            self._answer = begun.can.role.encode(number, instruction, release)
            await self._attest(number, plan, told.heads, ledger or LedgerHead())
            return self._answer

    async def _attest(self, number: int, plan: Plan, heads: Heads, ledger: LedgerHead) -> None:
        """Count the answer among what was released; sign for it where the run keeps something."""
        self._receipt, self._uncounted = None, number
        if self._witness is not None and not self.predicts and (plan.checkpoint is not None or plan.finished):
            await self._count_release()
            self._receipt = await self._compute(self._witness.receipt, number, heads, ledger)

    async def _count_release(self) -> None:
        """Take the last answer into the digest of what this party has released; done while others work, if possible."""
        number, self._uncounted = self._uncounted, None
        if number is None or self._answer is None or self._witness is None:
            return
        answer, blobs = self._answer
        if blobs:
            await self._compute(self._witness.note, number, answer, blobs)
        else:
            self._witness.note(number, answer, blobs)

    async def prefetch(self) -> None:
        """Work for the next round while the others work on this one; what it finds is used if that round comes."""
        begun = self._begun
        async with self._turn:
            await self._count_release()
            if begun is None or begun.can.prefetching is None:
                return
            if begun.can.prefetching.can_prefetch(begun.state):
                begun.state = await self._work.do("prefetch", begun.can.prefetching.prefetch, begun.state)

    async def _told(self, transcript: Transcript, message: Any, blobs: Blobs, instruction: Any) -> Told:
        """Take an instruction into the transcript."""
        # Large tensors are hashed beside the event loop; a message without any is hashed before a thread would wake.
        told = await self._compute(_digest, message, blobs) if blobs else _digest(message, blobs)
        if isinstance(instruction, Question):
            told = digest_of(told, [instruction.common])
        if has_step(message) and message.recovery.WhichOneof("ask") != "values":
            return transcript.read_apart(told)
        return transcript.read(message.round, told, getattr(instruction, "participants", None))

    async def _planned(
        self, begun: BegunRole, number: int, instruction: Any, heads: Heads
    ) -> tuple[Plan, Release[Any] | None]:
        can = begun.can
        if can.peer is not None:
            plan = await can.peer.act(begun.state, instruction)
            return plan, await self._compute(begun.hidden, number, plan, heads)
        kind = can.predictable.cost_class(instruction) if can.predictable is not None else None
        return await self._work.do(kind, begun.planned, number, instruction, heads)

    async def close(self) -> None:
        """Stop what runs beside the rounds, keep what is worth keeping, and leave the other parties."""
        begun, witness = self._begun, self._witness
        if begun is not None and begun.can.background is not None:
            await self._keep(begun.can, await begun.can.background.stop(begun.state))
        if self.peers is not None:
            await self.peers.close()
        if self.counter is not None:
            await self._compute(self.counter.close)
        if begun is not None and witness is not None:
            await self._count_release()
            about = {"session": self.session_id, "purpose": self.agreement.purpose}
            await self._compute(functools.partial(witness.end, self._round, begun.transcript.heads, **about))

    def _count_sum(self, sums: int = 1, of_every_row: bool = False) -> None:
        if self.counter is not None:
            self.counter.count(sums, of_every_row=of_every_row)

    async def _keep(self, can: Capabilities, plan: Plan) -> None:
        for k in (plan.earlier_checkpoint, plan.checkpoint):
            if k is not None:
                tensors = can.role.tensors(plan.state) | {"k": scalar(k)}
                keep = self.opened.spec.kept_checkpoints
                await self._compute(self.store.save_checkpoint, self.run_id, k, tensors, keep)
        if plan.finished:
            await self._compute(self.store.save_model, self.run_id, can.role.model_tensors(plan.state))
            if can.reporting is not None:
                reports = await self._compute(can.reporting.reports, plan.state)
                await self._compute(self.store.save_reports, self.run_id, reports)

    def settled_sums(self, since: int) -> Sequence[Any]:
        """What this party reports of the run's sums with recovery, from round `since` on."""
        journal, recovery = self._journal, self.protocol.recovery
        return () if journal is None or recovery is None else recovery.encode_settled(journal.since(since))

    @property
    def _journal(self) -> SumJournal | None:
        recovers = self.opened.spec.privacy.aggregation.recovery and not self.predicts
        if not recovers or self.protocol.recovery is None:
            return None
        return SumJournal(self.store.sums_file(self.run_id), self.protocol.recovery.phases)

    def _recovery(self, secrets: Secrets, settled: Sequence[Message], transcript: Transcript) -> Recovery | None:
        journal, recovery = self._journal, self.protocol.recovery
        if journal is None or recovery is None:
            return None
        journal.learn(recovery.decode_settled(settled), self.opened.index)
        spec = self.opened.spec
        settings, needed = spec.privacy.aggregation, functools.partial(spec.privacy.aggregation.needed, spec.sampled)
        names = dict(enumerate(self.names))
        ring = ring_of(settings, self.opened.floors.beyond)
        shares = secrets("shares")
        sums = RecoverableSums(self.opened.index, self.session_id, names, shares, ring, needed, transcript)
        return Recovery(RecoveryGate(sums), journal)

    def _protection(
        self, secrets: Secrets, peers: PeerLinks, recovery: Recovery | None, graph: MaskGraph
    ) -> tuple[Hide | None, SumUp | None]:
        settings, index, floors = self.opened.spec.privacy.aggregation, self.opened.index, self.opened.floors
        if recovery is not None:
            everyone, gate = frozenset(range(len(self.names))), recovery.gate
            return lambda _, draft, participants, __: gate.release(draft, participants or everyone), None
        if settings.kind == "two_tree":
            trees = TreeGate(index, trees_of(len(self.names)), ring_of(settings, floors.beyond), secrets("trees"))
            return None, TreeSums(trees, peers, self.opened.spec.round_seconds).add  # always over all parties
        if settings.kind == "plain":
            return SumGate(ClearProtection(len(self.names))).release, None
        least = max(settings.minimum_parties, floors.minimum_parties)
        masks = Pairwise(index, secrets("mask"), ring_of(settings, floors.beyond), least, graph)
        return SumGate(masks).release, None

    def _verify(self, keys: Sequence[Vouched], ca: bytes, upper_sizes: Sequence[int]) -> None:
        """Refuse keys that others did not sign, and a session of which they were told something else."""
        for index, (name, vouched) in enumerate(zip(self.names, keys, strict=True)):
            if index != self.opened.index:
                verify_signed_key(vouched.key, ca, name, self.session_id, 0)
                check_pin(self.pins, name, vouched.key.certificate_pem)
            elif (vouched.key.name, vouched.key.public_key) != (name, self.key.public_bytes):
                raise KeyOfAnotherSession(f"the key of {name} is not the one that it made for this session")
        members = [Member(vouched.key.name, vouched.key.public_key, vouched.agreement) for vouched in keys]
        check_agreements(self.agreement, members, upper_sizes)

    def _secrets(self, keys: Sequence[Vouched], consent: bytes, purpose: str) -> dict[int, bytes]:
        """Secrets with every other party; their keys have been verified."""
        return {
            index: pair_secret(
                self.key,
                self.opened.name,
                name,
                vouched.key.public_key,
                run_id=self.session_id,
                attempt=0,
                purpose=purpose,
                consent=consent,
            )
            for index, (name, vouched) in enumerate(zip(self.names, keys, strict=True))
            if index != self.opened.index
        }

    async def _compute(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self.worker, function, *arguments)


def _digest(message: Message, blobs: Blobs) -> bytes:
    """What an instruction says to everyone who gets it."""
    if has_step(message):
        return common_digest(message, blobs)
    return digest_of(message.SerializeToString(deterministic=True), blobs)
