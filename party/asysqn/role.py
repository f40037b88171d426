"""AsySQN behind a party's session: rounds behind a barrier, or a loop of its own that the coordinator only watches."""

import asyncio
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from google.protobuf.message import Message
from torch import Tensor

from parley.numerics.gradient_estimators import Estimator, UnsuitableFeatures, as_features, check_scaling
from parley.numerics.lbfgs import Damping, DampingMode, Scale
from parley.numerics.linear_losses import loss_named
from parley.numerics.streams import stream
from parley.party.asysqn import steps as asysqn
from parley.party.asysqn.block import Block, LabelsNotHere, RowsNotThere
from parley.party.asysqn.loop import LabelHolder, LoopState, Pace, UpdateLoop
from parley.party.asysqn.theta import ThetaPlane
from parley.party.roles import Begun, CheckpointMissing, Offer, Opened, PartyAlgorithm, Plan, SavedModel, scalar
from parley.privacy.aggregation import ring_of
from parley.privacy.release import Addend, Release
from parley.privacy.requested_sums import RequestedSums
from parley.protocols.asysqn.batches import watched_rows
from parley.protocols.asysqn.codec import PROTOCOL, encode_contribution
from parley.protocols.asysqn.messages import Ask, Evaluate, Halt, Outcome, Progress, Start, ThetaForward
from parley.protocols.asysqn.settings import AsysqnSpec
from parley.protocols.refusals import Refusal
from parley.protocols.rounds import Checkpoint, Finish
from parley.protocols.tensor.codec import Blobs, MessageInvalid
from parley.spec.rows import divide
from parley.tables.errors import RowsDiffer, TableUnknown

Instruction = tuple[Outcome | None, Ask]


class AsysqnRole:
    """Training, or (with a trained model) prediction."""

    def __init__(self, begun: Begun, trained: SavedModel | None = None) -> None:
        self._begun, self._trained = begun, trained
        self._spec = begun.spec.settings(AsysqnSpec)
        self._block = block_of(begun.opened)
        self._pace = Pace(self._spec.turn_seconds, begun.spec.parties[begun.index].speed)
        # Updates and answers have a thread each: neither waits behind the other, nor behind other sessions.
        self._updates = ThreadPoolExecutor(max_workers=1, thread_name_prefix="asysqn-update")
        self._answers = ThreadPoolExecutor(max_workers=1, thread_name_prefix="asysqn-answer")
        self._loop: UpdateLoop | None = None
        self._loop_state: LoopState | None = None
        self._started = time.monotonic()

    def begin(self, checkpoint: Mapping[str, Tensor] | None) -> LoopState:
        """w_ℓ = 0, or as a checkpoint or the trained model has it."""
        if self._trained is not None:
            weights = self._trained["weights"].numpy()
            return LoopState(asysqn.start(self._block.data, weights), np.empty(0))
        if checkpoint is None:
            # At w = 0 everybody's part of θ is 0, so this is what the others' part is.
            return LoopState(asysqn.start(self._block.data), np.zeros(self._block.rows))
        return _restore(self._block, checkpoint)

    async def act(self, state: LoopState, instruction: Instruction) -> Plan:
        """Take the outcome, then do what is asked."""
        outcome, ask = instruction
        if self._spec.is_asynchronous and self._trained is None and self._loop is None:
            self._loop = self._make_loop(state)  # answers from now on, steps from Start on
        if self._loop is not None:
            self._loop.heard = time.monotonic()
            self._loop.check()
            state = self._loop.loop_state
        if outcome is not None:
            state = await self._take(state, outcome)
        self._loop_state = state
        match ask:
            case ThetaForward(rows=rows):
                draft = await self._compute(self._block.share, state.state, self._begun.index, rows)
                self._loop_state = replace(state, pending=rows, calls=state.calls + 1)
                return Plan(self._loop_state, draft=draft)
            case Evaluate():
                return Plan(state, draft=await self._compute(self._block.evaluated, state.state, ask))
            case Start():
                if self._loop is None:
                    raise MessageInvalid("only an asynchronous training session starts a loop")
                self._loop.start()
            case Halt() if self._loop is not None:
                await self._loop.stop()
                self._loop.check()
                self._loop_state = self._loop.loop_state
        assert self._loop_state is not None  # noqa: S101 (set above)
        kept = replace(self._loop_state, k=ask.k) if isinstance(ask, Checkpoint) else self._loop_state
        if self._loop is not None:
            self._loop.checkpoint = max(self._loop.checkpoint, kept.k)
        return Plan(kept, checkpoint=kept.k if isinstance(ask, Checkpoint) else None, finished=isinstance(ask, Finish))

    async def stop(self, state: LoopState) -> Plan:
        """Stop the loop and the answers to peers; an asynchronous party keeps its newest state as its checkpoint."""
        loop, self._loop = self._loop, None
        if loop is not None:
            await loop.stop()
            await loop.plane.close()
            state = replace(loop.loop_state, k=loop.checkpoint)
        if self._begun.opened.coordinator is not None:
            await self._begun.opened.coordinator.close()
        self._updates.shutdown(wait=False)
        self._answers.shutdown(wait=False)
        healthy = loop is not None and loop.failure is None
        return Plan(state, checkpoint=state.k if healthy and state.k else None)

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
        arrays = {name: torch.from_numpy(np.array(array)) for name, array in asysqn.to_arrays(state.state).items()}
        others = torch.from_numpy(state.others.copy())
        counts = {"calls": scalar(state.calls), "updates_alone": scalar(state.updates_alone), "k": scalar(state.k)}
        return arrays | {"others": others} | counts

    def model_tensors(self, state: LoopState) -> dict[str, Tensor]:
        """w_ℓ."""
        return {"weights": torch.from_numpy(state.state.weights.copy())}

    async def _take(self, state: LoopState, outcome: Outcome) -> LoopState:
        """Step from the sum of the round before (synchronous)."""
        if state.pending is None or self._loop is not None:
            raise MessageInvalid("an outcome came where no sum was under way")
        began = time.monotonic()
        advanced = await self._compute(self._block.advance, state.state, self._begun.index, state.pending, outcome)
        if advanced.steps > state.state.steps:
            await self._pace.keep(began)
        return replace(state, state=advanced, pending=None)

    def _make_loop(self, loop_state: LoopState) -> UpdateLoop:
        place, opened = self._begun, self._begun.opened
        count = len(place.spec.parties)
        limits = self._spec.asynchrony
        sums = RequestedSums(
            place.index,
            count,
            place.spec.privacy.aggregation,
            lambda requester: place.secrets(f"asysqn/{requester}"),
        )
        plane = ThetaPlane(
            place.index,
            count,
            place.peers,
            sums,
            lambda requests: self._block.shares(loop.loop_state.state, requests),
            self._answers,
            most_waiting=limits.waiting_requests,
            seconds=limits.answer_seconds,
        )
        holder = None
        if self._spec.labels_at == "coordinator" and opened.coordinator is not None:
            holder = LabelHolder(opened.coordinator, opened.session_id)
        loop = UpdateLoop(
            self._block,
            place.index,
            self._spec,
            loop_state,
            plane,
            self._pace,
            self._updates,
            patience_seconds=place.spec.wait_seconds,
            label_holder=holder,
        )
        return loop

    def _progress(self) -> Progress:
        loop = self._loop
        loop_state = loop.loop_state if loop is not None else self._loop_state
        assert loop_state is not None  # noqa: S101 (act has set it)
        return Progress(
            self._begun.index,
            updates=loop_state.state.steps,
            calls=loop_state.calls,
            peer_bytes=self._begun.peers.sent_bytes,
            busy_seconds=self._pace.busy_seconds,
            loop_seconds=time.monotonic() - (loop.started if loop is not None else self._started),
            staleness=loop.staleness if loop is not None else 0,
            updates_alone=loop_state.updates_alone,
        )

    async def _compute(self, function: Any, *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._updates, function, *arguments)


def block_of(opened: Opened) -> Block:
    """This party's block of the run."""
    spec, run = opened.spec.settings(AsysqnSpec), opened.spec
    names = [entry.name for entry in run.parties]
    table = as_features(opened.table.features)
    limit = ring_of(run.privacy.aggregation).limit
    settings = asysqn.Settings(
        seed=run.seed,
        estimator=Estimator(spec.estimator),
        direction=asysqn.Direction(spec.direction),
        schedule=asysqn.Schedule(spec.schedule),
        step_size=spec.step_size,
        step_decay=spec.step_decay,
        batch_size=spec.batch,
        regularisation=spec.regularisation,
        damping=Damping(
            spec.curvature.memory,
            DampingMode(spec.curvature.damping),
            spec.curvature.delta,
            Scale(spec.curvature.scale),
        ),
        pair_every=spec.curvature.pair_every,
        snapshot_every=spec.snapshot_every,
        largest_theta=min(2.0**16, limit),
    )
    loss = loss_named(spec.loss)
    if opened.predicts:
        data = asysqn.PartyData(names[opened.index], table)
        return Block(settings, data, table[:0], table, loss, None, names)
    sets = divide(run.split, table.shape[0], stream(run.seed, "split"))
    train = sets.trained
    watched = np.concatenate([watched_rows(run.seed, train, spec.watch_rows), sets.test])
    data = asysqn.PartyData(names[opened.index], as_features(table[train]))
    labels = _labels(opened, spec)
    return Block(settings, data, table[watched], table, loss, None if labels is None else labels[train], names)


def accept(opened: Opened) -> Offer:
    """Columns of this party; refuses a table without the labels that the run needs."""
    if not opened.predicts:
        block_of(opened)
    found = check_scaling(as_features(opened.table.features))
    return Offer(len(opened.table.columns), () if found is None else (found.text,))


def _labels(opened: Opened, spec: AsysqnSpec) -> Any:
    if spec.labels_at == "coordinator":
        if spec.is_asynchronous and opened.coordinator is None:
            raise TableUnknown("labels_at: coordinator needs the coordinator's address in this party's configuration")
        return None
    table = opened.spec.table_of(opened.index)
    labels = opened.tables.labels(table, kind="real" if spec.loss == "ridge" else "classes")
    if not np.array_equal(labels.ids, opened.table.ids):
        raise RowsDiffer("this party's labels are not about the rows of its table: align them by id")
    if spec.loss == "ridge":
        return np.asarray(labels.values, dtype=np.float64)
    if len(labels.classes) != 2:
        raise RowsDiffer(f"the {spec.loss} loss takes two classes, the labels here have {len(labels.classes)}")
    return np.where(labels.values == 1, 1.0, -1.0)


def _restore(block: Block, tensors: Mapping[str, Tensor]) -> LoopState:
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    if "others" not in arrays or arrays["weights"].shape != (block.data.features.shape[1],):
        raise CheckpointMissing("the checkpoint belongs to another model: start a new run")
    calls, alone, k = (int(arrays.pop(name)) for name in ("calls", "updates_alone", "k"))
    others = arrays.pop("others").copy()
    return LoopState(asysqn.from_arrays(arrays), others, calls, alone, k)


ALGORITHM = PartyAlgorithm(
    PROTOCOL,
    accept,
    AsysqnRole,
    predictor=AsysqnRole,
    refusals={
        asysqn.Diverged: Refusal("OUT_OF_RANGE", "DIVERGED"),
        asysqn.BatchMismatch: Refusal("INVALID_ARGUMENT", "MESSAGE_INVALID"),
        UnsuitableFeatures: Refusal("FAILED_PRECONDITION", "DATA_INVALID"),
        RowsNotThere: Refusal("INVALID_ARGUMENT", "MESSAGE_INVALID"),
        LabelsNotHere: Refusal("FAILED_PRECONDITION", "LABELS_MISSING"),
    },
    training_rows=lambda spec, _, rows: divide(spec.split, rows, stream(spec.seed, "split")).lower,
    keeps_sparse=True,
)
