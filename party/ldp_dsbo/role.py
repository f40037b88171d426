"""LDP-DSBO behind a party's session: states under Laplace noise to the neighbours, charged to the party's ledger."""

import asyncio
import json
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from google.protobuf.message import Message
from numpy.typing import NDArray
from torch import Tensor

from parley.numerics.networks import NetworkError, gossip_weights, links
from parley.numerics.streams import stream
from parley.party.ldp_dsbo import meta_learning as ldp_meta
from parley.party.ldp_dsbo import objectives as ldp_objectives
from parley.party.ldp_dsbo import softmax as ldp_softmax
from parley.party.ldp_dsbo import steps as ldp_dsbo
from parley.party.ldp_dsbo.meta_learning import MetaBounds
from parley.party.ldp_dsbo.objectives import Bounds
from parley.party.ldp_dsbo.softmax import SoftmaxBounds
from parley.party.peers import PeerFlooded, Peers, in_time
from parley.party.roles import Begun, CheckpointMissing, Coverage, Offer, Opened, PartyAlgorithm, Plan, scalar
from parley.privacy.ldp_accounting import (
    AccountingError,
    Decay,
    LdpPlan,
    Oracle,
    Schedules,
    guarantee,
    laplace_scales,
    unmet_rates,
)
from parley.privacy.ldp_states import NoisedState
from parley.privacy.release import Addend, Release, StateGate
from parley.protocols.decentralised.codec import encode_contribution
from parley.protocols.decentralised.messages import PeerTraffic, StepRange, plan_of
from parley.protocols.ldp_dsbo.codec import PROTOCOL, decode_noised_state, encode_noised_state
from parley.protocols.ldp_dsbo.settings import LdpDsboSpec, MetaLearningSpec
from parley.protocols.refusals import Refusal
from parley.protocols.tensor.codec import Blobs, MessageInvalid
from parley.spec.rows import divide

_VECTORS = ("x", "y", "z")


@dataclass(frozen=True)
class State:
    """The agent, and the steps that the last checkpoint contains."""

    agent: ldp_dsbo.AgentState
    k: int = 0


@dataclass(frozen=True)
class Arrangement:
    """What an agent knows before its first step."""

    agent: ldp_dsbo.Agent
    test: ldp_dsbo.TaskRecords
    first: ldp_dsbo.AgentState
    """The state before the first step."""
    settings: ldp_dsbo.LdpDsbo
    weights: Mapping[int, float]
    """w_ij of its neighbours."""
    plan: LdpPlan | None
    """What the accountant goes by; None where states leave in the clear."""
    iterations: int
    """T: steps of the whole run."""
    delta: float
    """δ of the guarantee that is told."""


class LdpDsboRole:
    """An agent of LDP-DSBO."""

    def __init__(
        self,
        index: int,
        known: Arrangement,
        gate: StateGate,
        peers: Peers,
        *,
        most_ahead: int,
        seconds: float | None = None,
    ) -> None:
        """`most_ahead`: steps by which a neighbour's state may run ahead; `seconds` bound a range of steps."""
        self._index, self._known, self._gate, self._peers = index, known, gate, peers
        self._most_ahead, self._seconds = most_ahead, seconds
        self._arrived: dict[int, dict[int, NoisedState]] = {}
        self._at = 0
        self._came = asyncio.Event()
        self._messages = 0
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ldp-dsbo")
        self._peers.on("noised_state", self._take)

    def begin(self, checkpoint: Mapping[str, Tensor] | None) -> State:
        """Numbers that depend on no data, or a checkpoint."""
        first = self._known.first
        if checkpoint is None:
            return State(first)
        named = {name: tensor.numpy() for name, tensor in checkpoint.items()}
        if any(name not in named or named[name].shape != getattr(first, name).shape for name in _VECTORS):
            raise CheckpointMissing("the checkpoint belongs to another table: start a new run")
        k = int(named["k"])
        self._at = k
        return State(ldp_dsbo.AgentState(named["x"], named["y"], named["z"], k), k)

    async def act(self, state: State, instruction: StepRange) -> Plan:
        """Take a range of steps with the neighbours, or keep the state."""
        match instruction.phase:
            case "agent_steps":
                if instruction.first != state.agent.step or instruction.last > self._known.iterations:
                    raise MessageInvalid(f"steps {instruction.first} to {instruction.last} are not due now")
                what = f"steps {instruction.first} to {instruction.last}"
                walk = self._walk(state.agent, instruction.last)
                return Plan(replace(state, agent=await in_time(walk, self._seconds, what)))
            case "checkpoint":
                return Plan(replace(state, k=instruction.k), checkpoint=instruction.k)
            case "finish":
                return Plan(state, finished=True)
        raise MessageInvalid(f"a run of ldp_dsbo has no phase {instruction.phase}")

    async def stop(self, state: State) -> Plan:
        """Let the thread go."""
        self._worker.shutdown(wait=False)
        return Plan(state)

    def encode(
        self,
        number: int,
        instruction: StepRange,  # noqa: ARG002 (everything is only acknowledged)
        release: Release[Addend] | None,
    ) -> tuple[Message, Blobs]:
        """That it is done."""
        return encode_contribution(number, PeerTraffic(self._index, self._messages, self._peers.sent_bytes), release)

    def tensors(self, state: State) -> dict[str, Tensor]:
        """All that an agent needs to go on; no noise is in it."""
        return self.model_tensors(state) | {"k": scalar(state.k)}

    def model_tensors(self, state: State) -> dict[str, Tensor]:
        """x (log-coefficients, or the embedding), y (the model, or the heads) and z."""
        return {name: torch.from_numpy(np.array(getattr(state.agent, name))) for name in _VECTORS}

    def reports(self, state: State) -> Mapping[str, bytes]:
        """How good the party's own model is on its own test records, and what the run cost; it stays here."""
        test, spent = self._known.test, spends(self._known)
        content = {
            "test records": len(test.labels),
            "test accuracy": accuracy(self._known, test, state.agent) if len(test.labels) else None,
            "privacy": spent,
        }
        return {"agent.json": json.dumps(content, indent=1).encode()}

    async def _walk(self, agent: ldp_dsbo.AgentState, last: int) -> ldp_dsbo.AgentState:
        known = self._known
        while agent.step < last:
            self._at = agent.step
            release = await self._compute(self._gate.release, ldp_dsbo.draft_state(agent))
            for neighbour in known.weights:
                blobs: Blobs = deque()
                message = encode_noised_state(release, blobs)
                await self._peers.push(neighbour, blobs, noised_state=message)
                self._messages += 1
            received = await self._received(agent.step)
            agent = await self._compute(ldp_dsbo.update, known.agent, known.settings, known.weights, agent, received)
        self._at = agent.step
        return agent

    async def _received(self, step: int) -> dict[int, NoisedState]:
        while not self._known.weights.keys() <= self._arrived.get(step, {}).keys():
            self._came.clear()
            await self._came.wait()
        return self._arrived.pop(step)

    def _take(self, sender: int, message: Any, blobs: Blobs) -> None:
        state = decode_noised_state(message, blobs)
        if sender not in self._known.weights:
            raise MessageInvalid("noised_state: the sender is no neighbour in this run's network")
        if state.step < self._at:
            return  # a repeated one
        # A neighbour waits for this agent at every step, so it is at most one step ahead.
        if state.step > self._at + self._most_ahead:
            raise PeerFlooded(f"a state of step {state.step} came at step {self._at}: the parties are out of step")
        self._arrived.setdefault(state.step, {}).setdefault(sender, state)
        self._came.set()

    async def _compute(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._worker, function, *arguments)


def role(begun: Begun) -> LdpDsboRole:
    """The role in a session; sets the run's ε aside."""
    known, stretch = arrange(begun.opened), begun.spec.settings(LdpDsboSpec).stretch
    gate = gate_of(begun.opened, known)
    gate.open()
    seconds = begun.spec.round_seconds
    return LdpDsboRole(begun.index, known, gate, begun.peers, most_ahead=2 * stretch, seconds=seconds)


def arrange(opened: Opened) -> Arrangement:
    """Admit the party's records and settle who its neighbours are."""
    run, train = opened.spec, opened.spec.settings(LdpDsboSpec)
    entry = run.parties[opened.index]
    matrix = links(plan_of(train.network, [each.name for each in run.parties], run.seed), 0)
    row = gossip_weights(matrix, train.weight)[opened.index]
    weights = {j: float(w) for j, w in enumerate(row) if j != opened.index and w != 0}
    settings = settings_of(train, run.seed, opened.table.columns)
    sets = divide(run.split, len(opened.table), stream(run.seed, f"ldp/{entry.name}/split"))
    features, labels = np.asarray(opened.table.features), _labels(opened, train)
    admit = _admission(opened, train, settings.bounds)
    lower, upper, test = (admit(features[rows], labels[rows]) for rows in (sets.lower, sets.upper, sets.test))
    needed = train.batch * (train.iterations if train.oracle == "history" else 1)
    if min(len(lower.labels), len(upper.labels)) < needed:
        raise ldp_dsbo.NoDataLeft(
            f"{needed} training and {needed} validation records are needed, there are {len(lower.labels)} and "
            f"{len(upper.labels)}: lower `batch` or `iterations`, or change `split`"
        )
    agent = ldp_dsbo.Agent(opened.index, lower, upper)
    plan = None
    if settings.noise_scales is not None:
        plan = ldp_dsbo.privacy_plan(
            settings, features.shape[1], float(row[opened.index]), per_record=train.unit == "record"
        )
    first = ldp_dsbo.first_state(settings, features.shape[1])
    return Arrangement(agent, test, first, settings, weights, plan, train.iterations, train.delta)


def _admission(
    opened: Opened, train: LdpDsboSpec, bounds: ldp_dsbo.TaskBounds
) -> Callable[[NDArray[np.float64], NDArray[np.float64]], ldp_dsbo.TaskRecords]:
    """How rows of the table and their labels become records of the task."""
    if isinstance(bounds, Bounds):
        return lambda features, labels: ldp_objectives.admit(features, labels, bounds)
    if isinstance(bounds, SoftmaxBounds):
        return lambda features, labels: ldp_softmax.admit(features, labels, bounds)
    assert isinstance(train.task, MetaLearningSpec)  # noqa: S101 (`settings_of` goes by it)
    at = list(opened.table.columns).index(train.task.column)
    return lambda features, labels: ldp_meta.admit(np.delete(features, at, axis=1), features[:, at], labels, bounds)


def accuracy(known: Arrangement, records: ldp_dsbo.TaskRecords, agent: ldp_dsbo.AgentState) -> float:
    """The share of records whose label the agent's own model gives."""
    return float(np.mean(ldp_dsbo.predicted(known.settings.bounds, records, agent) == records.labels))


def settings_of(train: LdpDsboSpec, seed: int, columns: Sequence[str] = ()) -> ldp_dsbo.LdpDsbo:
    """The run's settings as `parley.party.ldp_dsbo.steps` knows them.

    Meta-learning and more than two classes need the table's columns.
    """
    steps, noise = train.step_sizes, train.noise
    return ldp_dsbo.LdpDsbo(
        Schedules(*(Decay(each.initial, each.rate) for each in (steps.x, steps.y, steps.z))),
        None if noise is None else laplace_scales(noise.sigma, noise.x_rate, noise.y_rate, noise.z_rate),
        _bounds(train, columns),
        train.batch,
        Oracle(train.oracle),
        seed,
    )


def _bounds(train: LdpDsboSpec, columns: Sequence[str]) -> ldp_dsbo.TaskBounds:
    task = train.task
    if not isinstance(task, MetaLearningSpec):
        enforced = Bounds(**train.bounds.model_dump(), initial=task.initial)
        if len(train.classes) == 2:
            return enforced
        return SoftmaxBounds(len(columns), len(train.classes), enforced)
    if task.column not in columns:
        raise ldp_objectives.InvalidBounds(
            f"meta-learning reads each row's task from column {task.column!r}, which the table does not have: "
            "correct task.column, or add the column"
        )
    shape = {"features": len(columns) - 1, "tasks": task.tasks, "embedding": task.embedding}
    return MetaBounds(**shape, weight_decay=task.weight_decay, initial=task.initial, **task.bounds.model_dump())


def gate_of(opened: Opened, known: Arrangement) -> StateGate:
    """The gate of this run's states; refuses a run that would pass the spec's ε or the policy's."""
    train = opened.spec.settings(LdpDsboSpec)
    assert opened.privacy is not None  # noqa: S101 (every party has one)
    local = opened.privacy()
    return StateGate(
        local.ledger,
        local.noise,
        opened.run_id,
        known.plan,
        size=max(len(known.first.x), len(known.first.y)),
        iterations=known.iterations,
        run_limit=math.inf if known.plan is None else train.epsilon,
        limit=local.epsilon_budget,
        neighbours=tuple(opened.names[j] for j in known.weights),
    )


def spends(known: Arrangement) -> str:
    """What the run costs one record of this party, in words."""
    if known.plan is None:
        return "none: states leave in the clear"
    return str(guarantee(known.plan, known.iterations, delta=known.delta))


def accept(opened: Opened) -> Offer:
    """Nothing is shared in the clear; says what the run will cost, and refuses a cost that is not accepted here."""
    known = arrange(opened)
    gate_of(opened, known)
    train, rows = opened.spec.settings(LdpDsboSpec), len(opened.table)
    covered = Coverage(rows=rows, batch=min(train.batch, rows), sums=train.iterations, exact=train.noise is None)
    return Offer(warnings=(f"this run costs {spends(known)}", *_doubts(known)), coverage=covered)


def _doubts(known: Arrangement) -> list[str]:
    """What the paper's theorem on convergence asks for and the spec's rates do not have."""
    if known.plan is None:
        return []
    unmet = unmet_rates(known.plan.step_sizes, known.plan.noise_scales)
    if not unmet:
        return []
    return [f"convergence is not assured: train.step_sizes and train.noise do not have {', '.join(unmet)}"]


def _labels(opened: Opened, train: LdpDsboSpec) -> NDArray[np.float64]:
    """−1 and 1 where there are two classes, numbers of classes where there are more."""
    numbers = np.asarray(opened.labels(train.classes).values, dtype=np.float64)
    return np.where(numbers == 1, 1.0, -1.0) if len(train.classes) == 2 else numbers


ALGORITHM = PartyAlgorithm(
    PROTOCOL,
    accept,
    role,
    refusals={
        NetworkError: Refusal("INVALID_ARGUMENT", "NETWORK_REFUSED"),
        AccountingError: Refusal("INVALID_ARGUMENT", "SPEC_INVALID"),
        ldp_objectives.InvalidBounds: Refusal("FAILED_PRECONDITION", "DATA_INVALID"),
        ldp_dsbo.NoDataLeft: Refusal("FAILED_PRECONDITION", "DATA_INVALID"),
        ldp_dsbo.NeighbourMissing: Refusal("INVALID_ARGUMENT", "MESSAGE_INVALID"),
        ldp_dsbo.StepMismatch: Refusal("FAILED_PRECONDITION", "ROUND_MISMATCH"),
        ldp_dsbo.UnusableState: Refusal("INVALID_ARGUMENT", "MESSAGE_INVALID"),
    },
)
