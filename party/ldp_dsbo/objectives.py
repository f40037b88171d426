"""Hyper-parameter optimisation under local differential privacy: the updates' ingredients and their bounds.

The task of LDP-DSBO's section 5.1: logistic regression ω (the lower variable y) with one log-regularisation
coefficient per coordinate λ (the upper variable x). A record is (a, b) with b = ±1, L(m) = log(1 + e^−m):

    h = ρ·mean L(b aᵀω)                      on the validation records φ
    l = ρ·mean L(b aᵀω) + ½ Σ_s e^{λ_s} ω_s²  on the training records ξ

ρ is `Bounds.loss_scale`: 1, or the number of records per step where the loss is a sum over them (the printed step
sizes need the sum).

The bounds are enforced, not assumed: rows are clipped coordinate-wise and scaled to an L1 norm when the party loads
them (`admit`), every per-record gradient is clipped coordinate-wise (which, unlike scaling by the norm, is
1-Lipschitz in L1), and the variables are projected to boxes. `recursion` turns the bounds into the sensitivity
recursion that parley.privacy.ldp_accounting iterates.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from parley.privacy.ldp_accounting import Recursion

Vector = NDArray[np.float64]

_THIRD_DERIVATIVE = 1.0 / (6.0 * math.sqrt(3.0))  # max |L'''| of the logistic loss
_CURVATURE = 0.25  # max L''


class InvalidBounds(ValueError):
    """The bounds leave no room for a variable or a record."""


@dataclass(frozen=True)
class Bounds:
    """What a party enforces on its records and variables."""

    row_l1: float = math.inf
    """R ≥ ‖a‖₁."""
    row_max: float = math.inf
    """κ ≥ |a_j|; also the coordinate-wise clip of per-record gradients."""
    x_low: float = -20.0
    """λ_s is projected to [x_low, x_high]; e^λ must stay finite."""
    x_high: float = 20.0
    """See `x_low`."""
    y_max: float = 1e3
    """|ω_s| is projected to at most this."""
    z_max: float = 1e3
    """|z_s| is projected to at most this."""
    loss_scale: float = 1.0
    """ρ."""
    initial: float = 0.0
    """Every λ_s before the first step; the first update brings it into its box."""

    def __post_init__(self) -> None:
        if not math.isfinite(self.initial):
            raise InvalidBounds(f"initial = {self.initial} must be finite.")
        if not self.x_low < self.x_high < 700.0:
            raise InvalidBounds(f"λ in [{self.x_low}, {self.x_high}]: low < high, and e^high must be finite.")
        for name in ("row_l1", "row_max", "y_max", "z_max", "loss_scale"):
            if not getattr(self, name) > 0:
                raise InvalidBounds(f"{name} = {getattr(self, name)} must be positive.")


@dataclass(frozen=True)
class Records:
    """Feature rows and their labels ±1."""

    features: NDArray[np.float64]
    labels: NDArray[np.float64]

    def __post_init__(self) -> None:
        if len(self.features) != len(self.labels):
            raise InvalidBounds(f"{len(self.features)} rows and {len(self.labels)} labels do not belong together.")
        if not np.isin(self.labels, (-1.0, 1.0)).all():
            raise InvalidBounds("Labels must be −1 or +1: take the sign of a regression target.")

    def take(self, rows: NDArray[np.int64] | slice) -> "Records":
        """Return these rows."""
        return Records(self.features[rows], self.labels[rows])


@dataclass(frozen=True)
class Directions:
    """The three update directions at one point."""

    x: Vector
    """u of Eq. (9)."""
    y: Vector
    """∇_y g."""
    z: Vector
    """∇_z φ = H z − b of Algorithm 1."""


class RowBounds(Protocol):
    """What `normalise_rows` goes by."""

    @property
    def row_l1(self) -> float:
        """R."""

    @property
    def row_max(self) -> float:
        """κ."""


def normalise_rows(features: NDArray[np.floating], bounds: RowBounds) -> NDArray[np.float64]:
    """Clip each coordinate to κ and scale each row to an L1 norm of at most R."""
    clipped = np.clip(np.asarray(features, dtype=np.float64), -bounds.row_max, bounds.row_max)
    norms = np.abs(clipped).sum(axis=1, keepdims=True)
    shrink = np.minimum(1.0, bounds.row_l1 / np.maximum(norms, np.finfo(np.float64).tiny))
    return np.asarray(clipped * shrink, dtype=np.float64)


def admit(features: NDArray[np.floating], labels: NDArray[np.floating], bounds: Bounds) -> Records:
    """Return records that satisfy the bounds, whatever came in; the only way in which a party makes them."""
    if not np.isfinite(features).all():
        raise InvalidBounds("A feature is NaN or infinite; repair the rows or leave them out.")
    return Records(normalise_rows(features, bounds), np.asarray(labels, dtype=np.float64))


def directions(lower: Records, upper: Records, bounds: Bounds, x: Vector, y: Vector, z: Vector) -> Directions:
    """Return u, ∇_y g and H z − b at (x, y, z), from per-record terms that are clipped coordinate-wise."""
    rho, kappa, exp_x = bounds.loss_scale, bounds.row_max, np.exp(x)
    slope = _sigmoid(-lower.labels * (lower.features @ y))  # −L'
    gradient = -_mean_clipped(lower.labels * slope, lower.features, 1.0, kappa)
    weight = slope * (1.0 - slope) * (lower.features @ z)  # L''·aᵀz
    product = _mean_clipped(weight, lower.features, _product_bound(bounds), kappa)
    upper_slope = _sigmoid(-upper.labels * (upper.features @ y))
    b = -rho * _mean_clipped(upper.labels * upper_slope, upper.features, 1.0, kappa)
    return Directions(
        x=-exp_x * y * z,  # ∇_x h = 0, and ∇²_xy l = diag(e^λ ω) holds no data
        y=rho * gradient + exp_x * y,
        z=rho * product + exp_x * z - b,
    )


def recursion(bounds: Bounds, size: int) -> Recursion:
    """Return how far one differing record (training and validation) can drive two runs apart.

    Tighter than the paper's constants because the problem's structure is used: the regulariser holds no data, and
    the upper update holds none at all. Order x, y, z.
    """
    require_row_bounds(bounds)
    R, kappa, rho = bounds.row_l1, bounds.row_max, bounds.loss_scale
    E, ymax, zmax = math.exp(bounds.x_high), bounds.y_max, bounds.z_max
    hessian = rho * _CURVATURE * kappa * R  # L1 → L1 norm of ρ L'' a aᵀ
    turning = rho * _THIRD_DERIVATIVE * R * zmax * kappa * R  # how fast (ρ L'' a aᵀ) z turns with y
    gradient = rho * R  # ‖ρ L' a‖₁
    product = rho * _product_bound(bounds) * R  # ‖ρ L'' (aᵀz) a‖₁
    return Recursion(
        data=np.array([[0.0, 0.0, 0.0], [0.0, hessian, 0.0], [0.0, turning + hessian, hessian]]),
        shared=np.array([[E * ymax * zmax, E * zmax, E * ymax], [E * ymax, E, 0.0], [E * zmax, 0.0, E]]),
        injection=2.0 * np.array([0.0, gradient, gradient + product]),
        largest=np.array([E * size * ymax * zmax, gradient + E * size * ymax, gradient + product + E * size * zmax]),
    )


def require_row_bounds(bounds: Bounds) -> None:
    """Refuse to account for rows that may be anything."""
    if math.isinf(bounds.row_l1) or math.isinf(bounds.row_max):
        raise InvalidBounds("Rows without a declared row_l1 and row_max have no sensitivity: declare and enforce both.")


def project(bounds: Bounds, x: Vector, y: Vector, z: Vector) -> tuple[Vector, Vector, Vector]:
    """Project the three variables to their boxes; coordinate-wise, hence 1-Lipschitz in L1."""
    return (
        np.clip(x, bounds.x_low, bounds.x_high),
        np.clip(y, -bounds.y_max, bounds.y_max),
        np.clip(z, -bounds.z_max, bounds.z_max),
    )


def _product_bound(bounds: Bounds) -> float:
    return _CURVATURE * bounds.row_l1 * bounds.z_max  # |L''·aᵀz|


def _mean_clipped(coefficients: Vector, features: NDArray[np.float64], largest: float, row_max: float) -> Vector:
    """Return the mean over records of clip(coefficient·a, ±largest·κ), for rows with |a_j| ≤ κ."""
    if np.abs(coefficients).max(initial=0.0) <= largest:
        return np.asarray(coefficients @ features / len(features))  # then no coordinate reaches the clip
    limit = largest * row_max
    return np.asarray(np.clip(coefficients[:, None] * features, -limit, limit).mean(axis=0))


def _sigmoid(m: Vector) -> Vector:
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * m)))
