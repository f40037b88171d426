"""Stochastic gradient push (SGP) and hyper-gradient push (HGP): what one party does at each step.

N. Terashita and S. Hara, "Decentralized Hyper-Gradient Computation over Time-Varying Directed Networks":
Algorithm 1 (Push-Sum), Algorithm 2 (HGP), and SGP of Assran et al. for the inner problem.

| paper          | code                              | shape | held by | leaves? |
|----------------|-----------------------------------|-------|---------|---------|
| x_i            | `estimate(TrainingState.mass)`    | d_x   | party i | as Push-Sum portions |
| λ_i            | `hyper`                           | d_λ   | party i | no      |
| u_i            | `HyperGradientState.mass`         | d_x   | party i | as Push-Sum portions |
| v_i            | `HyperGradientState.v`            | d_λ   | party i | no      |
| M, S, η        | `Hgp.rounds`, `.push_steps`, `.step_size` | | everyone | public |

A step is (state, portions that came in) → (state, portions that go out): `train_step` and `hyper_gradient_step`.
Each absorbs the portions of the step before, does the local mathematics that is due, and splits. A party never
sees another party's rows, λ or v; it does see portions of other parties' Push-Sum vectors.

differs from the paper:
- u⁽⁰⁾ = ∂_x f_i without a factor η (Eq. 8 prints one, which would scale the answer by η); then v_i tends to the
  derivative of the *sum* Σ_k f_k with respect to λ_i.
- stability needs η < 2/λ_max of the mean Hessian; α < 1/η of Theorem 1 does not give it.
- `track` (ours, for small S) carries numerator and weight on, z_i ← z_i − η H_i y_i, where `reinit` (the paper)
  restarts Push-Sum at every round. The paper's third way, a kept weight with a restarted numerator, diverges and
  is not offered.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from parley.numerics.bilevel_costs import (
    BilevelCost,
    Rows,
    Vector,
    curvature_products,
    hessian_product,
    inner_gradient,
    jacobian_product,
    outer_gradients,
)
from parley.numerics.optimisers import Moments, Optimiser, descend
from parley.numerics.push_sum import Mass, estimate, gather, initial_mass, split
from parley.numerics.streams import batch

Portions = Mapping[int, Mass]
"""By receiver when they leave, by sender when they arrive."""


class InvalidHgp(ValueError):
    """The settings describe no hyper-gradient computation."""


class StepMismatch(ValueError):
    """Portions arrived for another step, or from another set of senders, than this party is at."""


LARGEST_GROWTH = 1e6
"""Terms of a convergent Neumann series shrink; the longest may be this many times as long as the first."""
LARGEST_WEIGHT = 1e8
"""A coordinate of the model beyond this means that the inner problem diverged."""


class Diverged(ArithmeticError):
    """SGP or the hyper-gradient's fixed-point iteration left the range in which its numbers mean anything."""


class Form(StrEnum):
    """How Push-Sum goes on from one round of HGP to the next."""

    REINIT = "reinit"
    """The paper: restart from u_i with weight 1."""
    TRACK = "track"
    """Carry (z, ω) on; recommended for small S."""


@dataclass(frozen=True)
class Hgp:
    """The settings of one hyper-gradient computation; the same at every party."""

    rounds: int
    """M, the order of the Neumann series; at least 1."""
    push_steps: int
    """S, the Push-Sum steps per round; at least 1."""
    step_size: float
    """η; must stay below 2/λ_max of the mean Hessian."""
    form: Form = Form.REINIT
    """How Push-Sum goes on from round to round."""
    batch_size: int | None = None
    """Training rows per product; None for all rows."""
    seed: int = 0
    """Seed of the batches."""

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.push_steps < 1:
            raise InvalidHgp(f"M = {self.rounds} and S = {self.push_steps} must both be at least 1.")
        if not self.step_size > 0:
            raise InvalidHgp(f"A step size of {self.step_size} must be positive, and below 2/λ_max.")
        if self.batch_size is not None and self.batch_size < 1:
            raise InvalidHgp(f"A batch of {self.batch_size} rows: at least 1, or all of them (None).")

    @property
    def steps(self) -> int:
        """Messages that one party sends along an edge that is always there: M·S."""
        return self.rounds * self.push_steps


@dataclass(frozen=True)
class Training:
    """The settings of the inner problem's SGP; the same at every party."""

    steps: int
    """Push-Sum steps; at least 1."""
    learning_rate: float
    """Of the first steps."""
    milestones: tuple[int, ...] = ()
    """Gradient steps at which the learning rate is multiplied by `decay`."""
    decay: float = 0.1
    """See `milestones`."""
    batch_size: int | None = None
    """Training rows per gradient; None for all rows."""
    seed: int = 0
    """Seed of the batches."""
    push_steps: int = 1
    """Push-Sum steps for each gradient step; 1 is SGP, many come close to gradient descent on the average cost."""

    def rate(self, step: int) -> float:
        """Return the learning rate of gradient step `step`."""
        return self.learning_rate * self.decay ** sum(step >= milestone for milestone in self.milestones)


@dataclass(frozen=True)
class TrainingState:
    """One party between two steps of SGP."""

    mass: Mass
    """What the party holds: all of it before the first step, afterwards what it kept back."""
    step: int = 0
    """Steps begun."""
    disagreement: float = 0.0
    """After the last step: the largest distance of a neighbour's estimate from this party's, relative to it."""


@dataclass(frozen=True)
class HyperGradientState:
    """One party between two steps of HGP."""

    v: Vector
    """v_i: tends to d/dλ_i Σ_k f_k."""
    mass: Mass
    """The Push-Sum pair of u_i: what the party kept back at the last step."""
    step: int = 0
    """Push-Sum steps begun; round m ends after m·S of them."""
    apart: float = 0.0
    """Distances of neighbours' estimates from ū_i at the ends of rounds, the largest of each, added up."""
    length: float = 0.0
    """‖ū_i‖ at the ends of rounds, added up."""
    first: float = 0.0
    """‖u⁽⁰⁾‖."""

    @property
    def disagreement(self) -> float:
        """How far the parties' Neumann series are apart; v is exact only where they agree."""
        return self.apart / self.length if self.length else 0.0


def begin_training(x: Vector) -> TrainingState:
    """Return the state of a party that starts SGP at x."""
    return TrainingState(initial_mass(x))


def train_step(
    cost: BilevelCost,
    settings: Training,
    hyper: Vector,
    member: int,
    state: TrainingState,
    incoming: Portions,
    receivers: tuple[int, ...],
    shares: Mapping[int, float] | None = None,
) -> tuple[TrainingState, dict[int, Mass]]:
    """Party: absorb, take the local gradient step that is due at y = z/ω, and split; after the last only absorb."""
    mass = gather(state.mass, [incoming[sender] for sender in sorted(incoming)])
    if state.step >= settings.steps:
        apart, length = spread(mass, incoming)
        disagreement = apart / length if length else 0.0
        return replace(state, mass=mass, disagreement=disagreement), {}
    taken, between = divmod(state.step, settings.push_steps)
    if not between:
        rows = _batch(cost, settings.batch_size, settings.seed, f"sgp.batch.{member}", 0, taken)
        gradient = inner_gradient(cost, _cast(estimate(mass), hyper), hyper, rows)
        mass = Mass(mass.z - settings.rate(taken) * gradient, mass.weight)
        if not np.abs(mass.z).max(initial=0.0) <= LARGEST_WEIGHT * max(mass.weight, 1.0):  # false for NaN too
            raise Diverged(
                f"the inner problem diverged at gradient step {taken}: the learning rate {settings.rate(taken):g} is "
                "too large for these features. Lower train.inner.learning_rate, or standardise the features"
            )
    kept, portions = split(mass, receivers, shares)
    return TrainingState(kept, state.step + 1), portions


def begin_hyper_gradient(cost: BilevelCost, x: Vector, hyper: Vector) -> HyperGradientState:
    """Return u⁽⁰⁾ = ∂_x f_i and v⁽⁰⁾ = ∂_λ f_i (Algorithm 2, first line)."""
    # differs from the paper: Eq. (8) prints η ∂_x f.
    by_point, by_hyper = outer_gradients(cost, x, hyper)
    first = float(np.linalg.norm(by_point.astype(np.float64)))
    return HyperGradientState(v=by_hyper, mass=initial_mass(by_point), first=first)


def hyper_gradient_step(
    cost: BilevelCost,
    settings: Hgp,
    x: Vector,
    hyper: Vector,
    member: int,
    state: HyperGradientState,
    incoming: Portions,
    receivers: tuple[int, ...],
    shares: Mapping[int, float] | None = None,
) -> tuple[HyperGradientState, dict[int, Mass]]:
    """Party: absorb one Push-Sum step, end the round if S steps are done, and split for the next step.

    Called M·S + 1 times; the last call only absorbs and ends the last round.
    """
    if state.step == 0 and incoming:
        raise StepMismatch("Portions arrived before the first step of a hyper-gradient was taken.")
    state = replace(state, mass=gather(state.mass, [incoming[sender] for sender in sorted(incoming)]))
    if state.step > 0 and state.step % settings.push_steps == 0:
        apart, length = spread(state.mass, incoming)
        state = replace(state, apart=state.apart + apart, length=state.length + length)
        state = _end_round(cost, settings, x, hyper, member, state)
    if state.step >= settings.steps:
        return state, {}
    kept, portions = split(state.mass, receivers, shares)
    return replace(state, mass=kept, step=state.step + 1), portions


def spread(mass: Mass, incoming: Portions) -> tuple[float, float]:
    """Return the largest distance of a neighbour's estimate from this party's own, and the length of its own."""
    own = estimate(mass)
    apart = [float(np.linalg.norm(estimate(portion) - own)) for portion in incoming.values()]
    return max(apart, default=0.0), float(np.linalg.norm(own))


def outer_step(
    hyper: Vector, v: Vector, moments: Moments[Vector], optimiser: Optimiser, lowest: float = -np.inf
) -> tuple[Vector, Moments[Vector]]:
    """Party: one projected step on its own λ_i, whose gradient of Σ_k f_k is v_i.

    `lowest` keeps a regularisation coefficient from leaving the range in which the inner problem is convex.
    """
    moved, moments = descend(hyper, v, moments, optimiser, k=1, steps=1)
    return np.maximum(moved, lowest).astype(hyper.dtype, copy=False), moments


def _end_round(
    cost: BilevelCost, settings: Hgp, x: Vector, hyper: Vector, member: int, state: HyperGradientState
) -> HyperGradientState:
    m = state.step // settings.push_steps
    eta = settings.step_size
    u_bar = _cast(estimate(state.mass), hyper)
    hessian, jacobian = _products(cost, settings, x, hyper, member, m, u_bar)
    v = state.v - eta * jacobian  # Eq. (10), left
    if settings.form is Form.TRACK:
        mass = Mass(state.mass.z - eta * hessian, state.mass.weight)
    else:
        mass = initial_mass(u_bar - eta * hessian)  # Eq. (10), right
    grown = float(np.linalg.norm(u_bar)) > LARGEST_GROWTH * max(state.first, 1.0)
    if grown or not (np.isfinite(v).all() and np.isfinite(mass.z).all()):
        raise Diverged(
            f"the hyper-gradient's series grows instead of shrinking, in round {m}: η = {eta:g} is above 2/λ_max of "
            "the mean Hessian. Lower it (train.hyper.step_size), or standardise the features"
        )
    return replace(state, v=v, mass=mass)


def _products(
    cost: BilevelCost, settings: Hgp, x: Vector, hyper: Vector, member: int, m: int, u_bar: Vector
) -> tuple[Vector, Vector]:
    if settings.batch_size is None or settings.batch_size >= cost.rows:
        return curvature_products(cost, x, hyper, u_bar)
    # Independent samples for the two products, as Algorithm 2 and the martingale of its proof want them.
    for_hessian = _batch(cost, settings.batch_size, settings.seed, f"hgp.hessian.{member}", 0, m)
    for_jacobian = _batch(cost, settings.batch_size, settings.seed, f"hgp.jacobian.{member}", 0, m)
    return (
        hessian_product(cost, x, hyper, u_bar, for_hessian),
        jacobian_product(cost, x, hyper, u_bar, for_jacobian),
    )


def _batch(cost: BilevelCost, size: int | None, seed: int, name: str, k: int, t: int) -> Rows:
    return None if size is None or size >= cost.rows else batch(seed, name, k, t, cost.rows, size)


def _cast(vector: Vector, like: Vector) -> Vector:
    # Push-Sum runs in float64; a model in float32 must not be promoted by it.
    return vector.astype(like.dtype, copy=False)
