"""HGP behind a party's session: ranges of Push-Sum steps with the neighbours, as the clock asks for them."""

import asyncio
import functools
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from google.protobuf.message import Message
from numpy.typing import NDArray
from torch import Tensor

from parley.numerics.networks import NetworkError, NetworkKind, NetworkPlan
from parley.numerics.optimisers import Moments
from parley.numerics.push_sum import Mass, PushSumError, estimate
from parley.party.hgp import steps as hgp
from parley.party.hgp.push_sum import PushSumPlane
from parley.party.hgp.schedule import Schedule, SpecSchedule
from parley.party.hgp.tasks import Task, hgp_task, row_sets
from parley.party.peers import in_time
from parley.party.roles import Begun, CheckpointMissing, Coverage, Offer, Opened, PartyAlgorithm, Plan, scalar
from parley.privacy.release import Addend, Release
from parley.protocols.decentralised.codec import encode_contribution
from parley.protocols.decentralised.messages import StepRange, plan_of
from parley.protocols.hgp.codec import PROTOCOL
from parley.protocols.hgp.settings import HgpSpec, PersonalisationSpec
from parley.protocols.refusals import Refusal
from parley.protocols.tensor.codec import Blobs, MessageInvalid
from parley.tables.loading import id_digest

Vector = NDArray[np.floating]
SMALL = 1 << 16
"""Products over fewer numbers than this are quicker than handing them to another thread."""


@dataclass(frozen=True)
class State:
    """A party between two ranges of steps."""

    x: Vector
    hyper: Vector
    """λ_i."""
    moments: Moments[Vector]
    """Of the steps on λ_i."""
    v: Vector | None = None
    """The last hyper-gradient."""
    disagreement: float = 0.0
    """How far the neighbours' estimates were from this party's, relative to it: over the rounds of the last
    hyper-gradient, or at the end of the inner problem where there is none."""
    k: int = 0
    """Outer iterations that the last checkpoint contains."""
    inner: hgp.TrainingState | None = None
    """The inner problem while it is being solved."""
    outer: hgp.HyperGradientState | None = None
    """The hyper-gradient while it is being computed."""


class HgpRole:
    """Hyper-parameters, influence of rows, or a personal model, by SGP and HGP."""

    def __init__(
        self, index: int, task: Task, schedule: Schedule, plane: PushSumPlane, seconds: float | None = None
    ) -> None:
        """`seconds` bound a range of steps with the neighbours."""
        self._index, self._task, self._schedule = index, task, schedule
        self._plane, self._seconds = plane, seconds
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="hgp")
        self._small = task.cost.rows * task.cost.model_size <= SMALL

    def begin(self, checkpoint: Mapping[str, Tensor] | None) -> State:
        """The first x and λ, or those of a checkpoint."""
        fresh = State(self._task.x, self._task.hyper, Moments.zeros(self._task.hyper))
        if checkpoint is None:
            return fresh
        named = {name: tensor.numpy() for name, tensor in checkpoint.items()}
        if any(name not in named or named[name].shape != getattr(fresh, name).shape for name in ("x", "hyper")):
            raise CheckpointMissing("the checkpoint belongs to other rows or another model: start a new run")
        moments = fresh.moments
        if "first_moment" in checkpoint:
            moments = Moments(named["first_moment"], named["second_moment"], int(named["moment_count"]))
        return State(named["x"], named["hyper"], moments, v=named.get("v"), k=int(named["k"]))

    async def act(self, state: State, instruction: StepRange) -> Plan:
        """Take a range of steps with the neighbours, or do what needs none."""
        # The coordinator goes on only after everyone has answered. What was sent last in a range is taken in the next.
        if instruction.phase in ("train", "hyper_gradient") and instruction.first > 0:
            started = self._schedule.first_step(instruction.k, instruction.phase)
            self._plane.confirm_before(started + instruction.first - 1)
        else:
            self._plane.confirm_all()
        match instruction.phase:
            case "train" | "hyper_gradient":
                what = f"steps {instruction.first} to {instruction.last} of {instruction.phase}"
                return Plan(await in_time(self._walk(state, instruction), self._seconds, what))
            case "evaluate":
                draft = await self._compute(self._task.measures, state.x, state.hyper, state.v)
                return Plan(state, draft=np.append(draft, state.disagreement))
            case "checkpoint":
                return Plan(replace(state, k=instruction.k), checkpoint=instruction.k)
            case "finish":
                return Plan(state, finished=True)
        raise MessageInvalid(f"a run of hgp has no phase {instruction.phase}")

    async def stop(self, state: State) -> Plan:
        """Let the thread go."""
        await self._plane.close()
        self._worker.shutdown(wait=False)
        return Plan(state)

    def encode(
        self,
        number: int,
        instruction: StepRange,  # noqa: ARG002 (the answer's kind follows from the release)
        release: Release[Addend] | None,
    ) -> tuple[Message, Blobs]:
        """That it is done, or this party's part of the measures."""
        return encode_contribution(number, self._plane.traffic, release)

    def tensors(self, state: State) -> dict[str, Tensor]:
        """All that outlives an outer iteration."""
        named = {"x": _tensor(state.x), "hyper": _tensor(state.hyper), "k": scalar(state.k)}
        if state.moments.count:
            moments = state.moments
            named |= {"first_moment": _tensor(moments.first), "second_moment": _tensor(moments.second)}
            named["moment_count"] = scalar(moments.count)
        return named if state.v is None else named | {"v": _tensor(state.v)}

    def model_tensors(self, state: State) -> dict[str, Tensor]:
        """x, λ_i and the last hyper-gradient."""
        named = {"model": _tensor(state.x), "hyper": _tensor(state.hyper)}
        return named if state.v is None else named | {"hyper_gradient": _tensor(state.v)}

    def reports(self, state: State) -> Mapping[str, bytes]:
        """What the party's owner wanted to know; it stays here."""
        return self._task.findings(state.v)

    async def _walk(self, state: State, asked: StepRange) -> State:
        clock, schedule = self._schedule.first_step(asked.k, asked.phase), self._schedule
        trains = asked.phase == "train"
        settings = schedule.training(asked.k) if trains else schedule.hyper_gradient(asked.k)
        total = settings.steps
        if asked.first == 0:
            self._plane.begin(clock)
            state = await self._started(state, asked)
        current: Any = state.inner if trains else state.outer
        if current is None or current.step != asked.first or asked.last > total:
            raise MessageInvalid(f"steps {asked.first} to {asked.last} of {asked.phase} are not due now")
        step, pushes = self._stepper(state, settings), settings.push_steps
        for at in range(asked.first, asked.last):
            incoming = await self._received(clock, at, current, settings) if at else {}
            receivers, shares = self._plane.receivers(clock + at)
            current, portions = await self._stepped(step, at, pushes, current, incoming, receivers, shares)
            await self._plane.send(clock + at, portions)
        if asked.last == total:
            incoming = await self._received(clock, total, current, settings)
            current, _ = await self._stepped(step, total, pushes, current, incoming, (), None)
            return await self._ended(state, asked, current)
        return replace(state, inner=current) if trains else replace(state, outer=current)

    async def _received(
        self, clock: int, at: int, current: Any, settings: hgp.Training | hgp.Hgp
    ) -> Mapping[int, Mass]:
        incoming = await self._plane.receive(clock + at - 1)
        if not (isinstance(settings, hgp.Hgp) and settings.form is hgp.Form.REINIT):  # which restarts weights at 1
            held = current.mass.weight + sum(portion.weight for portion in incoming.values())
            self._plane.check_weight(clock + at, held)
        return incoming

    async def _started(self, state: State, asked: StepRange) -> State:
        if asked.phase == "train":
            return replace(state, inner=hgp.begin_training(state.x), outer=None)
        begun = await self._compute(hgp.begin_hyper_gradient, self._task.cost, state.x, state.hyper)
        return replace(state, inner=None, outer=begun)

    async def _ended(self, state: State, asked: StepRange, current: Any) -> State:
        if asked.phase == "train":
            x = estimate(current.mass).astype(state.x.dtype, copy=False)
            return replace(state, x=x, inner=None, disagreement=current.disagreement)
        hyper, moments = self._task.next_hyper(state.hyper, current.v, state.moments)
        return replace(state, hyper=hyper, moments=moments, v=current.v, outer=None, disagreement=current.disagreement)

    def _stepper(self, state: State, settings: hgp.Training | hgp.Hgp) -> Callable[..., Any]:
        cost, member = self._task.cost, self._index
        if isinstance(settings, hgp.Training):
            return functools.partial(hgp.train_step, cost, settings, state.hyper, member)
        return functools.partial(hgp.hyper_gradient_step, cost, settings, state.x, state.hyper, member)

    async def _stepped(self, step: Callable[..., Any], at: int, pushes: int, *arguments: Any) -> Any:
        if self._small or at % pushes:  # between two products a step only splits and adds
            return step(*arguments)
        return await self._compute(step, *arguments)

    async def _compute(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._worker, function, *arguments)


def role(begun: Begun) -> HgpRole:
    """The role in a session."""
    train, count = begun.spec.settings(HgpSpec), len(begun.spec.parties)
    plane = PushSumPlane(
        begun.index,
        network_of(begun.opened),
        begun.peers,
        doubly_stochastic=train.network.weights == "metropolis" and not _learns_alone(train),
        patience_seconds=train.patience_seconds if train.delivery == "robust" else None,
        most_waiting=2 * (train.stretch + 1) * count,
        window=train.network.window,
    )
    schedule = SpecSchedule(train, begun.spec.seed)
    task = replace(hgp_task(begun.opened), averages=begun.spec.evaluation.averages)
    return HgpRole(begun.index, task, schedule, plane, begun.spec.round_seconds)


def network_of(opened: Opened) -> NetworkPlan:
    """The run's network; a party that learns alone has neighbours at no step."""
    train = opened.spec.settings(HgpSpec)
    if _learns_alone(train):
        return NetworkPlan(NetworkKind.EDGE_LIST, size=len(opened.names), edges=((),))
    return plan_of(train.network, opened.names, opened.spec.seed)


def _learns_alone(train: HgpSpec) -> bool:
    return isinstance(train.task, PersonalisationSpec) and train.task.method == "local"


def accept(opened: Opened) -> Offer:
    """Nothing of λ is shared; refuses data that the task cannot work with."""
    network_of(opened)
    hgp_task(opened)
    return Offer(coverage=coverage(opened))


def coverage(opened: Opened) -> Coverage:
    """What the portions tell a neighbour: a gradient or a product over a batch of this party's rows, in the clear."""
    train = opened.spec.settings(HgpSpec)
    sets = row_sets(opened.spec, opened.index, len(opened.table))
    rows = len(sets.lower)
    wanted = [train.inner.batch, train.hyper.batch if train.has_hyper else None]
    smallest = min(rows, *(batch or rows for batch in wanted))
    judged = [opened.table.ids[part] for part in (sets.upper, sets.test) if len(part)]
    chosen = [id_digest(opened.table.ids[part]) for part in (sets.lower, sets.upper, sets.test)]
    return Coverage(
        rows=len(opened.table),
        batch=smallest,
        sums=train.outer.steps * train.steps_per_iteration,
        evaluated=min(map(len, judged), default=None),
        judged=tuple(judged),
        drawn=f"{wanted} of {chosen}",
    )


def _tensor(vector: Vector) -> Tensor:
    return torch.from_numpy(np.array(vector))


ALGORITHM = PartyAlgorithm(
    PROTOCOL,
    accept,
    role,
    refusals={
        NetworkError: Refusal("INVALID_ARGUMENT", "NETWORK_REFUSED"),
        PushSumError: Refusal("INVALID_ARGUMENT", "MESSAGE_INVALID"),
        hgp.InvalidHgp: Refusal("INVALID_ARGUMENT", "SPEC_INVALID"),
        hgp.Diverged: Refusal("OUT_OF_RANGE", "DIVERGED"),
    },
    training_rows=lambda spec, index, rows: row_sets(spec, index, rows).lower,
)
