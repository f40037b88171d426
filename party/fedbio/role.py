"""The FedBiO family behind a party's session: its three tasks on rows of the party's own."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import torch
from google.protobuf.message import Message
from torch import Tensor

import parley.party.fedbio.steps as fedbio
from parley.numerics.few_shot import TooFewExamples
from parley.numerics.neumann import SeriesDiverges
from parley.numerics.participation import participants
from parley.numerics.storm import InvalidDecay, Schedule
from parley.numerics.streams import stream
from parley.party.fedbio.objectives import InvalidData
from parley.party.fedbio.record_privacy import PrivateParty, private_party
from parley.party.fedbio.tasks import Cleaning, ImagesUnfit, TableTask, Task, task_of
from parley.party.roles import (
    Begun,
    CheckpointMissing,
    Coverage,
    Offer,
    Opened,
    PartyAlgorithm,
    Plan,
    Recovery,
    scalar,
)
from parley.privacy.noise_shares import GridTooFine
from parley.privacy.recovery import AskDisclosure, AskKey, AskShares, AskValues, StepUnexpected
from parley.privacy.release import Release, bitmap
from parley.protocols.fedbio.codec import PROTOCOL, encode_contribution
from parley.protocols.fedbio.messages import AveragingRound, Phase
from parley.protocols.fedbio.settings import FedbioSpec
from parley.protocols.refusals import Refusal
from parley.protocols.tensor.codec import Blobs

_BLOCKS = ("x", "y", "u")


class ParticipantsRefused(ValueError):
    """A phase names other participants than the run's seed does."""


@dataclass(frozen=True)
class State:
    """The party's state, and the rounds that the last checkpoint contains."""

    inner: fedbio.State
    done: int = 0
    left: frozenset[int] = frozenset()
    """Parties that the run has gone on without; they take part in nothing more of this session."""
    summed: tuple[Phase, int] | None = None
    """Phase and round of the last value that was sent: what a disclosure is about."""


@dataclass(frozen=True)
class Membership:
    """Which of a run's parties this is, and what the seed says about who takes part."""

    index: int
    name: str
    """Names the party's batches."""
    parties: int
    seed: int
    sampled: int | None = None
    """How many parties take part in a round; None for all."""

    def wanted(self, instruction: AveragingRound) -> tuple[int, ...]:
        """Whom a phase is for."""
        sampled = self.sampled if instruction.phase in ("variables", "momenta") else None
        return participants(self.seed, instruction.k, self.parties, sampled)


class FedbioRole:
    """FedBiO or FedBiOAcc, global or -Local as the task has it."""

    def __init__(
        self,
        task: Task,
        settings: fedbio.Settings,
        member: Membership,
        recovery: Recovery | None = None,
        party: fedbio.Party | None = None,
    ) -> None:
        """`party` takes the steps; the plain one if left out."""
        self._task, self._member, self._recovery = task, member, recovery
        self._party = party or fedbio.Party(settings, task.objective)
        self._randomness = fedbio.Randomness(member.seed, member.name)

    def begin(self, checkpoint: Mapping[str, Tensor] | None) -> State:
        """The first x and y, the same at all parties where they are shared, or those of a checkpoint."""
        fresh = State(self._party.start(*self._task.start(stream(self._member.seed, "fedbio/initial"))))
        return fresh if checkpoint is None else self._restore(fresh, checkpoint)

    def plan(self, state: State, instruction: AveragingRound) -> Plan:
        """Carry out one phase, for exactly the participants that the seed names and that have not left."""
        step, recovery = instruction.step, self._recovery
        self._check_step(instruction)
        if isinstance(step, AskDisclosure):  # about participants that were checked before
            return self._settle(state, instruction, step)
        state = replace(state, left=self._check_participants(state, instruction))
        match instruction.phase:
            case "checkpoint":
                return Plan(replace(state, done=instruction.k), checkpoint=instruction.k)
            case "finish":
                inner, _ = self._party.contribute(state.inner, instruction, self._randomness)
                return Plan(replace(state, inner=inner), finished=True)
        match step:
            case AskKey() if recovery is not None:
                return Plan(state, release=recovery.gate.offer())
            case AskShares() if recovery is not None:
                return Plan(state, release=recovery.gate.seal(step))
            case AskValues() if recovery is not None:
                recovery.gate.receive(step)
        inner, draft = self._party.contribute(state.inner, instruction, self._randomness)
        state = replace(state, inner=inner, summed=(instruction.phase, instruction.k))
        return Plan(state, draft, participants=frozenset(instruction.participants))

    def encode(self, number: int, instruction: AveragingRound, release: Release[Any] | None) -> tuple[Message, Blobs]:
        """The contribution to a phase."""
        return encode_contribution(number, instruction, release)

    def tensors(self, state: State) -> dict[str, Tensor]:
        """All that outlives a round; no phase is open at a checkpoint."""
        inner = state.inner
        counts = {"k": state.done, "round": inner.round_index + 1, "projected": inner.projections}
        named = {name: scalar(count) for name, count in counts.items()}
        for kind, blocks in (("variables", inner.variables), ("momenta", inner.momenta)):
            if blocks is not None:
                named |= {f"{kind}.{name}": torch.tensor(getattr(blocks, name)) for name in _BLOCKS}
        return named

    def model_tensors(self, state: State) -> dict[str, Tensor]:
        """The shared model, by layers."""
        variables = state.inner.variables
        return {name: torch.tensor(value) for name, value in self._task.model(variables.x, variables.y).items()}

    def reports(self, state: State) -> Mapping[str, bytes]:
        """What the party's owner wanted to know; it stays here."""
        return self._task.findings(state.inner.variables.x, state.inner.variables.y)

    def _settle(self, state: State, instruction: AveragingRound, ask: AskDisclosure) -> Plan:
        """Disclose for the survivors, once it is on the disk for whom."""
        if (instruction.phase, instruction.k) != state.summed:
            asked = (instruction.phase, instruction.k)
            raise StepUnexpected(f"the last value was of {state.summed}: there is nothing to open for {asked}")
        recovery = self._recovery
        assert recovery is not None  # noqa: S101 (_check_step has looked)
        settled = recovery.gate.settle(ask)
        self._was_summed(instruction, bitmap(ask.survivors))
        recovery.journal.note(instruction.phase, instruction.k, bitmap(ask.survivors))
        left = state.left | settled.content.disclosure.key_shares.keys()
        return Plan(replace(state, left=left), release=settled)

    def _was_summed(self, instruction: AveragingRound, now: int) -> bool:
        """Whether a phase is made again. Its values are the same then: a sum over others would differ by a value."""
        recovery = self._recovery
        before = recovery.journal.get(instruction.phase, instruction.k) if recovery is not None else None
        if before is not None and before != now:
            raise ParticipantsRefused(
                f"the {instruction.phase} phase of round {instruction.k} was summed over {before.bit_count()} parties "
                f"before (bits {before:b}), and is never summed over others (bits {now:b})"
            )
        return before is not None

    def _check_step(self, instruction: AveragingRound) -> None:
        recovers = self._recovery is not None
        if (instruction.step is not None) != (recovers and instruction.summed):
            stands = (
                "asks for recovery: its sums, and nothing else, go" if recovers else "asks for no recovery: no sum goes"
            )
            raise StepUnexpected(f"the run's spec {stands} by steps; the {instruction.phase} phase came otherwise")

    def _check_participants(self, state: State, instruction: AveragingRound) -> frozenset[int]:
        """Refuse participants that the coordinator chose for itself; the answer is who has left.

        It could open two sums that differ by one party. With recovery a party may be missing, but never come back.
        """
        recovers = self._recovery is not None
        wanted = self._member.wanted(instruction)
        if not recovers and instruction.participants == wanted:
            return state.left
        named = frozenset(instruction.participants)
        if not recovers or not named <= frozenset(wanted) - state.left or self._member.index not in named:
            gone = f" without {sorted(state.left)}, who left" if state.left else ""
            raise ParticipantsRefused(
                f"the {instruction.phase} phase of round {instruction.k} is for parties {list(wanted)}, as the run's "
                f"seed has it{gone}, not for {list(instruction.participants)}"
            )
        if self._was_summed(instruction, bitmap(named)):  # who was lost in an earlier session may be back in this one
            return state.left
        return state.left | (frozenset(wanted) - named)

    def _restore(self, fresh: State, tensors: Mapping[str, Tensor]) -> State:
        def blocks(kind: str) -> fedbio.Blocks:
            return fedbio.Blocks(*(tensors[f"{kind}.{name}"].numpy() for name in _BLOCKS))

        try:
            momenta = blocks("momenta") if "momenta.x" in tensors else None
            inner = fedbio.State(
                blocks("variables"), momenta, None, int(tensors["round"]) - 1, int(tensors["projected"])
            )
        except KeyError as missing:
            raise CheckpointMissing(f"the checkpoint holds no {missing}: start a new run") from None
        sizes = [getattr(inner.variables, name).size for name in _BLOCKS]
        if sizes != [getattr(fresh.inner.variables, name).size for name in _BLOCKS]:
            raise CheckpointMissing("the checkpoint belongs to other rows or another model: start a new run")
        return State(inner, int(tensors["k"]))


def role(begun: Begun) -> FedbioRole:
    """The role in a session."""
    opened, train = begun.opened, begun.spec.settings(FedbioSpec)
    batches = opened.name + opened.salt
    member = Membership(begun.index, batches, len(opened.names), begun.spec.seed, train.parties_per_round)
    task = task_of(opened)
    settings = replace(settings_of(train), averages=opened.spec.evaluation.averages)
    party = _private(opened, task, settings)
    if party is not None:
        party.releases.open()
    return FedbioRole(task, settings, member, begun.recovery, party)


def _private(opened: Opened, task: TableTask, settings: fedbio.Settings) -> PrivateParty | None:
    """The party's side of record privacy, where the spec asks for it."""
    if opened.spec.settings(FedbioSpec).record_privacy is None or not isinstance(task, Cleaning):
        return None
    return private_party(opened, task, settings, fedbio.Randomness(opened.spec.seed, opened.name + opened.salt))


def settings_of(train: FedbioSpec) -> fedbio.Settings:
    """The run's settings as `parley.party.fedbio.steps` knows them: weights of rows are private, heads are local."""
    steps, kind = train.step_sizes, train.task.kind
    return fedbio.Settings(
        eta=steps.eta,
        gamma=steps.gamma,
        tau=steps.tau,
        local_steps=train.local_steps,
        accelerated=train.has_momenta,
        lower="local" if kind == "hyper_representation" else "global",
        upper="private" if kind == "data_cleaning" else "shared",
        schedule=Schedule(steps.delta, steps.offset),
        c_nu=steps.momentum,
        c_omega=steps.momentum,
        c_u=steps.momentum,
        radius=train.radius,
        neumann_terms=train.neumann_terms,
        warm_rounds=train.warm,
        bounded=kind == "hyper_parameters",
        lower_batch=train.batch,
        upper_batch=train.checked_batch,
    )


def accept(opened: Opened) -> Offer:
    """Upper parameters that are shared: weights of rows are not, so that their number stays private."""
    settings, task = settings_of(opened.spec.settings(FedbioSpec)), task_of(opened)
    size = task.objective.upper_size if settings.upper == "shared" else 0
    party = _private(opened, task, settings)
    if party is None:
        return Offer(size, coverage=coverage(opened, task))
    party.releases.rehearse()
    spends = f"one record costs ε = {party.releases.epsilon:.3g} at δ = {party.releases.terms.delta:g} over the run"
    return Offer(size, (spends,), replace(coverage(opened, task), exact=False, honest=party.averages.honest))


def coverage(opened: Opened, task: TableTask) -> Coverage:
    """What the averages tell: one batch, where a party takes a single step from a point that all know."""
    train, objective, each = opened.spec.settings(FedbioSpec), task.objective, task.rows_of_sample
    lower, upper = min(train.batch, objective.lower_rows), min(train.checked_batch, objective.upper_rows)
    phases = 2 if train.has_momenta else 1
    share = min(1.0, train.local_steps * lower / objective.lower_rows)
    # Of two seeds' batches at one point, each of more than half of the rows, most of what is summed is the same.
    drawn = 2 * lower <= objective.lower_rows and 2 * upper <= objective.upper_rows
    seeded, whole = drawn or task.starts_by_seed, (lower, upper) == (objective.lower_rows, objective.upper_rows)
    # Where one point is common to all seeds, batches that leave out a few rows differ by those few: each is another.
    seed = "" if whole or seeded else f", seed {opened.spec.seed}"
    return Coverage(
        rows=len(opened.table),
        batch=min(lower, upper) * each,
        sums=ceil(phases * train.rounds * share),
        evaluated=min(objective.upper_rows * each, task.test_rows or objective.upper_rows * each),
        share=share,
        own_batches=drawn,
        seeded=seeded,
        drawn=f"{lower} and {upper} of {task.chosen_rows}{seed}",
    )


ALGORITHM = PartyAlgorithm(
    PROTOCOL,
    accept,
    role,
    refusals={
        GridTooFine: Refusal("INVALID_ARGUMENT", "SPEC_INVALID"),
        fedbio.InvalidSettings: Refusal("INVALID_ARGUMENT", "SPEC_INVALID"),
        InvalidDecay: Refusal("INVALID_ARGUMENT", "SPEC_INVALID"),
        SeriesDiverges: Refusal("OUT_OF_RANGE", "DIVERGED"),
        InvalidData: Refusal("FAILED_PRECONDITION", "DATA_INVALID"),
        ImagesUnfit: Refusal("FAILED_PRECONDITION", "DATA_INVALID"),
        TooFewExamples: Refusal("FAILED_PRECONDITION", "DATA_INVALID"),
        ParticipantsRefused: Refusal("PERMISSION_DENIED", "PARTICIPANTS_REFUSED"),
        fedbio.RoundMismatch: Refusal("FAILED_PRECONDITION", "ROUND_MISMATCH"),
        fedbio.MeanMismatch: Refusal("INVALID_ARGUMENT", "MESSAGE_INVALID"),
    },
    sits_out=True,
)
