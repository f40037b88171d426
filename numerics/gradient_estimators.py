"""Stochastic gradients of a generalised linear model on one party's own block: SGD, SVRG and SAGA.

AsySQN (Zhang et al., KDD 2021), Algorithms 3 to 5, line "compute ṽ"; the first-order methods AFSGD-VP,
AFSVRG-VP and AFSAGA-VP use the same three.

| paper            | code                        | shape    | held by   | leaves? |
|------------------|-----------------------------|----------|-----------|---------|
| (x_i)_ℓ, i ∈ I   | `batch`                     | (b, d)   | the party | no      |
| L'(θ_I)          | `derivative`                | (b,)     | the party | no      |
| L'(θ(w^s)), α̃   | `Reference.derivatives`     | (n,)     | the party | no      |
| (1/n) Σ α̃_i     | `Reference.mean_gradient`   | (d,)     | the party | no      |
| λ                | `regularisation`            | ()       | run spec  | public  |

For a linear model a sample's gradient is the scalar L'(θ_i) times its own row, so one scalar per sample is
the whole reference, and SVRG and SAGA are one formula that differs in when the reference changes:

    ṽ = X_Iᵀ(L'(θ_I) − a_I)/b + (1/n)Xᵀa + λw

differs from the paper: Algorithm 4 asks for θ(w^s)_I in a second aggregation at every step; here L'(θ(w^s))
is kept from the snapshot. Algorithm 5 stores a d_ℓ-vector per sample; here a scalar. In both, λw is exact and
outside the table. E[ṽ] is the gradient at θ whatever a is, so a snapshot that parties took at different
moments costs variance, not bias.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array, issparse

Vector = NDArray[np.float64]
Rows = NDArray[np.int64]
Features: TypeAlias = NDArray[np.float64] | csr_array
"""One party's columns, rows = samples: a dense array or a SciPy CSR array, float64."""


class Estimator(StrEnum):
    """How the gradient of the whole sum is estimated from a batch."""

    SGD = "sgd"
    SVRG = "svrg"
    SAGA = "saga"


def needs_reference(estimator: Estimator, *, has_one: bool, steps_since: int, every: int) -> bool:
    """Say whether L'(θ) of all rows is due before the next step: never, once (SAGA), or every so often (SVRG)."""
    if estimator is Estimator.SGD:
        return False
    return not has_one or (estimator is Estimator.SVRG and steps_since >= every)


class UnsuitableFeatures(ValueError):
    """The features cannot be trained on."""


@dataclass(frozen=True)
class Reference:
    """The variance-reduction reference: an old L'(θ_i) for each sample, and the gradient they make."""

    derivatives: Vector
    """a_i, one scalar per sample."""
    mean_gradient: Vector
    """(1/n)Xᵀa, without λw."""


def as_features(columns: ArrayLike | csr_array) -> Features:
    """Return the columns as float64, dense or CSR; raise `UnsuitableFeatures` on NaN or a bad shape."""
    features = csr_array(columns, dtype=np.float64) if issparse(columns) else np.asarray(columns, np.float64)
    if len(features.shape) != 2 or 0 in features.shape:
        raise UnsuitableFeatures(f"features have shape {features.shape}; give a matrix with rows and columns")
    values = features.data if issparse(features) else features
    if not np.isfinite(values).all():
        raise UnsuitableFeatures("features hold NaN or infinity; impute or drop those rows before training")
    return features


@dataclass(frozen=True)
class ScalingWarning:
    """Columns whose size will slow the run down or make it diverge."""

    columns: tuple[int, ...]
    """The party's own column numbers."""
    text: str
    """What is wrong and what to do; it names columns and no values, so it may be logged."""


def check_scaling(features: Features, *, largest: float = 1e3, smallest: float = 1e-3) -> ScalingWarning | None:
    """Return a warning if the non-zero entries of some column are not of order 1, else None.

    Zeros are left out so that a rare one-hot column is not taken for a small one.
    """
    squares = np.asarray((features**2).sum(axis=0)).ravel()
    counts = np.asarray((features != 0.0).sum(axis=0)).ravel()
    size = np.sqrt(squares / np.maximum(counts, 1))
    columns = np.flatnonzero((counts > 0) & ((size > largest) | (size < smallest)))
    if not columns.size:
        return None
    named = ", ".join(map(str, columns[:5])) + (" …" if columns.size > 5 else "")
    return ScalingWarning(
        tuple(int(column) for column in columns),
        f"{columns.size} of {features.shape[1]} columns ({named}) have entries far from order 1; standardise "
        "them (z-score, then winsorise at ±5), or the run will crawl or diverge",
    )


def reference_at(features: Features, derivatives: Vector) -> Reference:
    """Return the reference for L'(θ_i) of all n samples: SVRG's snapshot, SAGA's first table."""
    return Reference(derivatives, features.T @ derivatives / features.shape[0])


def estimate(
    batch: Features,
    derivative: Vector,
    weights: Vector,
    *,
    regularisation: float,
    reference: Reference | None = None,
    rows: Rows | None = None,
) -> Vector:
    """Return ṽ on the samples `rows`, whose features are `batch`; without a reference, SGD's."""
    penalty = regularisation * weights
    if reference is None or rows is None:
        return np.asarray(batch.T @ derivative / len(derivative) + penalty)
    change = derivative - reference.derivatives[rows]
    return np.asarray(batch.T @ change / len(derivative) + reference.mean_gradient + penalty)


def replace_entries(features: Features, reference: Reference, rows: Rows, derivative: Vector) -> Reference:
    """Return SAGA's table with L'(θ_I) in place of a_I; a sample that was drawn twice counts once."""
    distinct, first = np.unique(rows, return_index=True)
    derivatives = reference.derivatives.copy()
    change = derivative[first] - derivatives[distinct]
    derivatives[distinct] = derivative[first]
    moved = features[distinct].T @ change / features.shape[0]
    return Reference(derivatives, reference.mean_gradient + moved)


def local_difference(batch: Features, curvature: Vector, step: Vector, *, regularisation: float) -> Vector:
    """Return ȳ = (1/b)Σ_I L''(θ_i)((x_i)_ℓ·s)(x_i)_ℓ + λs: the own block's Hessian on the batch, times s.

    differs from the paper: v_k − v_{k−1} mixes two batches and other parties' moves, and a quarter or more of
    its pairs have sᵀȳ ≤ 0. This ȳ holds the others still, needs no message, and has sᵀȳ ≥ λ‖s‖² whatever the
    staleness.
    """
    return np.asarray(batch.T @ (curvature * (batch @ step)) / len(curvature) + regularisation * step)
