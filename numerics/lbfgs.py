"""Damped stochastic L-BFGS on one party's own block.

AsySQN (Zhang et al., KDD 2021), Algorithm 1, Eqs. 1 and 2.

| paper     | code                | shape | held by   | leaves? |
|-----------|---------------------|-------|-----------|---------|
| s         | `step`, `Pair.step` | (d,)  | the party | no      |
| ȳ         | `difference`        | (d,)  | the party | no      |
| ŷ         | `Pair.damped`       | (d,)  | the party | no      |
| ρ         | `Pair.rho`          | ()    | the party | no      |
| γ_k       | `Curvature.gamma`   | ()    | the party | no      |
| v_k       | `gradient`          | (d,)  | the party | no      |
| d = H v   | `direction(…)`      | (d,)  | the party | no      |
| m, δ      | `Damping`'s fields  | ()    | run spec  | public  |

differs from the paper: the stored triple is (s, ŷ, ρ), not (s, ȳ, ρ); the loops run over the p = min(m, k−1)
pairs that exist, the second with μ_{p−1−i} for the pair k−p+i; v̄_0 = u_p/γ_k; γ_k is δ where sᵀȳ ≤ 0 and
capped above.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]

NEGLIGIBLE_STEP = 1e-30
"""A pair with ‖s‖² below this carries no curvature: sᵀŷ would be lost to rounding."""


class DampingMode(StrEnum):
    """What plays H_0⁻¹ in Eqs. 1 and 2."""

    FLOOR = "floor"
    """δI: only curvature below the floor 0.3δ is lifted. The default."""
    EQ12 = "eq12"
    """γ_k I, as printed: also lifts true but small curvature, and takes about twice the rounds."""


class Scale(StrEnum):
    """Which γ makes H_0 = I/γ, the curvature assumed in directions that no stored pair covers."""

    LAST = "last"
    """γ_k of the newest pair, as printed."""
    LARGEST = "largest"
    """The largest ŷᵀŷ/sᵀŷ in memory. Near the optimum steps run along flat directions, and γ_k follows them down; a
    steep direction that has left the memory then gets a step of many times 1/curvature, and the run rebounds."""


class UnsuitableMemory(ValueError):
    """The L-BFGS settings are out of range."""


@dataclass(frozen=True)
class Damping:
    """The settings of Algorithm 1."""

    memory: int = 10
    """m, the number of pairs kept; at least 1."""
    mode: DampingMode = DampingMode.FLOOR
    """What a pair is damped towards."""
    delta: float = 0.01
    """δ > 0, the floor of γ_k and, in `floor` mode, of the curvature."""
    scale: Scale = Scale.LAST
    """Which γ is used in directions that no pair covers."""
    gamma_max: float = 1e8
    """The cap of γ_k; without one, sᵀȳ → 0 makes γ_k unbounded and the party stops moving."""

    def __post_init__(self) -> None:
        if self.memory < 1 or not 0.0 < self.delta < self.gamma_max < np.inf:
            raise UnsuitableMemory(
                f"memory={self.memory}, delta={self.delta}, gamma_max={self.gamma_max}: "
                "choose memory ≥ 1 and 0 < delta < gamma_max"
            )


@dataclass(frozen=True)
class Pair:
    """One stored curvature pair (s, ŷ, ρ = 1/sᵀŷ)."""

    step: Vector
    damped: Vector
    rho: float


@dataclass(frozen=True)
class Curvature:
    """The implicit inverse Hessian H_k."""

    pairs: tuple[Pair, ...] = ()
    """Oldest first, at most m."""
    gamma: float = 1.0
    """γ, with H_{k,0} = I/γ; γ_1 = 1."""
    skipped: int = 0
    """How many pairs were too short, or not finite, and were left out."""


def initial_scale(damping: Damping, step: Vector, difference: Vector) -> float:
    """Return γ_k = max(ȳᵀȳ / sᵀȳ, δ), capped, and δ where sᵀȳ ≤ 0."""
    curvature = float(step @ difference)
    if curvature <= 0.0:  # differs from the paper: the quotient is undefined at 0 and negative below
        return damping.delta
    with np.errstate(over="ignore"):
        quotient = float(difference @ difference) / curvature
    return min(max(quotient, damping.delta), damping.gamma_max)


def damp(step: Vector, difference: Vector, *, floor: float) -> Vector:
    """Return ŷ = θȳ + (1−θ)·floor·s with sᵀŷ ≥ 0.3·floor·sᵀs (Eqs. 1 and 2)."""
    sigma = floor * float(step @ step)
    curvature = float(step @ difference)
    if curvature >= 0.3 * sigma:
        return difference
    theta = 0.7 * sigma / (sigma - curvature)
    return theta * difference + (1.0 - theta) * floor * step


def remember(damping: Damping, memory: Curvature, step: Vector, difference: Vector) -> Curvature:
    """Add the pair (s, ȳ), damped, and drop the oldest beyond m; a pair without information is skipped."""
    length = float(step @ step)
    if not (NEGLIGIBLE_STEP <= length < np.inf and np.isfinite(difference).all()):
        return replace(memory, skipped=memory.skipped + 1)
    gamma = initial_scale(damping, step, difference)
    floor = damping.delta if damping.mode is DampingMode.FLOOR else gamma
    damped = damp(step, difference, floor=floor)
    pair = Pair(step, damped, 1.0 / float(step @ damped))
    pairs = (*memory.pairs, pair)[-damping.memory :]
    if damping.scale is Scale.LARGEST:
        seen = max(float(kept.damped @ kept.damped) * kept.rho for kept in pairs)
        gamma = min(max(gamma, seen), damping.gamma_max)
    return replace(memory, pairs=pairs, gamma=gamma)


def direction(memory: Curvature, gradient: Vector) -> Vector:
    """Return H_k v_k by the two-loop recursion; H_k is positive definite, so −H_k v_k descends."""
    u = gradient
    mu: list[float] = []
    for pair in reversed(memory.pairs):  # i = 0 … p−1, newest first
        mu.append(pair.rho * float(u @ pair.step))
        u = u - mu[-1] * pair.damped
    v_bar = u / memory.gamma
    for pair, mu_i in zip(memory.pairs, reversed(mu), strict=True):  # oldest first, with μ_{p−1−i}
        nu = pair.rho * float(v_bar @ pair.damped)
        v_bar = v_bar + (mu_i - nu) * pair.step
    return v_bar
