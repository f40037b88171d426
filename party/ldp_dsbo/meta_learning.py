"""Meta-learning under local differential privacy: the updates' ingredients and their bounds.

The task of LDP-DSBO's section 5.2, Eq. (13): an embedding x that all tasks share, and for each task q a linear head
y_q on it that all agents learn together. A record is (a, q, b) with b = ±1, h = tanh(Wᵀa) with W = x as a matrix,
m = hᵀy_q and L(m) = log(1 + e^−m):

    f = ρ·mean L(b hᵀy_q)                    on the validation records φ
    g = ρ·mean L(b hᵀy_q) + ½ μ Σ_q ‖y_q‖²   on the training records ξ

differs from the paper:
- one bounded layer instead of a network of four convolutions: every constant below follows from |h| ≤ 1, from the
  rows' norms and from the boxes, so that the ε is sound. Each task has two classes.
- the mean goes over all records, so a task counts by its share of them: with a mean for each task, one record of a
  rare task would have no bound on its weight.
- x does not start at 0, where every gradient vanishes, but at numbers that follow from the run's seed alone.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parley.numerics.streams import stream
from parley.party.ldp_dsbo.objectives import Directions, InvalidBounds, normalise_rows
from parley.privacy.ldp_accounting import Recursion

Vector = NDArray[np.float64]

_CURVATURE = 0.25  # max L'' of the logistic loss
_THIRD_DERIVATIVE = 1.0 / (6.0 * math.sqrt(3.0))  # max |L'''|
_BEND = 4.0 / (3.0 * math.sqrt(3.0))  # max |tanh''|


@dataclass(frozen=True)
class MetaBounds:
    """The shape of the problem, and what a party enforces on its records and variables."""

    features: int
    """Columns of a row a."""
    tasks: int
    """N."""
    embedding: int
    """E, the length of h."""
    row_l1: float = 1.0
    """R ≥ ‖a‖₁."""
    row_max: float = 1.0
    """κ ≥ |a_j|."""
    x_max: float = 10.0
    """|x_s| is projected to at most this."""
    y_max: float = 10.0
    """And |y_s|."""
    z_max: float = 10.0
    """And |z_s|."""
    weight_decay: float = 0.01
    """μ; makes the lower problem strongly convex."""
    loss_scale: float = 1.0
    """ρ."""
    initial: float = 1.0
    """Standard deviation of the first x."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 < value < math.inf:
                raise InvalidBounds(f"{name} = {value} must be positive and finite.")

    @property
    def x_size(self) -> int:
        """Length of x."""
        return self.features * self.embedding

    @property
    def y_size(self) -> int:
        """Length of y and of z."""
        return self.tasks * self.embedding


@dataclass(frozen=True)
class MetaRecords:
    """Feature rows, the task of each, and its label ±1 in that task."""

    features: NDArray[np.float64]
    tasks: NDArray[np.int64]
    labels: NDArray[np.float64]

    def __post_init__(self) -> None:
        if not len(self.features) == len(self.labels) == len(self.tasks):
            raise InvalidBounds("Rows, tasks and labels do not belong together: their numbers differ.")
        if not np.isin(self.labels, (-1.0, 1.0)).all():
            raise InvalidBounds("Labels must be −1 or +1.")

    def take(self, rows: NDArray[np.int64] | slice) -> "MetaRecords":
        """Return these rows."""
        return MetaRecords(self.features[rows], self.tasks[rows], self.labels[rows])


def admit(
    features: NDArray[np.floating], tasks: NDArray[np.floating], labels: NDArray[np.floating], bounds: MetaBounds
) -> MetaRecords:
    """Return records that satisfy the bounds, whatever came in; the only way in which a party makes them."""
    if not np.isfinite(features).all():
        raise InvalidBounds("A feature is NaN or infinite; repair the rows or leave them out.")
    if not np.isin(tasks, np.arange(bounds.tasks)).all():
        raise InvalidBounds(f"Tasks are whole numbers from 0 to {bounds.tasks - 1}; correct the rows or `tasks`.")
    rows = normalise_rows(features, bounds)
    return MetaRecords(rows, np.asarray(tasks, dtype=np.int64), np.asarray(labels, dtype=np.float64))


def initial_embedding(bounds: MetaBounds, seed: int) -> Vector:
    """Return the first x, the same at every agent and made from no data."""
    draw = stream(seed, "ldp.meta.initial").standard_normal(bounds.x_size) * bounds.initial
    return np.clip(draw, -bounds.x_max, bounds.x_max)


def margins(bounds: MetaBounds, records: MetaRecords, x: Vector, y: Vector) -> Vector:
    """Return hᵀy_q of each record; its sign is the predicted label."""
    return np.asarray((_embed(bounds, records, x) * _heads(bounds, y)[records.tasks]).sum(axis=1))


def directions(
    lower: MetaRecords, upper: MetaRecords, bounds: MetaBounds, x: Vector, y: Vector, z: Vector
) -> Directions:
    """Return u = ∇_x f − ∇²_xy g z, ∇_y g and H z − ∇_y f at (x, y, z); no record's term passes its bound."""
    rho, mu = bounds.loss_scale, bounds.weight_decay
    h, heads, turned = _embed(bounds, lower, x), _heads(bounds, y)[lower.tasks], _heads(bounds, z)[lower.tasks]
    slope, curve = _derivatives(lower.labels, (h * heads).sum(axis=1))
    along = (h * turned).sum(axis=1)  # hᵀz_q
    crossed = (1.0 - h * h) * ((curve * along)[:, None] * heads + slope[:, None] * turned)
    upper_h, upper_heads = _embed(bounds, upper, x), _heads(bounds, y)[upper.tasks]
    upper_slope, _ = _derivatives(upper.labels, (upper_h * upper_heads).sum(axis=1))
    direct = (1.0 - upper_h * upper_h) * upper_slope[:, None] * upper_heads
    b = rho * _by_task(bounds, upper, upper_slope[:, None] * upper_h)
    return Directions(
        x=rho
        * (upper.features.T @ direct / len(upper.labels) - lower.features.T @ crossed / len(lower.labels)).ravel(),
        y=rho * _by_task(bounds, lower, slope[:, None] * h) + mu * y,
        z=rho * _by_task(bounds, lower, (curve * along)[:, None] * h) + mu * z - b,
    )


def recursion(bounds: MetaBounds) -> Recursion:
    """Return how far one differing record (training and validation) can drive two runs apart; order x, y, z.

    With ‖Wᵀa − W'ᵀa‖₁ ≤ κ‖x − x'‖₁, |h| ≤ 1, |tanh'| ≤ 1, |tanh''| ≤ c₂, |L'| ≤ 1, |L''| ≤ c and |L'''| ≤ c₃, by
    the product rule on each record's term of `directions`.
    """
    c, c3, c2 = _CURVATURE, _THIRD_DERIVATIVE, _BEND
    E, Y, Z = float(bounds.embedding), bounds.y_max, bounds.z_max
    R, kappa, rho, mu = bounds.row_l1, bounds.row_max, bounds.loss_scale, bounds.weight_decay
    gradient = np.array([c * E * kappa * Y + kappa, c * E, 0.0])  # of L' h
    product = np.array([c3 * kappa * Y * Z * E**2 + 2 * c * E * kappa * Z, c3 * E**2 * Z, c * E])  # of L''(hᵀz)h
    direct = np.array([c * kappa * E * Y**2 + c2 * kappa * Y, c * E * Y + 1.0, 0.0])  # of L' y∘h'
    crossed = np.array(
        [
            c3 * kappa * E**2 * Y**2 * Z + 2 * c * kappa * E * Y * Z + c2 * kappa * (c * E * Y * Z + Z),
            c3 * E**2 * Y * Z + 2 * c * E * Z,
            c * E * Y + 1.0,
        ]
    )  # of h'∘(L''(hᵀz)y + L'z)
    largest_x = rho * R * (E * Y + E * (c * E * Y * Z + Z))
    largest_y, largest_product = rho * E, rho * c * E**2 * Z
    size = bounds.y_size
    return Recursion(
        data=rho * np.stack([R * (direct + crossed), gradient, product + gradient]),
        shared=np.diag([0.0, mu, mu]),
        injection=2.0 * np.array([largest_x, largest_y, largest_y + largest_product]),
        largest=np.array(
            [largest_x, largest_y + mu * size * Y, largest_y + largest_product + mu * size * Z],
        ),
    )


def project(bounds: MetaBounds, x: Vector, y: Vector, z: Vector) -> tuple[Vector, Vector, Vector]:
    """Project the three variables to their boxes; coordinate-wise, hence 1-Lipschitz in L1."""
    pairs = ((x, bounds.x_max), (y, bounds.y_max), (z, bounds.z_max))
    clipped = [np.clip(vector, -most, most) for vector, most in pairs]
    return clipped[0], clipped[1], clipped[2]


def _embed(bounds: MetaBounds, records: MetaRecords, x: Vector) -> NDArray[np.float64]:
    return np.asarray(np.tanh(records.features @ x.reshape(bounds.features, bounds.embedding)))


def _heads(bounds: MetaBounds, y: Vector) -> NDArray[np.float64]:
    return y.reshape(bounds.tasks, bounds.embedding)


def _derivatives(labels: Vector, margin: Vector) -> tuple[Vector, Vector]:
    """Return d/dm and d²/dm² of L(b m)."""
    slope = 0.5 * (1.0 - np.tanh(0.5 * labels * margin))  # −L'
    return -labels * slope, slope * (1.0 - slope)


def _by_task(bounds: MetaBounds, records: MetaRecords, terms: NDArray[np.float64]) -> Vector:
    """Return the mean over all records of each one's term at its task's place."""
    total = np.zeros((bounds.tasks, bounds.embedding))
    np.add.at(total, records.tasks, terms)
    return total.ravel() / len(records.labels)
