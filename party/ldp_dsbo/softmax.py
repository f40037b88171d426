"""Hyper-parameter optimisation with more than two classes under local differential privacy, and its bounds.

The task on MNIST of LDP-DSBO's section 5.1: softmax regression ω (the lower variable y, one row for each class) with
one log-regularisation coefficient λ_s for each column s (the upper variable x). A record is (a, b) with a class b,
L(m, b) = log Σ_r e^{m_r} − m_b:

    h = ρ·mean L(ωa, b)                              on the validation records φ
    l = ρ·mean L(ωa, b) + ½ Σ_r Σ_s e^{λ_s} ω_rs²    on the training records ξ

differs from the paper: the regulariser has its square, and the printed factor 1/(c·p) is part of λ: the paper's λ is
ours − log(2/(c·p)), so a run that begins with λ = log(2/(c·p)) begins where the paper's does.

Nothing needs to be clipped: with rows of bounded norm and variables in their boxes every record's term is bounded by
how it is made. `recursion` says by what.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parley.party.ldp_dsbo.objectives import Bounds, Directions, InvalidBounds, normalise_rows, require_row_bounds
from parley.privacy.ldp_accounting import Recursion

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

_CURVATURE = 0.5  # L1 → L1 norm of diag(p) − p pᵀ: 2 p_r (1 − p_r)
_TURNING = 2.0 / (3.0 * math.sqrt(3.0))  # of d/dm (diag(p) − p pᵀ)v for |v_r| ≤ 1; at p = (½ ± 1/√12)


@dataclass(frozen=True)
class SoftmaxBounds:
    """The shape of the problem, and what a party enforces on its records and variables."""

    features: int
    """p: columns of a row a, and the length of x."""
    classes: int
    """c."""
    enforced: Bounds
    """R, κ, the boxes, ρ and where λ begins."""

    def __post_init__(self) -> None:
        if self.features < 1 or self.classes < 2:
            raise InvalidBounds(f"{self.classes} classes of {self.features} columns: two and one are the least.")

    @property
    def y_size(self) -> int:
        """Length of y and of z."""
        return self.classes * self.features


@dataclass(frozen=True)
class SoftmaxRecords:
    """Feature rows and their classes, 0 … c − 1."""

    features: Matrix
    labels: NDArray[np.int64]

    def __post_init__(self) -> None:
        if len(self.features) != len(self.labels):
            raise InvalidBounds(f"{len(self.features)} rows and {len(self.labels)} labels do not belong together.")

    def take(self, rows: NDArray[np.int64] | slice) -> "SoftmaxRecords":
        """Return these rows."""
        return SoftmaxRecords(self.features[rows], self.labels[rows])


def admit(
    features: NDArray[np.floating], labels: NDArray[np.integer] | NDArray[np.floating], bounds: SoftmaxBounds
) -> SoftmaxRecords:
    """Return records that satisfy the bounds, whatever came in; the only way in which a party makes them."""
    if not np.isfinite(features).all():
        raise InvalidBounds("A feature is NaN or infinite; repair the rows or leave them out.")
    if not np.isin(labels, np.arange(bounds.classes)).all():
        raise InvalidBounds(f"Labels are whole numbers from 0 to {bounds.classes - 1}; correct the rows or `classes`.")
    return SoftmaxRecords(normalise_rows(features, bounds.enforced), np.asarray(labels, dtype=np.int64))


def scores(bounds: SoftmaxBounds, records: SoftmaxRecords, y: Vector) -> Matrix:
    """Return ωa of each record, a column for each class; the largest is the predicted one."""
    return np.asarray(records.features @ _by_class(bounds, y).T)


def mean_loss(bounds: SoftmaxBounds, records: SoftmaxRecords, y: Vector) -> float:
    """Return the mean of L over the records, without ρ and without the regulariser."""
    m = scores(bounds, records, y)
    m = m - m.max(axis=1, keepdims=True)
    return float(np.mean(np.log(np.exp(m).sum(axis=1)) - m[np.arange(len(m)), records.labels]))


def directions(
    lower: SoftmaxRecords, upper: SoftmaxRecords, bounds: SoftmaxBounds, x: Vector, y: Vector, z: Vector
) -> Directions:
    """Return u = −∇²_xy l z, ∇_y l and H z − ∇_y h at (x, y, z)."""
    rho, exp_x = bounds.enforced.loss_scale, np.exp(x)
    weights, turned = _by_class(bounds, y), _by_class(bounds, z)
    p = _softmax(lower.features @ weights.T)
    along = lower.features @ turned.T  # za of each record
    curved = p * (along - (p * along).sum(axis=1, keepdims=True))  # (diag(p) − p pᵀ)za
    b = rho * _mean_outer(_residuals(_softmax(upper.features @ weights.T), upper.labels), upper)
    return Directions(
        x=-exp_x * (weights * turned).sum(axis=0),  # ∇_x h = 0, and ∇²_xy l holds no data
        y=(rho * _mean_outer(_residuals(p, lower.labels), lower) + exp_x * weights).ravel(),
        z=(rho * _mean_outer(curved, lower) + exp_x * turned - b).ravel(),
    )


def recursion(bounds: SoftmaxBounds) -> Recursion:
    """Return how far one differing record (training and validation) can drive two runs apart; order x, y, z.

    With e = p − 1_b, ‖e‖₁ ≤ 2; |za| ≤ R z_max in every class, so ‖(diag(p) − p pᵀ)za‖₁, a mean deviation, is at
    most R z_max too; and ‖(ω − ω')a‖₁ ≤ κ‖ω − ω'‖₁.
    """
    require_row_bounds(bounds.enforced)
    enforced, c = bounds.enforced, float(bounds.classes)
    R, kappa, rho = enforced.row_l1, enforced.row_max, enforced.loss_scale
    E, Y, Z = math.exp(enforced.x_high), enforced.y_max, enforced.z_max
    hessian = rho * _CURVATURE * kappa * R  # L1 → L1 norm of ρ (diag(p) − p pᵀ) ⊗ a aᵀ
    turning = rho * _TURNING * R * Z * kappa * R  # how fast (ρ ∇²L) z turns with y
    gradient = rho * 2.0 * R  # ‖ρ e aᵀ‖₁
    product = rho * R * Z * R
    size = bounds.y_size
    return Recursion(
        data=np.array([[0.0, 0.0, 0.0], [0.0, hessian, 0.0], [0.0, turning + hessian, hessian]]),
        shared=E * np.array([[c * Y * Z, Z, Y], [c * Y, 1.0, 0.0], [c * Z, 0.0, 1.0]]),
        injection=2.0 * np.array([0.0, gradient, gradient + product]),
        largest=np.array([E * size * Y * Z, gradient + E * size * Y, gradient + product + E * size * Z]),
    )


def _by_class(bounds: SoftmaxBounds, y: Vector) -> Matrix:
    return y.reshape(bounds.classes, bounds.features)


def _softmax(m: Matrix) -> Matrix:
    e = np.exp(m - m.max(axis=1, keepdims=True))
    return np.asarray(e / e.sum(axis=1, keepdims=True))


def _residuals(p: Matrix, labels: NDArray[np.int64]) -> Matrix:
    e = p.copy()
    e[np.arange(len(labels)), labels] -= 1.0
    return e


def _mean_outer(terms: Matrix, records: SoftmaxRecords) -> Matrix:
    """Return the mean over records of term ⊗ a."""
    return np.asarray(terms.T @ records.features / len(records.labels))
