"""Sessions of a party: one for each run (or prediction) that it takes part in."""

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from typing import Any

from google.protobuf.message import Message

from parley.privacy.aggregation import Pairwise, ring_of, trees_of
from parley.privacy.fedbio_rounds import Phase
from parley.privacy.recovery import RecoverableSums
from parley.privacy.release import Addend, Plain, RecoveryGate, Release, SumGate, TreeGate
from parley.privacy.rounds import Vector
from parley.privacy.session_keys import SessionKey, SignedKey, pair_secret, verify_signed_key
from parley.services.party import asysqn_role, bambi_role, fedbio_role, hgp_role, ldp_dsbo_role
from parley.services.party.checkpoints import CheckpointMissing, Store
from parley.services.party.config import Policy
from parley.services.party.peers import PeerPlane
from parley.services.party.roles import (
    Algorithm,
    ForesightRole,
    PeerRole,
    Place,
    Plan,
    PlanningRole,
    ReportingRole,
    RestlessRole,
    Role,
    SteadyRole,
)
from parley.services.party.sum_journal import SumJournal
from parley.services.wire.swift_work import SwiftWork
from parley.services.wire.tensors import Blobs
from parley.spec.run import RunSpec

ALGORITHMS: Mapping[str, Algorithm] = {
    "bambi": Algorithm(bambi_role.upper_size, bambi_role.BambiRole),
    "asysqn": Algorithm(asysqn_role.upper_size, asysqn_role.AsysqnRole, dense=False, warnings=asysqn_role.warnings),
    "fedbio": Algorithm(fedbio_role.upper_size, fedbio_role.FedbioRole, sits_out=True),
    "hgp": Algorithm(hgp_role.upper_size, hgp_role.HgpRole),
    "ldp_dsbo": Algorithm(ldp_dsbo_role.upper_size, ldp_dsbo_role.LdpDsboRole, warnings=ldp_dsbo_role.warnings),
}
"""The algorithms that a party knows."""


ABANDONED_SECONDS = 60.0
"""A session without a stream for so long gives way when there is no room for another."""


class PolicyRefused(PermissionError):
    """This party's policy does not accept the run."""


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


@dataclass
class Session:
    """One run at this party: its role, what it has learnt so far, and the last answer for a retry."""

    session_id: str
    run_id: str
    coordinator: str
    place: Place
    store: Store
    worker: Executor
    """Where the algorithm computes."""
    key: SessionKey = field(default_factory=SessionKey.generate)
    peers: PeerPlane | None = None
    upper_size: int = 0
    """What this party said of its block; the coordinator must repeat it."""
    _streams: int = 0
    _unattached_since: float = field(default_factory=time.monotonic)
    _role: Role | None = None
    _state: Any = None
    _peer_role: PeerRole | None = None
    _planning: PlanningRole | None = None
    _steady: SteadyRole | None = None
    _foresight: ForesightRole | None = None
    _hide: Hide | None = None
    """How a draft is hidden in a sum; None where it travels up trees instead."""
    _sum_up: SumUp | None = None
    _round: int = 0
    _asked: Answer | None = None
    """The last instruction: what comes again is told from another one with the same number."""
    _answer: Answer | None = None
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _work: SwiftWork = field(init=False)

    def __post_init__(self) -> None:
        self._work = SwiftWork(self.worker)

    @property
    def names(self) -> list[str]:
        """The parties of the run."""
        return [entry.name for entry in self.place.spec.parties]

    @property
    def _sits_out(self) -> bool:
        return ALGORITHMS[self.place.spec.train.algorithm].sits_out

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
        return self.place.trained is not None

    async def begin(
        self,
        keys: Sequence[SignedKey],
        ca: bytes,
        upper_sizes: Sequence[int],
        outputs: int,
        checkpoint: int,
        peers: PeerPlane,
        settled: Iterable[tuple[Phase, int, int]] = (),
    ) -> None:
        """Agree on masks with the other parties and load what to begin from."""
        place = replace(self.place, upper_sizes=upper_sizes, outputs=outputs, peers=peers)
        place = replace(place, secrets=functools.partial(self._secrets, keys, ca))
        place = replace(place, recovery=self._recovery(keys, ca), journal=self.journal)
        if place.journal is not None:
            place.journal.hear(settled, place.index)

        def prepare() -> tuple[Role, Any]:
            role = ALGORITHMS[place.spec.train.algorithm].role(place)
            saved = self.store.load_checkpoint(self.run_id, checkpoint) if checkpoint else None
            if saved is not None and int(saved["k"]) != checkpoint:
                raise CheckpointMissing(f"the checkpoint says {int(saved['k'])} where {checkpoint} is asked for")
            return role, role.begin(saved)

        hide, sum_up = self._protection(keys, ca, peers, place.recovery)
        async with self._turn:
            if self._role is not None:
                # The same keys again would mask other values with the masks that are used up already.
                raise RoundMismatch("the session has begun already: open a new one to begin again")
            self._role, self._state = await self._compute(prepare)
            # What a role can do is looked up once: the question costs as much as a small batch.
            self._peer_role = self._role if isinstance(self._role, PeerRole) else None
            self._planning = self._role if isinstance(self._role, PlanningRole) else None
            self._steady = self._role if isinstance(self._role, SteadyRole) else None
            self._foresight = self._role if isinstance(self._role, ForesightRole) else None
            self.peers, self._hide, self._sum_up = peers, hide, sum_up
            self._round, self._asked, self._answer = 0, None, None

    async def handle(self, body: str, message: Message, blobs: Blobs) -> Answer:
        """Plan, pay, commit: one round. A retry of the last one gets the same bytes."""
        role = self._role
        if role is None or body != role.body:
            raise SessionNotBegun(f"the session takes no {body} instruction now: call BeginSession first")
        number: int = message.round  # type: ignore[attr-defined]
        instruction = role.decode(message, blobs.copy())
        async with self._turn:
            if self._answer is not None and number == self._round and (message, blobs) == self._asked:
                return self._answer
            if number != self._round + 1 and not (self._sits_out and number > self._round):
                raise RoundMismatch(
                    f"round {number} came where round {self._round + 1} is due: open a new session to begin again"
                )
            if self._peer_role is not None:
                plan = await self._peer_role.act(self._state, instruction)
                release = await self._compute(self._hidden, number, plan)
            else:
                kind = self._steady.kind(instruction) if self._steady is not None else object()
                plan, release = await self._work.do(kind, self._planned, number, instruction)
            if plan.draft is not None and self._sum_up is not None:
                release = await self._sum_up(number, plan.draft)
            await self._keep(role, plan)
            self._state, self._round, self._asked = plan.state, number, (message, blobs)
            self._answer = role.encode(number, instruction, release)
            return self._answer

    async def look_ahead(self) -> None:
        """Work for the next round while the others work on this one; what it finds is used if that round comes."""
        if self._foresight is None:
            return
        async with self._turn:
            if self._foresight.foresees(self._state):
                self._state = await self._work.do("ahead", self._foresight.look_ahead, self._state)

    def _planned(self, number: int, instruction: Any) -> tuple[Plan, Release[Any] | None]:
        """Compute and hide in one visit to the compute thread: another visit costs more than the masks of a batch."""
        assert self._planning is not None  # noqa: S101 (a role that does not act plans)
        plan = self._planning.plan(self._state, instruction)
        return plan, self._hidden(number, plan)

    def _hidden(self, number: int, plan: Plan) -> Release[Any] | None:
        if plan.draft is None or self._hide is None:
            return plan.release
        return self._hide(number, plan.draft, plan.participants)

    async def close(self) -> None:
        """Stop what runs beside the rounds, keep what is worth keeping, and leave the peer plane."""
        if isinstance(self._role, RestlessRole):
            await self._keep(self._role, await self._role.rest(self._state))
        if self.peers is not None:
            await self.peers.close()

    async def _keep(self, role: Role, plan: Plan) -> None:
        if plan.checkpoint is not None:
            await self._compute(self.store.save_checkpoint, self.run_id, plan.checkpoint, role.tensors(plan.state))
        if plan.finished:
            await self._compute(self.store.save_model, self.run_id, role.model_tensors(plan.state))
            if isinstance(role, ReportingRole):
                reports = await self._compute(role.reports, plan.state)
                await self._compute(self.store.save_reports, self.run_id, reports)

    @property
    def journal(self) -> SumJournal | None:
        """The run's sums with recovery, as they stand on the disk."""
        recovers = self.place.spec.privacy.aggregation.recovery and not self.predicts
        return SumJournal(self.store.sums_file(self.run_id)) if recovers else None

    def _recovery(self, keys: Sequence[SignedKey], ca: bytes) -> RecoveryGate | None:
        settings, sampled = self.place.spec.privacy.aggregation, self.place.spec.sampled
        if not settings.recovery or self.predicts:
            return None
        needed = functools.partial(settings.needed, sampled)
        names, secrets = dict(enumerate(self.names)), self._secrets(keys, ca, "shares")
        sums = RecoverableSums(self.place.index, self.session_id, names, secrets, ring_of(settings), needed)
        return RecoveryGate(sums)

    def _protection(
        self, keys: Sequence[SignedKey], ca: bytes, peers: PeerPlane, recovery: RecoveryGate | None
    ) -> tuple[Hide | None, SumUp | None]:
        settings = self.place.spec.privacy.aggregation
        if recovery is not None:
            everyone = frozenset(range(len(self.names)))
            return lambda _, draft, participants: recovery.release(draft, participants or everyone), None
        if settings.kind == "two_tree":
            gate = TreeGate(self.place.index, trees_of(len(self.names)), ring_of(settings))
            return None, functools.partial(peers.sum_up_trees, gate)  # always over all parties
        if settings.kind == "plain":
            return SumGate(Plain(len(self.names))).release, None
        secrets, ring = self._secrets(keys, ca, "mask"), ring_of(settings)
        return SumGate(Pairwise(self.place.index, secrets, ring, settings.minimum_parties)).release, None

    def _secrets(self, keys: Sequence[SignedKey], ca: bytes, purpose: str) -> dict[int, bytes]:
        own, secrets = self.names[self.place.index], {}
        for index, (name, signed) in enumerate(zip(self.names, keys, strict=True)):
            if index != self.place.index:
                verify_signed_key(signed, ca, name, self.session_id, 0)
                secrets[index] = pair_secret(
                    self.key, own, name, signed.public_key, run_id=self.session_id, attempt=0, purpose=purpose
                )
        return secrets

    async def _compute(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self.worker, function, *arguments)
