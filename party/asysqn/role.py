"""AsySQN behind a party's session: rounds behind a barrier, or a loop of its own that the coordinator only watches."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import ceil
from typing import Any, TypeVar

import numpy as np
import torch
from google.protobuf.message import Message
from torch import Tensor

from parley.numerics.gradient_estimators import UnsuitableFeatures, as_features, check_scaling
from parley.numerics.streams import stream
from parley.party.asysqn import steps as asysqn
from parley.party.asysqn.block import LabelsNotHere, RowsNotThere, block_of
from parley.party.asysqn.loop import Pace, RemoteLabels, UpdateLoop, now
from parley.party.asysqn.state import Latest, LoopState, from_tensors, to_tensors
from parley.party.asysqn.sums import sums_of
from parley.party.asysqn.theta import ThetaAnswers, ThetaRequests
from parley.party.exports import Dense
from parley.party.roles import Begun, Coverage, Offer, Opened, PartyAlgorithm, Plan, SavedModel
from parley.privacy.release import Addend, Release
from parley.protocols.asysqn.codec import PROTOCOL, encode_contribution
from parley.protocols.asysqn.messages import Ask, Evaluate, Halt, Outcome, Progress, Start, ThetaForward
from parley.protocols.asysqn.settings import AsysqnSpec
from parley.protocols.refusals import Refusal
from parley.protocols.rounds import Checkpoint, Finish
from parley.protocols.tensor.codec import Blobs, MessageInvalid
from parley.spec.rows import divide

Instruction = tuple[Outcome | None, Ask]
Result = TypeVar("Result")


class AsysqnRole(ABC):
    """What a party does alike under both schedules."""

    def __init__(self, begun: Begun) -> None:
        self._begun, self._spec = begun, begun.spec.settings(AsysqnSpec)
        self._block = block_of(begun.opened)
        self._pace = Pace(self._spec.turn_seconds, begun.spec.parties[begun.index].speed)
        # A thread of this session alone: neither its updates nor other sessions wait behind each other.
        self._updates = ThreadPoolExecutor(max_workers=1, thread_name_prefix="asysqn-update")

    def begin(self, checkpoint: Mapping[str, Tensor] | None) -> LoopState:
        """w_ℓ = 0, or as a checkpoint has it."""
        if checkpoint is None:
            # At w = 0 everybody's part of θ is 0, so this is what the others' part is.
            return LoopState(asysqn.start(self._block.data), np.zeros(self._block.rows))
        return from_tensors(checkpoint, self._block.data.features.shape[1])

    def encode(
        self,
        number: int,
        instruction: Instruction,  # noqa: ARG002 (the answer's kind follows from the release)
        release: Release[Addend] | None,
    ) -> tuple[Message, Blobs]:
        """The contribution to a round, and how far this party is."""
        return encode_contribution(number, self._progress(), release)

    def tensors(self, state: LoopState) -> dict[str, Tensor]:
        """All that a party needs to go on."""
        return to_tensors(state)

    def model_tensors(self, state: LoopState) -> dict[str, Tensor]:
        """w_ℓ."""
        return {"weights": torch.from_numpy(state.state.weights.copy())}

    @abstractmethod
    def _progress(self) -> Progress:
        """How far this party is."""

    def _progress_at(self, state: LoopState, staleness: int = 0) -> Progress:
        return Progress(
            self._begun.index,
            updates=state.state.steps,
            calls=state.calls,
            peer_bytes=self._begun.peers.sent_bytes,
            busy_seconds=self._pace.busy_seconds,
            loop_seconds=self._pace.loop_seconds,
            staleness=staleness,
            updates_alone=state.updates_alone,
        )

    async def _compute(self, function: Callable[..., Result], *arguments: Any) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._updates, function, *arguments)

    async def _hang_up(self) -> None:
        if self._begun.opened.coordinator is not None:
            await self._begun.opened.coordinator.close()
        self._updates.shutdown(wait=False)


class SynchronousRole(AsysqnRole):
    """Rounds behind a barrier, or (with a trained model) prediction; the session keeps the state."""

    _planned: LoopState
    """What the round that is answered planned: the answer says how far that is."""

    def __init__(self, begun: Begun, trained: SavedModel | None = None) -> None:
        super().__init__(begun)
        self._trained = trained

    def begin(self, checkpoint: Mapping[str, Tensor] | None) -> LoopState:
        """w_ℓ as it was trained, where it was."""
        if self._trained is None:
            return super().begin(checkpoint)
        return LoopState(asysqn.start(self._block.data, self._trained["weights"].numpy()), np.empty(0))

    async def act(self, state: LoopState, instruction: Instruction) -> Plan:
        """Step from the outcome of the round before, then do what is asked."""
        outcome, ask = instruction
        self._pace.start()
        if outcome is not None:
            state = await self._take(state, outcome)
        plan = await self._answer(state, ask)
        self._planned = plan.state
        return plan

    async def stop(self, state: LoopState) -> Plan:
        """Nothing runs beside the rounds: there is nothing to keep that is not kept."""
        await self._hang_up()
        return Plan(state)

    async def _answer(self, state: LoopState, ask: Ask) -> Plan:
        match ask:
            case ThetaForward(rows=rows):
                draft = await self._compute(self._block.share, state.state, self._begun.index, rows)
                return Plan(replace(state, pending=rows, calls=state.calls + 1), draft=draft)
            case Evaluate():
                draft = await self._compute(self._block.evaluated, state.state, ask)
                return Plan(state, draft=draft, of_every_row=ask.rows == "all")
            case Start() | Halt():
                raise MessageInvalid("only an asynchronous training session has a loop to start or halt")
            case Checkpoint(k=k):
                return Plan(replace(state, k=k), checkpoint=k)
        return Plan(state, finished=isinstance(ask, Finish))

    async def _take(self, state: LoopState, outcome: Outcome) -> LoopState:
        if state.pending is None:
            raise MessageInvalid("an outcome came where no sum was under way")
        began = now()
        advanced = await self._compute(self._block.advance, state.state, self._begun.index, state.pending, outcome)
        if advanced.steps > state.state.steps:
            await self._pace.keep(began)
        return replace(state, state=advanced, pending=None)

    def _progress(self) -> Progress:
        return self._progress_at(self._planned)


class AsynchronousRole(AsysqnRole):
    """A loop that steps by itself: it has the state, of which the session keeps a copy that is as old as its round."""

    _loop: UpdateLoop
    _checkpoint: int
    """The last checkpoint that was asked for."""
    _committed: int
    """The last one that every party has written: only then is anything else asked for."""

    def __init__(self, begun: Begun) -> None:
        super().__init__(begun)
        # Answers have a thread beside the updates': neither waits behind the other.
        self._answering = ThreadPoolExecutor(max_workers=1, thread_name_prefix="asysqn-answer")

    def begin(self, checkpoint: Mapping[str, Tensor] | None) -> LoopState:
        """Make the loop: the party answers from now on, and steps from `Start` on."""
        state = super().begin(checkpoint)
        self._loop = self._make_loop(state)
        self._checkpoint = self._committed = state.k
        return state

    async def act(self, _: LoopState, instruction: Instruction) -> Plan:
        """Do what is asked beside the loop."""
        outcome, ask = instruction
        loop, self._committed = self._loop, self._checkpoint
        loop.heard = now()
        _raise_failure(loop)
        if outcome is not None:
            raise MessageInvalid("an outcome came where no sum was under way")
        match ask:
            case ThetaForward():
                raise MessageInvalid("parties of an asynchronous session ask for their sums themselves")
            case Evaluate():
                state = loop.latest.loop_state
                draft = await self._compute(self._block.evaluated, state.state, ask)
                return Plan(state, draft=draft, of_every_row=ask.rows == "all")
            case Start():
                loop.start()
            case Halt():
                await loop.stop()
                _raise_failure(loop)
            case Checkpoint(k=k):
                self._checkpoint = k
                return Plan(replace(loop.latest.loop_state, k=k), checkpoint=k)
        return Plan(loop.latest.loop_state, finished=isinstance(ask, Finish))

    async def stop(self, state: LoopState) -> Plan:
        """Stop the loop and the answers, and keep the newest state as the checkpoint that the run will resume from."""
        loop, k, committed = self._loop, self._checkpoint, self._committed
        await loop.stop()
        await loop.answers.close()
        await self._hang_up()
        self._answering.shutdown(wait=False)
        if not loop.has_started or loop.failure is not None or not k:
            return Plan(state)
        earlier = committed if 0 < committed < k else None
        return Plan(replace(loop.latest.loop_state, k=k), checkpoint=k, earlier_checkpoint=earlier)

    def _make_loop(self, state: LoopState) -> UpdateLoop:
        begun, limits, latest = self._begun, self._spec.asynchrony, Latest(state)
        index, count, line = begun.index, len(begun.spec.parties), begun.opened.coordinator
        sums = sums_of(begun)
        answers = ThetaAnswers(
            self._block,
            latest,
            begun.peers,
            sums,
            self._answering,
            most_waiting=limits.waiting_requests,
            seconds=limits.answer_seconds,
        )
        labels = None
        if self._spec.labels_at == "coordinator" and line is not None:
            labels = RemoteLabels(line, begun.opened.session_id)
        return UpdateLoop(
            self._block,
            index,
            limits,
            latest,
            ThetaRequests(index, count, begun.peers, sums, limits.answer_seconds),
            answers,
            self._pace,
            self._updates,
            patience_seconds=begun.spec.wait_seconds,
            remote_labels=labels,
        )

    def _progress(self) -> Progress:
        return self._progress_at(self._loop.latest.loop_state, self._loop.staleness)


def _raise_failure(loop: UpdateLoop) -> None:
    failure = loop.failure or loop.answers.failure
    if failure is not None:
        raise failure


def role_of(begun: Begun) -> AsysqnRole:
    """The role that the run's schedule asks for."""
    asynchronous = begun.spec.settings(AsysqnSpec).is_asynchronous
    return AsynchronousRole(begun) if asynchronous else SynchronousRole(begun)


def accept(opened: Opened) -> Offer:
    """Columns of this party; refuses a table without the labels that the run needs."""
    size = len(opened.table.columns)
    if opened.predicts:  # of rows that were chosen by id, nothing but their sums is told
        return Offer(size)
    block_of(opened)
    found = check_scaling(as_features(opened.table.features))
    return Offer(size, () if found is None else (found.text,), coverage(opened))


def coverage(opened: Opened) -> Coverage:
    """What the sums of θ tell: the model is linear in this party's columns."""
    spec, train = opened.spec, opened.spec.settings(AsysqnSpec)
    sets = opened.row_sets
    rows = len(sets.trained)
    batch = min(train.batch, rows)
    # Besides batches, every row is in a snapshot now and then, and in what the coordinator watches.
    whole = 1 / train.snapshot_every if train.estimator != "sgd" else 0.0
    whole += 1 / spec.evaluate_every if spec.evaluate_every else 0.0
    share = min(1.0, batch / rows + whole)
    return Coverage(
        rows=rows,
        batch=batch,
        sums=ceil(train.steps * share) + 1,
        evaluated=sets.fewest_held_out,
        rank=len(opened.table.columns),
        share=share,
    )


ALGORITHM = PartyAlgorithm(
    PROTOCOL,
    accept,
    role_of,
    predictor=SynchronousRole,
    rows_asked=lambda first, count: (None, Evaluate("all", first, count)),
    refusals={
        asysqn.Diverged: Refusal("OUT_OF_RANGE", "DIVERGED"),
        asysqn.BatchMismatch: Refusal("INVALID_ARGUMENT", "MESSAGE_INVALID"),
        UnsuitableFeatures: Refusal("FAILED_PRECONDITION", "DATA_INVALID"),
        RowsNotThere: Refusal("INVALID_ARGUMENT", "MESSAGE_INVALID"),
        LabelsNotHere: Refusal("FAILED_PRECONDITION", "LABELS_MISSING"),
    },
    training_rows=lambda spec, _, rows: divide(spec.split, rows, stream(spec.seed, "split")).lower,
    exported=lambda _spec, _index, model: [Dense(model["weights"].numpy()[:, None])],
    keeps_sparse="always",
)
