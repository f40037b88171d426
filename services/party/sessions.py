"""Sessions of a party: one for each run (or prediction) that it takes part in."""

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import Message

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
from parley.privacy.recovery import RecoverableSums
from parley.privacy.release import Addend, ClearProtection, RecoveryGate, Release, SumGate, TreeGate
from parley.privacy.session_keys import SessionKey, SignedKey, pair_secret, verify_signed_key
from parley.protocols.protocol import CrossingProtocol
from parley.protocols.tensor.codec import Blobs
from parley.services.party.checkpoints import Store
from parley.services.party.config import Policy
from parley.services.party.peers import PeerLinks
from parley.services.party.read_digests import DigestingTables
from parley.services.party.sum_journal import SumJournal
from parley.services.wire.adaptive_executor import AdaptiveExecutor
from parley.spec.run import RunSpec

ABANDONED_SECONDS = 60.0
"""A session without a stream for so long gives way when there is no room for another."""


class PolicyRefused(PermissionError):
    """This party's policy does not accept the run."""


class PredictionRefused(ValueError):
    """The run's algorithm has no joint prediction."""


class RoundMismatch(ValueError):
    """An instruction came out of order."""


class SessionUnknown(LookupError):
    """There is no such session here."""


class SessionNotBegun(RuntimeError):
    """The session has no keys yet."""


def check_policy(policy: Policy, spec: RunSpec, index: int, coordinator: str) -> None:
    """Refuse a run that this party's owner did not allow.

    Raises:
        PolicyRefused: with what the policy says and what the run asks for.
    """
    aggregation = spec.privacy.aggregation
    wanted = spec.parties[index].columns
    closed = [name for name in spec.tables_of(index) if policy.tables is not None and name not in policy.tables]
    checks = [
        (coordinator in policy.coordinators, f"coordinator {coordinator} is not among {list(policy.coordinators)}"),
        (spec.train.algorithm in policy.algorithms, f"algorithm {spec.train.algorithm} is not allowed here"),
        (aggregation.kind in policy.aggregations, f"aggregation {aggregation.kind} is not allowed here"),
        (
            aggregation.minimum_parties >= policy.minimum_parties,
            f"a sum over {aggregation.minimum_parties} parties could be opened, the policy asks for "
            f"{policy.minimum_parties}: raise privacy.aggregation.minimum_parties",
        ),
        (not closed, f"table {', '.join(closed)} is not open to runs"),
        (
            policy.columns is None or (wanted is not None and set(wanted) <= set(policy.columns)),
            f"only columns {list(policy.columns or ())} are open: name them under this party in the spec",
        ),
    ]
    refused = [reason for allowed, reason in checks if not allowed]
    if refused:
        raise PolicyRefused(f"{spec.parties[index].name}'s policy refuses the run: " + "; ".join(refused))


Hide = Callable[[int, Vector, frozenset[int] | None], Release[Addend]]
SumUp = Callable[[int, Vector], Awaitable[Release[Addend]]]
Answer = tuple[Message, Blobs]
Secrets = Callable[[str], Mapping[int, bytes]]


@dataclass
class BegunRole:
    """A role in a session that has begun: its state, and how its drafts are hidden."""

    can: Capabilities
    state: Any
    hide: Hide | None
    """How a draft is hidden in a sum; None where it travels up trees instead."""
    sum_up: SumUp | None

    def planned(self, number: int, instruction: Any) -> tuple[Plan, Release[Any] | None]:
        """Compute and hide in one visit to the compute thread: another visit costs more than the masks of a batch."""
        assert self.can.planning is not None  # noqa: S101 (a role that does not act plans)
        plan = self.can.planning.plan(self.state, instruction)
        return plan, self.hidden(number, plan)

    def hidden(self, number: int, plan: Plan) -> Release[Any] | None:
        """What a plan's draft becomes before it leaves."""
        if plan.draft is None or self.hide is None:
            return plan.release
        return self.hide(number, plan.draft, plan.participants)


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
    key: SessionKey = field(default_factory=SessionKey.generate)
    peers: PeerLinks | None = None
    offer: Offer = field(default_factory=Offer)
    """What this party said of its block; the coordinator must repeat it."""
    _streams: int = 0
    _unattached_since: float = field(default_factory=time.monotonic)
    _begun: BegunRole | None = None
    _round: int = 0
    _asked: Answer | None = None
    """The last instruction: what comes again is told from another one with the same number."""
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
        """Whether no stream has been attached for a while: a coordinator that lives attaches one soon."""
        return not self._streams and time.monotonic() - self._unattached_since > ABANDONED_SECONDS

    def attach(self) -> None:
        """Note that a stream serves the session."""
        self._streams += 1

    def detach(self) -> None:
        """Note that a stream of the session has ended."""
        self._streams -= 1
        self._unattached_since = time.monotonic()

    @property
    def predicts(self) -> bool:
        """Whether the session uses a saved model."""
        return self.opened.predicts

    async def begin(
        self,
        keys: Sequence[SignedKey],
        ca: bytes,
        upper_sizes: Sequence[int],
        outputs: int,
        checkpoint: int,
        peers: PeerLinks,
        settled: Sequence[Message] = (),
    ) -> None:
        """Agree on masks with the other parties and load what to begin from."""
        secrets = functools.partial(self._secrets, keys, ca)
        recovery = self._recovery(secrets, settled)
        begun = Begun(self.opened, upper_sizes, outputs, peers, secrets, recovery)

        def prepare() -> tuple[Role, Any]:
            role = self._role(begun)
            saved = self.store.load_checkpoint(self.run_id, checkpoint) if checkpoint else None
            if saved is not None and int(saved["k"]) != checkpoint:
                raise CheckpointMissing(f"the checkpoint says {int(saved['k'])} where {checkpoint} is asked for")
            return role, role.begin(saved)

        hide, sum_up = self._protection(secrets, peers, recovery)
        async with self._turn:
            if self._begun is not None:
                # The same keys again would mask other values with the masks that are used up already.
                raise RoundMismatch("the session has begun already: open a new one to begin again")
            role, state = await self._compute(prepare)
            self.peers, self._begun = peers, BegunRole(Capabilities(role), state, hide, sum_up)
            self._round, self._asked, self._answer = 0, None, None

    def _role(self, begun: Begun) -> Role:
        if self.trained is None:
            return self.algorithm.role(begun)
        assert self.algorithm.predictor is not None  # noqa: S101 (a session that predicts is opened only then)
        return self.algorithm.predictor(begun, self.trained)

    async def handle(self, message: Any, blobs: Blobs) -> Answer:
        """Plan, pay, commit: one round. A retry of the last one gets the same bytes."""
        begun = self._begun
        if begun is None or message is None:
            raise SessionNotBegun("the session takes no such instruction now: call BeginSession first")
        number: int = message.round
        instruction = self.protocol.decode_instruction(message, blobs.copy())
        async with self._turn:
            if self._answer is not None and number == self._round and (message, blobs) == self._asked:
                return self._answer
            if number != self._round + 1 and not (self.algorithm.sits_out and number > self._round):
                raise RoundMismatch(
                    f"round {number} came where round {self._round + 1} is due: open a new session to begin again"
                )
            plan, release = await self._planned(begun, number, instruction)
            if plan.draft is not None and begun.sum_up is not None:
                release = await begun.sum_up(number, plan.draft)
            await self._keep(begun.can, plan)
            begun.state, self._round, self._asked = plan.state, number, (message, blobs)
            self._answer = begun.can.role.encode(number, instruction, release)
            return self._answer

    async def prefetch(self) -> None:
        """Work for the next round while the others work on this one; what it finds is used if that round comes."""
        begun = self._begun
        if begun is None or begun.can.prefetching is None:
            return
        async with self._turn:
            if begun.can.prefetching.can_prefetch(begun.state):
                begun.state = await self._work.do("prefetch", begun.can.prefetching.prefetch, begun.state)

    async def _planned(self, begun: BegunRole, number: int, instruction: Any) -> tuple[Plan, Release[Any] | None]:
        can = begun.can
        if can.peer is not None:
            plan = await can.peer.act(begun.state, instruction)
            return plan, await self._compute(begun.hidden, number, plan)
        kind = can.predictable.cost_class(instruction) if can.predictable is not None else None
        return await self._work.do(kind, begun.planned, number, instruction)

    async def close(self) -> None:
        """Stop what runs beside the rounds, keep what is worth keeping, and leave the other parties."""
        begun = self._begun
        if begun is not None and begun.can.background is not None:
            await self._keep(begun.can, await begun.can.background.stop(begun.state))
        if self.peers is not None:
            await self.peers.close()

    async def _keep(self, can: Capabilities, plan: Plan) -> None:
        for k in (plan.earlier_checkpoint, plan.checkpoint):
            if k is not None:
                tensors = can.role.tensors(plan.state) | {"k": scalar(k)}
                await self._compute(self.store.save_checkpoint, self.run_id, k, tensors)
        if plan.finished:
            await self._compute(self.store.save_model, self.run_id, can.role.model_tensors(plan.state))
            if can.reporting is not None:
                reports = await self._compute(can.reporting.reports, plan.state)
                await self._compute(self.store.save_reports, self.run_id, reports)

    def settled_sums(self, since: int) -> Sequence[Any]:
        """What this party tells of the run's sums with recovery, from round `since` on."""
        journal, recovery = self._journal, self.protocol.recovery
        return () if journal is None or recovery is None else recovery.encode_settled(journal.since(since))

    @property
    def _journal(self) -> SumJournal | None:
        recovers = self.opened.spec.privacy.aggregation.recovery and not self.predicts
        if not recovers or self.protocol.recovery is None:
            return None
        return SumJournal(self.store.sums_file(self.run_id), self.protocol.recovery.phases)

    def _recovery(self, secrets: Secrets, settled: Sequence[Message]) -> Recovery | None:
        journal, recovery = self._journal, self.protocol.recovery
        if journal is None or recovery is None:
            return None
        journal.learn(recovery.decode_settled(settled), self.opened.index)
        spec = self.opened.spec
        settings, needed = spec.privacy.aggregation, functools.partial(spec.privacy.aggregation.needed, spec.sampled)
        names = dict(enumerate(self.names))
        ring = ring_of(settings)
        sums = RecoverableSums(self.opened.index, self.session_id, names, secrets("shares"), ring, needed)
        return Recovery(RecoveryGate(sums), journal)

    def _protection(
        self, secrets: Secrets, peers: PeerLinks, recovery: Recovery | None
    ) -> tuple[Hide | None, SumUp | None]:
        settings, index = self.opened.spec.privacy.aggregation, self.opened.index
        if recovery is not None:
            everyone, gate = frozenset(range(len(self.names))), recovery.gate
            return lambda _, draft, participants: gate.release(draft, participants or everyone), None
        if settings.kind == "two_tree":
            trees = TreeGate(index, trees_of(len(self.names)), ring_of(settings))
            return None, TreeSums(trees, peers, self.opened.spec.round_seconds).add  # always over all parties
        if settings.kind == "plain":
            return SumGate(ClearProtection(len(self.names))).release, None
        masks = Pairwise(index, secrets("mask"), ring_of(settings), settings.minimum_parties)
        return SumGate(masks).release, None

    def _secrets(self, keys: Sequence[SignedKey], ca: bytes, purpose: str) -> dict[int, bytes]:
        own, secrets = self.opened.name, {}
        for index, (name, signed) in enumerate(zip(self.names, keys, strict=True)):
            if index != self.opened.index:
                verify_signed_key(signed, ca, name, self.session_id, 0)
                secrets[index] = pair_secret(
                    self.key, own, name, signed.public_key, run_id=self.session_id, attempt=0, purpose=purpose
                )
        return secrets

    async def _compute(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self.worker, function, *arguments)
