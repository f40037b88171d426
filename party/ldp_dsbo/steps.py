"""LDP-DSBO, Algorithms 1 and 2: what one agent does at each step.

Z. Chen and Y. Wang, "Locally Differentially Private Decentralized Stochastic Bilevel Optimization with Guaranteed
Convergence Accuracy".

| paper                 | code                        | shape | held by | leaves? |
|-----------------------|-----------------------------|-------|---------|---------|
| x_{i,t} (λ)           | `AgentState.x`              | p     | agent i | only as x + χ |
| y_{i,t} (ω)           | `AgentState.y`              | q     | agent i | only as y + ζ |
| z_{i,t}               | `AgentState.z`              | q     | agent i | only as z + ϑ |
| χ, ζ, ϑ               | `noise_draft`               |       | agent i | the same noise to all neighbours |
| w_ij, w_ii = −Σ w_ij  | `weights`                   |       | public  | |
| λ_{x/y/z,t}           | `LdpDsbo.step_sizes`        |       | public  | |
| φ_{i,k}, ξ_{i,k}      | `Agent.upper`, `.lower`     |       | agent i | no |

A step is `draft_state` (what would leave), then the gate's `noise_draft`, then `update` with what came in. The agent's
own update uses its own state without noise.

differs from the paper:
- updates are Jacobi style: u_t uses y_t and z_t, as the sensitivity analysis assumes.
- x, y and z are projected to boxes after every update; e^λ overflows otherwise, and no bound would hold.
- per-record terms are clipped, or bounded by how they are made, and rows normalised (parley.party.ldp_dsbo.objectives,
  .softmax, .meta_learning); the paper only assumes its constants.
- `minibatch` is a different oracle with a different, growing ε; the paper's experiments use it, its theorem does not.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from parley.numerics.streams import batch
from parley.party.ldp_dsbo import meta_learning as ldp_meta
from parley.party.ldp_dsbo import objectives as ldp_objectives
from parley.party.ldp_dsbo import softmax as ldp_softmax
from parley.party.ldp_dsbo.meta_learning import MetaBounds, MetaRecords
from parley.party.ldp_dsbo.objectives import Bounds, Directions, Records
from parley.party.ldp_dsbo.softmax import SoftmaxBounds, SoftmaxRecords
from parley.privacy.ldp_accounting import LdpPlan, Oracle, Recursion, Schedules
from parley.privacy.ldp_states import NoisedState as NoisedState
from parley.privacy.ldp_states import StateDraft as StateDraft
from parley.privacy.ldp_states import noise_draft as noise_draft

Vector = NDArray[np.float64]
TaskBounds = Bounds | SoftmaxBounds | MetaBounds
"""A task, and what is enforced in it."""
TaskRecords = Records | SoftmaxRecords | MetaRecords


class NeighbourMissing(ValueError):
    """A step came without the state of a neighbour, or with that of a party that is no neighbour."""


class StepMismatch(ValueError):
    """A neighbour's state belongs to another step."""


class UnusableState(ValueError):
    """A neighbour's state has another shape or holds NaN or infinity."""


class NoDataLeft(ValueError):
    """The agent has fewer records than the run's steps acquire."""


class TasksDiffer(TypeError):
    """The records belong to another task than the bounds."""


@dataclass(frozen=True)
class LdpDsbo:
    """The settings of a run; the same at every agent apart from `noise_scales`."""

    step_sizes: Schedules
    """λ_t."""
    noise_scales: Schedules | None
    """ν_t of this agent; None sends the state in the clear, which a party's policy must allow."""
    bounds: TaskBounds
    """The task, hyper-parameters (section 5.1; two classes or more) or meta-learning (5.2), and what is enforced."""
    batch_size: int = 50
    """Records that one step acquires (history) or draws (minibatch), of each kind."""
    oracle: Oracle = Oracle.HISTORY
    """What gradients average over."""
    seed: int = 0
    """Seed of the mini-batches."""


@dataclass(frozen=True)
class Agent:
    """One party's records in the order in which they arrive, made by the task's `admit`."""

    member: int
    lower: TaskRecords
    """ξ: training records."""
    upper: TaskRecords
    """φ: validation records."""


@dataclass(frozen=True)
class AgentState:
    """An agent between two steps."""

    x: Vector
    y: Vector
    z: Vector
    step: int = 0
    """t."""


def begin(size: int, initial: float = 0.0) -> AgentState:
    """Return the state at t = 0 of hyper-parameters, which depends on no data: the first release is free."""
    return AgentState(np.full(size, initial), np.zeros(size), np.zeros(size))


def first_state(settings: LdpDsbo, size: int) -> AgentState:
    """Return the state at t = 0 of the task, which depends on no data."""
    match settings.bounds:
        case Bounds() as bounds:
            return begin(size, bounds.initial)
        case SoftmaxBounds() as bounds:
            weights = np.zeros(bounds.y_size)
            return AgentState(np.full(bounds.features, bounds.enforced.initial), weights, weights.copy())
        case MetaBounds() as bounds:
            heads = np.zeros(bounds.y_size)
            return AgentState(ldp_meta.initial_embedding(bounds, settings.seed), heads, heads.copy())


def predicted(bounds: TaskBounds, records: TaskRecords, state: AgentState) -> NDArray[np.generic]:
    """Agent: the labels that its own model gives its own records."""
    match bounds, records:
        case Bounds(), Records():
            return _signs(records.features @ state.y)
        case SoftmaxBounds(), SoftmaxRecords():
            return np.asarray(ldp_softmax.scores(bounds, records, state.y).argmax(axis=1))
        case MetaBounds(), MetaRecords():
            return _signs(ldp_meta.margins(bounds, records, state.x, state.y))
    raise TasksDiffer(f"{type(records).__name__} do not belong to {type(bounds).__name__}.")


def draft_state(state: AgentState) -> StateDraft:
    """Agent: say what this step would send."""
    return StateDraft(state.x, state.y, state.z, state.step)


def update(
    agent: Agent,
    settings: LdpDsbo,
    weights: Mapping[int, float],
    state: AgentState,
    received: Mapping[int, NoisedState],
) -> AgentState:
    """Agent: lines 4–7 of Algorithm 2 and line 5 of Algorithm 1, all from the state at t."""
    _check(weights, state, received)
    lam_x, lam_y, lam_z = settings.step_sizes.at(state.step)
    d = local_directions(agent, settings, state)
    x = _mix(state.x, weights, {j: r.noised_x for j, r in received.items()}) - lam_x * d.x
    y = _mix(state.y, weights, {j: r.noised_y for j, r in received.items()}) - lam_y * d.y
    z = _mix(state.z, weights, {j: r.noised_z for j, r in received.items()}) - lam_z * d.z
    x, y, z = _project(settings.bounds, x, y, z)
    return replace(state, x=x, y=y, z=z, step=state.step + 1)


def local_directions(agent: Agent, settings: LdpDsbo, state: AgentState) -> Directions:
    """Return the three directions at the agent's current point, from the records that its oracle covers."""
    lower = agent.lower.take(_rows(agent.lower, settings, state.step, f"lower.{agent.member}"))
    upper = agent.upper.take(_rows(agent.upper, settings, state.step, f"upper.{agent.member}"))
    return task_directions(settings.bounds, lower, upper, state.x, state.y, state.z)


def task_directions(
    bounds: TaskBounds, lower: TaskRecords, upper: TaskRecords, x: Vector, y: Vector, z: Vector
) -> Directions:
    """Return the three directions of the task at a point, from these records."""
    match bounds, lower, upper:
        case Bounds(), Records(), Records():
            return ldp_objectives.directions(lower, upper, bounds, x, y, z)
        case SoftmaxBounds(), SoftmaxRecords(), SoftmaxRecords():
            return ldp_softmax.directions(lower, upper, bounds, x, y, z)
        case MetaBounds(), MetaRecords(), MetaRecords():
            return ldp_meta.directions(lower, upper, bounds, x, y, z)
    raise TasksDiffer(f"{type(lower).__name__} do not belong to {type(bounds).__name__}.")


def privacy_plan(settings: LdpDsbo, size: int, self_weight: float, *, per_record: bool = True) -> LdpPlan:
    """Return what the accountant needs to say what this agent will spend, before it trains.

    `per_record` protects one record; otherwise everything that one step acquires (the paper's adjacency).
    """
    if settings.noise_scales is None:
        raise ValueError("A run without noise has no privacy plan: its state leaves in the clear.")
    return LdpPlan(
        _recursion(settings.bounds, size),
        settings.step_sizes,
        settings.noise_scales,
        self_weight,
        settings.oracle,
        unit_weight=1.0 / settings.batch_size if per_record else 1.0,
    )


def _project(bounds: TaskBounds, x: Vector, y: Vector, z: Vector) -> tuple[Vector, Vector, Vector]:
    match bounds:
        case Bounds():
            return ldp_objectives.project(bounds, x, y, z)
        case SoftmaxBounds():
            return ldp_objectives.project(bounds.enforced, x, y, z)
        case MetaBounds():
            return ldp_meta.project(bounds, x, y, z)


def _recursion(bounds: TaskBounds, size: int) -> Recursion:
    match bounds:
        case Bounds():
            return ldp_objectives.recursion(bounds, size)
        case SoftmaxBounds():
            return ldp_softmax.recursion(bounds)
        case MetaBounds():
            return ldp_meta.recursion(bounds)


def _signs(margins: Vector) -> Vector:
    return np.where(margins > 0, 1.0, -1.0)


def _mix(own: Vector, weights: Mapping[int, float], noised: Mapping[int, Vector]) -> Vector:
    """own + Σ_j w_ij (noised_j − own), in the order of the members so that every replay has the same bits."""
    mixed = own * (1.0 - sum(weights[j] for j in sorted(weights)))
    for j in sorted(weights):
        mixed = mixed + weights[j] * noised[j]
    return mixed


def _rows(records: TaskRecords, settings: LdpDsbo, t: int, name: str) -> NDArray[np.int64] | slice:
    total = len(records.labels)
    if settings.oracle is Oracle.MINIBATCH:
        return batch(settings.seed, f"ldp.batch.{name}", 0, t, total, settings.batch_size)
    seen = (t + 1) * settings.batch_size
    if seen > total:
        raise NoDataLeft(f"Step {t} acquires more records than there are: shorten the run or the steps' batches.")
    return slice(0, seen)


def _check(weights: Mapping[int, float], state: AgentState, received: Mapping[int, NoisedState]) -> None:
    if received.keys() != weights.keys():
        raise NeighbourMissing(
            f"Step {state.step} needs the states of {sorted(weights)} and got those of {sorted(received)}."
        )
    for j, other in received.items():
        if other.step != state.step:
            raise StepMismatch(f"Neighbour {j} sent step {other.step} while this agent is at {state.step}.")
        for vector, own in (
            (other.noised_x, state.x),
            (other.noised_y, state.y),
            (other.noised_z, state.z),
        ):
            if vector.shape != own.shape or not np.isfinite(vector).all():
                raise UnusableState(
                    f"Neighbour {j} sent a vector of shape {vector.shape} where {own.shape} finite numbers belong."
                )
