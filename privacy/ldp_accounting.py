"""What an agent of LDP-DSBO spends: sensitivities by iteration, losses by noise.

Z. Chen and Y. Wang, "Locally Differentially Private Decentralized Stochastic Bilevel Optimization with Guaranteed
Convergence Accuracy" (LDP-DSBO), section 4.2 and appendix F.

| paper              | code                     | meaning |
|--------------------|--------------------------|---------|
| Δ_{i,t,x/y/z}      | `sensitivities`          | L1 distance of two runs of agent i that differ in one record |
| λ_{x/y/z,t}, v     | `Schedules` of `Decay`   | step sizes λ₀/(t+1)^v |
| ν_{i,t}, σ, ς      | `Schedules` of `Decay`   | Laplace scales (σ/√2)/(t+1)^ς |
| w_ii               | `self_weight`            | −Σ_j w_ij, between −1 and 0 |
| c_h0, c_l0, c_l1, c_z, L_h1, L_l1, L_l2 | `Constants` | bounds that the party enforces |

differs from the paper: the closed form of Theorem 4.5 is wrong (it loses Lemma 11's factor, the step size times the
gradient bounds, and prints ln(4/(2−2w̄)) for ln(4/(4−w̄))); two coupled runs in the paper's own setting lose more than it
allows. Here the recursions (171), (176) and (178) are iterated before training, each update's difference capped
by 2·sup‖update‖₁, and Σ_t Δ_t/ν_t is the budget. The 1/(t+1) in them exists only with the true history average;
mini-batches are another oracle, whose ε grows with T.

Neighbours differ in one unit: with `unit_weight` = 1 all that an agent acquires in one step (the paper's ξ_{i,t}
and φ_{i,t}), with 1/B one of the B records of a step.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

VACUOUS_EPSILON = 100.0
"""Above this, an ε says nothing: the accountant calls it vacuous."""

_ORDERS = np.concatenate([np.linspace(1.05, 10.0, 180), np.arange(11.0, 64.0), 2.0 ** np.arange(6, 12)])


class AccountingError(ValueError):
    """No privacy statement can be made for these settings."""


class NoiseDecaysTooFast(AccountingError):
    """A noise rate ς is not below its step size's rate v, so that the budget has no bound (Assumption 3.1)."""


class InvalidConstants(AccountingError):
    """A bound or weight is not a number for which the recursions hold."""


class Oracle(StrEnum):
    """What an agent's gradients average over."""

    HISTORY = "history"
    """All data acquired so far, at the current point (the paper's g_{i,t})."""
    MINIBATCH = "minibatch"
    """The rows of this step alone; a unit may be drawn again at every step."""


@dataclass(frozen=True)
class Decay:
    """initial/(t+1)^rate."""

    initial: float
    rate: float

    def at(self, t: int) -> float:
        """Return the value at step t = 0, 1, …"""
        return float(self.initial * (t + 1.0) ** -self.rate)


@dataclass(frozen=True)
class Schedules:
    """One decay for each of the three variables."""

    x: Decay
    y: Decay
    z: Decay

    def at(self, t: int) -> NDArray[np.float64]:
        """Return the values at step t in the order x, y, z."""
        return np.array([self.x.at(t), self.y.at(t), self.z.at(t)])

    @property
    def rates(self) -> NDArray[np.float64]:
        """The three rates in the order x, y, z."""
        return np.array([self.x.rate, self.y.rate, self.z.rate])


def laplace_scales(sigma: float, x_rate: float, y_rate: float, z_rate: float) -> Schedules:
    """Return ν_t = (σ/√2)/(t+1)^ς for the three variables (Assumption 3.1)."""
    scale = sigma / math.sqrt(2.0)
    return Schedules(Decay(scale, x_rate), Decay(scale, y_rate), Decay(scale, z_rate))


@dataclass(frozen=True)
class Recursion:
    """Δ_{t+1} = |1 + w_ii| Δ_t + λ_t ∘ min((1−a_t) data·Δ_t + shared·Δ_t + a_t injection, 2 largest).

    a_t is the weight of the differing unit in the average of step t. Vectors are in the order x, y, z. A party may
    build one from its problem's structure where that is tighter than the paper's constants.
    """

    data: NDArray[np.float64]
    """3×3: Lipschitz constants of the per-unit updates, which the differing unit does not take part in."""
    shared: NDArray[np.float64]
    """3×3: Lipschitz constants of everything that holds for all units (regulariser, products with z)."""
    injection: NDArray[np.float64]
    """Largest difference of two units' updates at the same step."""
    largest: NDArray[np.float64]
    """sup‖update‖₁, whatever the data."""


@dataclass(frozen=True)
class Constants:
    """The paper's constants, in L1 norms and per unit; a party enforces them by clipping and projecting."""

    upper_gradient: float
    """c_h0 ≥ ‖∇h‖₁."""
    lower_gradient: float
    """c_l0 ≥ ‖∇_y l‖₁."""
    upper_lipschitz: float
    """L_h1, of ∇h."""
    lower_lipschitz: float
    """L_l1, of ∇l; also bounds ‖∇²_xy l‖₁."""
    curvature_lipschitz: float
    """L_l2, of ∇²l."""
    curvature: float
    """c_l1 ≥ ‖∇²_yy l‖₁."""
    z_norm: float
    """c_z ≥ ‖z‖₁, by projection."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 <= value < math.inf:
                raise InvalidConstants(f"The constant {name} = {value} must be finite and not negative.")

    def recursion(self) -> Recursion:
        """Return (176), (171) and (178) in the order x, y, z."""
        mixed = self.upper_lipschitz + self.z_norm * self.curvature_lipschitz
        product = self.upper_gradient + self.z_norm * self.lower_lipschitz
        return Recursion(
            data=np.array([[mixed, mixed, 0.0], [self.lower_lipschitz] * 2 + [0.0], [mixed, mixed, 0.0]]),
            shared=np.array([[0.0, 0.0, self.lower_lipschitz], [0.0] * 3, [0.0, 0.0, self.curvature]]),
            injection=2.0 * np.array([product, self.lower_gradient, product]),
            largest=np.array([product, self.lower_gradient, product]),
        )


@dataclass(frozen=True)
class LdpPlan:
    """Everything that decides what an agent spends; known, and accounted for, before training."""

    recursion: Recursion
    """How a difference grows."""
    step_sizes: Schedules
    """λ_t."""
    noise_scales: Schedules
    """ν_t of this agent."""
    self_weight: float
    """w_ii, in [−1, 0)."""
    oracle: Oracle = Oracle.HISTORY
    """What gradients average over."""
    unit_weight: float = 1.0
    """Share of the protected unit in what one step acquires: 1, or 1/B for one of B records."""

    def __post_init__(self) -> None:
        if not -1.0 <= self.self_weight < 0.0:
            raise InvalidConstants(f"w_ii = {self.self_weight} must lie in [−1, 0): it is −Σ_j w_ij.")
        if not 0.0 < self.unit_weight <= 1.0:
            raise InvalidConstants(f"A unit's weight of {self.unit_weight} must lie in (0, 1].")
        late = self.noise_scales.rates >= self.step_sizes.rates
        if late.any():
            name = "xyz"[int(np.argmax(late))]
            raise NoiseDecaysTooFast(
                f"The noise on {name} decays with rate {self.noise_scales.rates[late][0]}, its step size with "
                f"{self.step_sizes.rates[late][0]}: ς must be smaller than v, or the budget has no bound."
            )


def unmet_rates(step_sizes: Schedules, noise_scales: Schedules) -> list[str]:
    """The conditions of Theorem 4.1 (iii), the case of a nonconvex upper problem, that a run's rates do not meet.

    Without them the paper promises no convergence; privacy does not depend on them.
    """
    vx, vy, vz = (float(rate) for rate in step_sizes.rates)
    sx, sy, sz = (float(rate) for rate in noise_scales.rates)
    conditions = {
        "0 < v_z < v_y < v_x < 1": 0 < vz < vy < vx < 1,
        "ς_x > 1/2": sx > 0.5,
        "2ς_x > v_z + v_y": 2 * sx > vz + vy,
        "2ς_x > 2v_z + 1 − v_x": 2 * sx > 2 * vz + 1 - vx,
        "2ς_y > v_z + v_y": 2 * sy > vz + vy,
        "2ς_y > 2v_z + 1 − v_x": 2 * sy > 2 * vz + 1 - vx,
        "2ς_y > v_y + 1 − v_x": 2 * sy > vy + 1 - vx,
        "2ς_z > v_z + 1 − v_x": 2 * sz > vz + 1 - vx,
        "2ς_z > v_y": 2 * sz > vy,
    }
    return [condition for condition, holds in conditions.items() if not holds]


@dataclass(frozen=True)
class Guarantee:
    """What one agent spends over a run."""

    epsilon: float
    """Pure ε: Σ_t Δ_t/ν_t."""
    approximate_epsilon: float
    """ε at `delta`, by Rényi composition of the same releases."""
    delta: float

    @property
    def vacuous(self) -> bool:
        """Whether ε is too large to say anything."""
        return not self.epsilon <= VACUOUS_EPSILON

    def __str__(self) -> str:
        if self.vacuous:
            return f"vacuous (ε > {VACUOUS_EPSILON:g})"
        return f"ε = {self.epsilon:.3g}; (ε, {self.delta:g}) = {self.approximate_epsilon:.3g}"


def sensitivities(
    plan: LdpPlan, iterations: int, participation: NDArray[np.bool_] | None = None
) -> NDArray[np.float64]:
    """Return Δ_t for t = 1 … iterations (rows) and x, y, z (columns).

    `participation[t]` says whether the unit is in the mini-batch of step t; by default it is in all of them. With
    the history oracle the unit that came first costs most, and is the one accounted for.
    """
    if participation is not None and len(participation) < iterations:
        raise InvalidConstants(
            f"Participation is known for {len(participation)} steps of {iterations}: give all of them."
        )
    keep = abs(1.0 + plan.self_weight)
    rule = plan.recursion
    delta = np.zeros(3)
    listed = np.empty((iterations, 3))
    for t in range(iterations):
        weight = plan.unit_weight
        if plan.oracle is Oracle.HISTORY:
            weight /= t + 1.0
        elif participation is not None and not participation[t]:
            weight = 0.0
        change = (1.0 - weight) * (rule.data @ delta) + rule.shared @ delta + weight * rule.injection
        delta = keep * delta + plan.step_sizes.at(t) * np.minimum(change, 2.0 * rule.largest)
        listed[t] = delta
    return listed


def losses(plan: LdpPlan, iterations: int, participation: NDArray[np.bool_] | None = None) -> NDArray[np.float64]:
    """Return the ε of each release, Δ_t/ν_t, for t = 1 … iterations (rows) and x, y, z (columns).

    The release of t = 0 costs nothing: the starting point does not depend on data.
    """
    scales = np.stack([plan.noise_scales.at(t) for t in range(1, iterations + 1)])
    return sensitivities(plan, iterations, participation) / scales


def guarantee(
    plan: LdpPlan,
    iterations: int,
    *,
    delta: float = 1e-6,
    participation: NDArray[np.bool_] | None = None,
) -> Guarantee:
    """Return what an agent that releases its state after each of `iterations` updates spends."""
    each = losses(plan, iterations, participation)
    return Guarantee(float(each.sum()), renyi_epsilon(each, delta), delta)


def renyi_epsilon(each: NDArray[np.float64], delta: float) -> float:
    """Return ε at `delta` of independent Laplace releases with these L1 losses Δ/ν, by Rényi composition.

    A vector of loss a costs no more than one coordinate of loss a: the Rényi divergence of Laplace noise is convex
    in a and 0 at 0, hence superadditive over coordinates.
    """
    a = np.asarray(each, dtype=np.float64).reshape(-1)
    a = a[a > 0]
    if a.sum() > VACUOUS_EPSILON:
        return float(a.sum())  # nothing is to be gained, and exponentials of it would overflow
    from dp_accounting.rdp import compute_epsilon  # a second to import, and most processes never ask

    totals = [_laplace_renyi(float(order), a) for order in _ORDERS]
    epsilon, _ = compute_epsilon(_ORDERS, np.array(totals), delta)
    return float(min(epsilon, a.sum()))


def _laplace_renyi(order: float, a: NDArray[np.float64]) -> float:
    # Mironov (2017), Table II: D_α = log(α/(2α−1) e^{(α−1)a} + (α−1)/(2α−1) e^{−αa})/(α−1).
    high = np.log(order / (2.0 * order - 1.0)) + (order - 1.0) * a
    low = np.log((order - 1.0) / (2.0 * order - 1.0)) - order * a
    return float(np.maximum(np.logaddexp(high, low), 0.0).sum() / (order - 1.0))
