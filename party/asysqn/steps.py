"""AsySQN at a party: one loop for the asynchronous and synchronous, quasi-Newton and first-order methods.

Q. Zhang, B. Gu, C. Deng, S. Gu, L. Bo, J. Pei, H. Huang: AsySQN: Faster Vertical Federated Learning
Algorithms with Better Computation Resource Utilization, KDD 2021. Algorithms 1, 3, 4 and 5.

| paper      | code                 | shape    | held by       | leaves?                                |
|------------|----------------------|----------|---------------|----------------------------------------|
| w_ℓ        | `State.weights`      | (d_ℓ,)   | the party     | no                                     |
| (x_i)_ℓ    | `PartyData.features` | (n, d_ℓ) | the party     | no                                     |
| θ_I^ℓ      | `partial_theta(…)`   | (b,)     | the party     | only masked, into a secure sum         |
| θ_I, ∂L/∂θ | `Slopes`             | (b,)     | the requester | no further                             |
| I          | `propose_batch(…)`   | (b,)     | public        | as its name (seed, k, t), never listed |
| γ (step)   | `Settings.step_size` | ()       | run spec      | public                                 |
| ‖w_ℓ‖²     | `squared_norm(…)`    | ()       | the party     | only masked, into a secure sum         |

One turn of a party: where `snapshot_due`, one aggregation over all rows and `take_snapshot`; `propose_batch`;
one aggregation over the batch (every party answers with `partial_theta`); `update`.

Snapshots of SVRG. Synchronous: all parties count the same steps, so all are due at once; the coordinator
holds the round (the barrier), and one aggregation at one w serves everybody. Asynchronous: each party is due
after its own `snapshot_every` updates, asks for θ over all rows as for any batch, and nobody waits. The sum
then mixes slightly different moments, which is sound: see `parley.numerics.gradient_estimators`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from parley.numerics.gradient_estimators import (
    Estimator,
    Features,
    Reference,
    Rows,
    estimate,
    local_difference,
    reference_at,
    replace_entries,
)
from parley.numerics.gradient_estimators import ScalingWarning as ScalingWarning
from parley.numerics.gradient_estimators import check_scaling as check_scaling
from parley.numerics.lbfgs import Curvature, Damping, Pair, direction, remember
from parley.numerics.linear_losses import Slopes
from parley.protocols.asysqn.batches import batch_rows, next_rows
from parley.protocols.asysqn.messages import AllRows, Batch, RowsName

Vector = NDArray[np.float64]


class Direction(StrEnum):
    """What turns the gradient estimate into a step."""

    QUASI_NEWTON = "quasi_newton"
    FIRST_ORDER = "first_order"


class Schedule(StrEnum):
    """Who steps when."""

    ASYNCHRONOUS = "asynchronous"
    """Every party on its own batches, without waiting."""
    SYNCHRONOUS = "synchronous"
    """All parties on one shared batch, from one w, behind a barrier."""


class Diverged(ArithmeticError):
    """The run left the range in which its numbers mean anything."""


class SnapshotMissing(RuntimeError):
    """SVRG or SAGA was asked for a step before it has a reference."""


class BatchMismatch(ValueError):
    """The slopes do not belong to the rows that were asked for."""


class UnsuitableSettings(ValueError):
    """The settings of the run are out of range."""


@dataclass(frozen=True)
class Settings:
    """What the run spec fixes for every party."""

    seed: int = 0
    """The run's public seed of batches."""
    estimator: Estimator = Estimator.SVRG
    """SGD, SVRG or SAGA."""
    direction: Direction = Direction.QUASI_NEWTON
    """AsySQN and SynSQN, or the AF…-VP baselines."""
    schedule: Schedule = Schedule.ASYNCHRONOUS
    """Whether parties share batches behind a barrier."""
    step_size: float = 0.2
    """γ > 0; below 2/λ_max of the block-preconditioned Hessian, 0.28–0.34 at eight parties."""
    step_decay: float | None = None
    """Own steps after which the step size has halved, γ/(1 + t/step_decay); SGD needs one. None: constant."""
    batch_size: int = 1024
    """b ≥ 1; about √n at least, small batches lose the benefit of curvature."""
    regularisation: float = 1e-4
    """λ ≥ 0 of (λ/2)‖w‖²."""
    damping: Damping = field(default_factory=Damping)
    """The L-BFGS memory, used by `quasi_newton`."""
    pair_every: int = 10
    """L ≥ 1, the own steps that one curvature pair spans."""
    snapshot_every: int = 32
    """Own steps between SVRG snapshots, ≥ 1; n/b is one pass."""
    largest_theta: float = 2.0**16
    """Slopes beyond this mean divergence. They follow from sums, and tell nothing of one party's share alone."""

    def __post_init__(self) -> None:
        positive = {
            "step_size": self.step_size,
            "step_decay": 1.0 if self.step_decay is None else self.step_decay,
            "batch_size": self.batch_size,
            "pair_every": self.pair_every,
            "snapshot_every": self.snapshot_every,
            "largest_theta": self.largest_theta,
        }
        wrong = [name for name, value in positive.items() if not 0 < value < np.inf]
        if not 0.0 <= self.regularisation < np.inf:
            wrong.append("regularisation")
        if wrong:
            raise UnsuitableSettings(f"{', '.join(wrong)}: give a finite positive number (regularisation may be 0)")


@dataclass(frozen=True)
class PartyData:
    """What a party brings; it never changes and is no part of a checkpoint."""

    party: str
    """The party's name in the roster: it names the party's batches."""
    features: Features
    """Its own columns, (n, d_ℓ), from `parley.numerics.gradient_estimators.as_features`."""


@dataclass(frozen=True)
class State:
    """All that a party needs to go on after a restart."""

    weights: Vector
    """w_ℓ."""
    anchor: Vector
    """w_ℓ at the last curvature pair: s = w_ℓ − anchor."""
    steps: int = 0
    """Own updates made, t."""
    snapshots: int = 0
    """References taken, s; with `steps` it names the next batch."""
    steps_since_snapshot: int = 0
    """Own updates since the last of them."""
    curvature: Curvature = field(default_factory=Curvature)
    """The L-BFGS memory."""
    reference: Reference | None = None
    """L'(θ_i) of the snapshot (SVRG) or table (SAGA); SGD has none."""


def start(data: PartyData, weights: Vector | None = None) -> State:
    """Return the state before the first step, at w_ℓ = 0 unless weights are given."""
    initial = np.zeros(data.features.shape[1]) if weights is None else np.array(weights, dtype=np.float64)
    return State(weights=initial, anchor=initial)


def propose_batch(settings: Settings, data: PartyData, state: State) -> Rows:
    """Return the rows of this party's next step, a function of (seed, snapshots, steps) alone."""
    return rows_of(settings, data, data.party, Batch(state.snapshots, state.steps))


def rows_of(settings: Settings, data: PartyData, requester: str, name: Batch) -> Rows:
    """Return the rows of a requester's batch; of everybody's where the schedule is synchronous."""
    who = requester if settings.schedule is Schedule.ASYNCHRONOUS else None
    return batch_rows(settings.seed, who, name, rows=data.features.shape[0], size=settings.batch_size)


def partial_theta(data: PartyData, state: State, rows: Rows | None = None) -> Vector:
    """Return θ_I^ℓ = (x_I)_ℓ w_ℓ for another party's (or the own) request; all rows if none are named."""
    features = data.features if rows is None else data.features[rows]
    # However large it is: what does not fit the ring keeps the sum from opening, and nobody learns whose share it was.
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(features @ state.weights)


def squared_norm(state: State) -> float:
    """Return ‖w_ℓ‖², the party's share of the regulariser in the objective."""
    return float(state.weights @ state.weights)


def rows_due(settings: Settings, state: State) -> RowsName:
    """Return the name of the rows of this party's next sum: all of them where a snapshot is due."""
    return next_rows(
        settings.estimator,
        settings.snapshot_every,
        snapshots=state.snapshots,
        steps=state.steps,
        steps_since=state.steps_since_snapshot,
    )


def snapshot_due(settings: Settings, state: State) -> bool:
    """Say whether the party needs L'(θ) of all rows before its next update."""
    return isinstance(rows_due(settings, state), AllRows)


def take_snapshot(settings: Settings, data: PartyData, state: State, derivatives: Vector) -> State:
    """Make L'(θ_i) of all n rows the reference (Algorithm 4 line 3, Algorithm 5 line 2)."""
    if derivatives.shape != (data.features.shape[0],):
        raise BatchMismatch(
            f"a snapshot needs one slope per row, {data.features.shape[0]}, and got shape {derivatives.shape}"
        )
    _refuse_explosion(derivatives, settings, state, "∂L/∂θ of the snapshot")
    reference = reference_at(data.features, derivatives)
    return replace(state, reference=reference, snapshots=state.snapshots + 1, steps_since_snapshot=0)


def update(settings: Settings, data: PartyData, state: State, rows: Rows, slopes: Slopes) -> State:
    """Make one own step from the slopes at the aggregated θ_I (Algorithms 3 to 5, last lines).

    The pair is formed after the step, with the L''(θ_I) at hand: the same batch, everyone else held still.
    """
    _check_slopes(settings, state, rows, slopes)
    own = data.features[rows]
    gradient = estimate(
        own,
        slopes.derivative,
        state.weights,
        regularisation=settings.regularisation,
        reference=state.reference,
        rows=rows,
    )
    quasi_newton = settings.direction is Direction.QUASI_NEWTON
    descent = direction(state.curvature, gradient) if quasi_newton else gradient
    length = step_size(settings, state.steps)
    if quasi_newton:
        length = min(length, longest_step(settings, own, slopes.curvature, gradient, descent))
    with np.errstate(over="ignore", invalid="ignore"):  # the next sum does not open then
        weights = state.weights - length * descent
    state = replace(
        state,
        weights=weights,
        steps=state.steps + 1,
        steps_since_snapshot=state.steps_since_snapshot + 1,
        reference=_next_reference(settings, data, state.reference, rows, slopes.derivative),
    )
    return _remember_pair(settings, state, own, slopes.curvature) if quasi_newton else state


def step_size(settings: Settings, steps: int) -> float:
    """Return the step size of own step `steps`."""
    return settings.step_size / (1.0 + steps / settings.step_decay) if settings.step_decay else settings.step_size


def longest_step(settings: Settings, own: Features, curvature: Vector, gradient: Vector, descent: Vector) -> float:
    """Return the length beyond which this block's own cost would rise along a direction, everyone else held still.

    differs from the paper: where γ_k falls short of the curvature in directions that no pair has looked at, H_k v_k
    is too long by orders of magnitude (`scale: last`). The batch's L'' are at hand, so this asks nobody.
    """
    bend = float(descent @ local_difference(own, curvature, descent, regularisation=settings.regularisation))
    return 2.0 * float(gradient @ descent) / bend if bend > 0 else np.inf


def to_arrays(state: State) -> dict[str, NDArray[np.generic]]:
    """Return the state as named arrays, for a checkpoint beside the party's own data."""
    pairs, reference = state.curvature.pairs, state.reference
    arrays: dict[str, NDArray[np.generic]] = {
        "weights": state.weights,
        "anchor": state.anchor,
        "counters": np.array(
            [state.steps, state.snapshots, state.steps_since_snapshot, state.curvature.skipped], dtype=np.int64
        ),
        "gamma": np.array(state.curvature.gamma),
        "pair_steps": np.array([pair.step for pair in pairs]).reshape(len(pairs), state.weights.size),
        "pair_damped": np.array([pair.damped for pair in pairs]).reshape(len(pairs), state.weights.size),
        "pair_rho": np.array([pair.rho for pair in pairs], dtype=np.float64),
    }
    if reference is not None:
        arrays["reference_derivatives"] = reference.derivatives
        arrays["reference_mean_gradient"] = reference.mean_gradient
    return arrays


def from_arrays(arrays: Mapping[str, NDArray[np.generic]]) -> State:
    """Return the state that `to_arrays` wrote, to the last bit."""
    values = {name: np.asarray(array, np.float64) for name, array in arrays.items() if name != "counters"}
    steps, snapshots, since, skipped = (int(count) for count in arrays["counters"])
    pairs = zip(values["pair_steps"], values["pair_damped"], values["pair_rho"], strict=True)
    memory = Curvature(tuple(Pair(s, y, float(rho)) for s, y, rho in pairs), float(values["gamma"]), skipped)
    reference = None
    if "reference_derivatives" in values:
        reference = Reference(values["reference_derivatives"], values["reference_mean_gradient"])
    return State(values["weights"], values["anchor"], steps, snapshots, since, memory, reference)


def _next_reference(
    settings: Settings, data: PartyData, reference: Reference | None, rows: Rows, derivative: Vector
) -> Reference | None:
    if settings.estimator is not Estimator.SAGA or reference is None:
        return reference
    return replace_entries(data.features, reference, rows, derivative)  # Algorithm 5, line 8


def _remember_pair(settings: Settings, state: State, own: Features, curvature: Vector) -> State:
    if state.steps % settings.pair_every:
        return state
    step = state.weights - state.anchor
    difference = local_difference(own, curvature, step, regularisation=settings.regularisation)
    memory = remember(settings.damping, state.curvature, step, difference)
    return replace(state, anchor=state.weights, curvature=memory)


def _check_slopes(settings: Settings, state: State, rows: Rows, slopes: Slopes) -> None:
    if not slopes.derivative.shape == slopes.curvature.shape == rows.shape or rows.ndim != 1 or not rows.size:
        raise BatchMismatch(
            f"{rows.shape} rows came with slopes {slopes.derivative.shape} and {slopes.curvature.shape}; "
            "ask again for the batch that `propose_batch` names"
        )
    if settings.estimator is not Estimator.SGD and state.reference is None:
        raise SnapshotMissing(
            f"{settings.estimator} needs L'(θ) of all rows first: aggregate all rows and call take_snapshot"
        )
    _refuse_explosion(slopes.derivative, settings, state, "∂L/∂θ")
    _refuse_explosion(slopes.curvature, settings, state, "∂²L/∂θ²")


def _refuse_explosion(values: Vector, settings: Settings, state: State, what: str) -> None:
    # NaN compares false, so the comparison is written to fail on it.
    if values.size and not np.max(np.abs(values)) <= settings.largest_theta:
        # The text carries no value of the data: it may cross to other parties.
        raise Diverged(
            f"step {state.steps}: {what} is not finite or beyond {settings.largest_theta:g}; standardise the features, "
            "winsorise heavy tails (±5 after z-scoring), or take a smaller step"
        )
