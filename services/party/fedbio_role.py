"""The FedBiO family behind a party's session: data cleaning and hyper-representation on rows of the party's own."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

import parley.party.fedbio as fedbio
from parley.contracts.fedbio.v1 import fedbio_pb2
from parley.numerics.participation import participants
from parley.numerics.storm import Schedule, Vector
from parley.numerics.streams import stream
from parley.privacy.fedbio_rounds import AveragingRound, Phase
from parley.privacy.recovery import AskDisclosure, AskKey, AskShares, AskValues, StepUnexpected
from parley.privacy.release import RecoveryGate, Release, bitmap
from parley.services.party.checkpoints import CheckpointMissing, scalar
from parley.services.party.fedbio_tasks import Task, task_of
from parley.services.party.roles import Place, Plan
from parley.services.wire.fedbio_codec import decode_instruction, encode_contribution
from parley.services.wire.tensors import Blobs
from parley.spec.fedbio import FedbioSpec

_BLOCKS = ("x", "y", "u")


class ParticipantsRefused(ValueError):
    """A phase names other participants than the run's seed does."""


class PredictionRefused(ValueError):
    """A run of this kind has no joint prediction."""


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
class Asked:
    """An instruction as `parley.party.fedbio` knows it."""

    phase: fedbio.Phase
    round_index: int
    mean: Vector | None


class FedbioRole:
    """FedBiO or FedBiOAcc, global or -Local as the task has it."""

    body = "fedbio"

    def __init__(self, place: Place) -> None:
        self._place, self._train = place, place.spec.settings(FedbioSpec)
        self._task: Task = task_of(place)
        self._party = fedbio.Party(settings_of(self._train), self._task.objective)
        self._randomness = fedbio.Randomness(place.spec.seed, place.spec.parties[place.index].name)

    def begin(self, checkpoint: Mapping[str, Tensor] | None) -> State:
        """The first x and y, the same at all parties where they are shared, or those of a checkpoint."""
        fresh = State(self._party.start(*self._task.start(stream(self._place.spec.seed, "fedbio/initial"))))
        return fresh if checkpoint is None else self._restore(fresh, checkpoint)

    def decode(self, message: fedbio_pb2.Instruction, blobs: Blobs) -> AveragingRound:
        """What a phase asks."""
        return decode_instruction(message, blobs)

    def plan(self, state: State, instruction: AveragingRound) -> Plan:
        """Carry out one phase, for exactly the participants that the seed names and that have not left."""
        recovery, step = self._place.recovery, instruction.step
        self._check_step(instruction)
        if recovery is not None and isinstance(step, AskDisclosure):  # about participants that were checked before
            return self._settle(state, instruction, recovery, step)
        state = replace(state, left=self._check_participants(state, instruction))
        match instruction.phase:
            case "checkpoint":
                return Plan(replace(state, done=instruction.k), checkpoint=instruction.k)
            case "finish":
                inner, _ = self._contribute(state, Asked("conclude", instruction.k, instruction.mean))
                return Plan(replace(state, inner=inner), finished=True)
        match step:
            case AskKey() if recovery is not None:
                return Plan(state, release=recovery.offer())
            case AskShares() if recovery is not None:
                return Plan(state, release=recovery.seal(step))
            case AskValues() if recovery is not None:
                recovery.receive(step)
        inner, draft = self._contribute(state, Asked(instruction.phase, instruction.k, instruction.mean))
        state = replace(state, inner=inner, summed=(instruction.phase, instruction.k))
        return Plan(state, draft, frozenset(instruction.participants))

    def encode(
        self, number: int, instruction: AveragingRound, release: Release[Any] | None
    ) -> tuple[fedbio_pb2.Contribution, Blobs]:
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

    def _contribute(self, state: State, asked: Asked) -> tuple[fedbio.State, Vector]:
        return self._party.contribute(state.inner, asked, self._randomness)

    def _settle(self, state: State, instruction: AveragingRound, recovery: RecoveryGate, ask: AskDisclosure) -> Plan:
        """Disclose for the survivors, once it is on the disk for whom."""
        if (instruction.phase, instruction.k) != state.summed:
            asked = (instruction.phase, instruction.k)
            raise StepUnexpected(f"the last value was of {state.summed}: there is nothing to open for {asked}")
        settled = recovery.settle(ask)
        self._was_summed(instruction, bitmap(ask.survivors))
        if self._place.journal is not None:
            self._place.journal.note(instruction.phase, instruction.k, bitmap(ask.survivors))
        left = state.left | settled.content.disclosure.key_shares.keys()
        return Plan(replace(state, left=left), release=settled)

    def _was_summed(self, instruction: AveragingRound, now: int) -> bool:
        """Whether a phase is made again. Its values are the same then: a sum over others would differ by a value."""
        journal = self._place.journal
        before = journal.get(instruction.phase, instruction.k) if journal is not None else None
        if before is not None and before != now:
            raise ParticipantsRefused(
                f"the {instruction.phase} phase of round {instruction.k} was summed over {before.bit_count()} parties "
                f"before (bits {before:b}), and is never summed over others (bits {now:b})"
            )
        return before is not None

    def _check_step(self, instruction: AveragingRound) -> None:
        recovers = self._place.recovery is not None
        if (instruction.step is not None) != (recovers and instruction.summed):
            stands = (
                "asks for recovery: its sums, and nothing else, go" if recovers else "asks for no recovery: no sum goes"
            )
            raise StepUnexpected(f"the run's spec {stands} by steps; the {instruction.phase} phase came otherwise")

    def _check_participants(self, state: State, instruction: AveragingRound) -> frozenset[int]:
        """Refuse participants that the coordinator chose for itself; the answer is who has left.

        It could open two sums that differ by one party. With recovery a party may be missing, but never come back.
        """
        recovers = self._place.recovery is not None
        sampled = self._train.parties_per_round if instruction.phase in ("variables", "momenta") else None
        spec = self._place.spec
        wanted = participants(spec.seed, instruction.k, len(spec.parties), sampled)
        if not recovers and instruction.participants == wanted:
            return state.left
        named = frozenset(instruction.participants)
        if not recovers or not named <= frozenset(wanted) - state.left or self._place.index not in named:
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


def settings_of(train: FedbioSpec) -> fedbio.Settings:
    """The run's settings as `parley.party.fedbio` knows them: weights of rows are private, heads of tasks are local."""
    steps, cleaning = train.step_sizes, train.task.kind == "data_cleaning"
    return fedbio.Settings(
        eta=steps.eta,
        gamma=steps.gamma,
        tau=steps.tau,
        local_steps=train.local_steps,
        accelerated=train.has_momenta,
        lower="global" if cleaning else "local",
        upper="private" if cleaning else "shared",
        schedule=Schedule(steps.delta, steps.offset),
        c_nu=steps.momentum,
        c_omega=steps.momentum,
        c_u=steps.momentum,
        radius=train.radius,
        neumann_terms=train.neumann_terms,
        lower_batch=train.batch,
        upper_batch=train.checked_batch,
    )


def upper_size(place: Place) -> int:
    """Upper parameters that are shared: weights of rows are not, so that their number stays private."""
    if place.trained is not None:
        raise PredictionRefused("every party has the whole model of this run: predict with its own model.safetensors")
    settings, objective = settings_of(place.spec.settings(FedbioSpec)), task_of(place).objective
    return objective.upper_size if settings.upper == "shared" else 0
