"""What sums over parties tell whoever sees them: pure functions of what was seen.

A secure sum hides its addends perfectly and is itself in the clear. With a linear lower level and full batches

    h_{t+1} = (1 − 2βγ) h_t − β G θ_t,   G = Σ_m A_m A_mᵀ,

so that a coordinator, who knows h and θ, has products with the pooled Gram matrix G. After rank(A) of them it has G.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class LinearRun:
    """What a coordinator sees of gradient steps on a linear lower level, every step over the same rows."""

    h: Array
    """(steps + 1, rows, outputs): the summed predictions before each step and after the last."""
    theta: Array
    """(steps, rows, outputs): the gradients that it sent."""
    step: float
    """β."""
    decay: float
    """γ of γ‖y‖²."""

    @property
    def products(self) -> tuple[Array, Array]:
        """(Θ, GΘ), with a column for each step and output."""
        kept = (1.0 - 2.0 * self.step * self.decay) * self.h[:-1]
        images = (kept - self.h[1:]) / self.step
        return _columns(self.theta), _columns(images)


def solve_gram(run: LinearRun, tolerance: float = 1e-10) -> Array:
    """G from products with it: G = (GΘ)(ΘᵀGΘ)⁺(GΘ)ᵀ once GΘ has the rank of G."""
    theta, images = run.products
    core = theta.T @ images
    found: Array = images @ np.linalg.pinv((core + core.T) / 2, rcond=tolerance, hermitian=True) @ images.T
    return found


def difference_of_grams(larger: Array, smaller: Array) -> Array:
    """The column by which two runs differ, up to its sign: G₂ − G₁ = u uᵀ."""
    values, vectors = np.linalg.eigh((larger - smaller + (larger - smaller).T) / 2)
    column: Array = np.sqrt(max(float(values[-1]), 0.0)) * vectors[:, -1]
    return column


def columns_of_scales(one: Array, other: Array, tolerance: float = 1e-9) -> Array:
    """Every column of all parties, centred and up to its scale, from two runs that scaled them differently.

    U·D₁·Uᵀ and U·D₂·Uᵀ have the columns of U as their common axes, as long as no two of them changed alike. What runs
    subtract from columns goes with the mean over rows.
    """
    rows = len(one)
    centring = np.eye(rows) - 1.0 / rows
    first, second = (centring @ gram @ centring for gram in (one, other))
    values, vectors = np.linalg.eigh((first + first.T) / 2)
    kept = values > tolerance * values[-1]
    roots, span = np.sqrt(values[kept]), vectors[:, kept]
    within = span.T @ (second + second.T) @ span / 2
    _, axes = np.linalg.eigh(within / np.outer(roots, roots))
    return np.asarray(span * roots @ axes)


def column_projection(run: LinearRun, guess: Array, tolerance: float = 1e-7) -> float:
    """The share of a guessed column that lies outside the span of what was seen: 0 confirms it, 1 excludes it."""
    _, images = run.products
    left, values, _ = np.linalg.svd(images, full_matrices=False)
    span = left[:, values > tolerance * values[0]]
    outside = guess - span @ (span.T @ guess)
    return float(np.linalg.norm(outside) / np.linalg.norm(guess))


def difference_of_runs(with_party: Array, without_party: Array) -> Array:
    """A party's addend: the sum with it less the sum without it, where the other addends are the same."""
    return np.asarray(with_party - without_party)


@dataclass(frozen=True)
class ClassRows:
    """Rows of one class, read off a sum."""

    label: int
    count: int
    """How many rows of the class are in `values`; 1 is a raw row."""
    values: Array
    """Their sum."""


def batch_of_one(moved: Array, *, features: int, classes: int, weight: float) -> list[ClassRows]:
    """Rows and labels out of one step of softmax regression, summed over parties that took one row each.

    `moved` is how far the summed weights and biases went. From equal scores a row a of class b moves them by
    weight·(e_b − 1/C)·[a, 1]: against a class that no row has, every other class shows the sum of its own rows.
    """
    layers = moved[: (features + 1) * classes].reshape(features + 1, classes) / weight
    absent = int(np.argmin(layers[-1]))
    own = layers - layers[:, [absent]]
    counts = np.rint(own[-1]).astype(int)
    return [ClassRows(int(label), int(counts[label]), own[:-1, label]) for label in np.flatnonzero(counts)]


def limit_bisection(exceeds: Callable[[float], bool | None], low: float, high: float, steps: int) -> float | None:
    """A magnitude, from whether it exceeds limits of one's choice; None where one is not told."""
    for _ in range(steps):
        middle = math.sqrt(low * high)
        told = exceeds(middle)
        if told is None:
            return None
        low, high = (middle, high) if told else (low, middle)
    return math.sqrt(low * high)


def _columns(stacked: Array) -> Array:
    return np.concatenate(list(stacked), axis=1)
