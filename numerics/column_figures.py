"""Figures of columns: quantiles, bins, stability, weight of evidence, information value, variance inflation.

Nothing here is a function of fewer rows than a cell holds: a quantile is the mean of that many rows around it, a bin
has at least as many. N. Siddiqi, Credit Risk Scorecards (2006), ch. 6, for weight of evidence (WOE) and information
value (IV); PSI is the same sum over two populations.
"""

from dataclasses import dataclass

import numpy as np
from scipy.linalg import solve_triangular

from parley.numerics.arrays import Array, Vector

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
ROUNDING = 1e-6
"""Of numbers with 32 bits, and some more."""
HALF = 0.5
"""What a bin gets of each class where it lacks one: its logarithm must be finite."""


@dataclass(frozen=True)
class Bins:
    """Where a column is cut: bin b holds values in (edges[b−1], edges[b]]."""

    edges: Vector
    """One fewer than there are bins, ascending."""

    def of(self, values: Vector) -> Array:
        """The bin of each value; one that scaling and scaling back has moved by a rounding stays in its bin."""
        if not len(self.edges):
            return np.zeros(len(values), dtype=np.int64)
        slack = ROUNDING * np.abs(self.edges) + ROUNDING / 10 * np.abs(self.edges).max()
        return np.searchsorted(self.edges + slack, values, side="left")

    def counts(self, values: Vector, weights: Vector | None = None) -> Vector:
        """Rows in each bin, or the sum of their weights."""
        return np.bincount(self.of(values), weights, minlength=len(self.edges) + 1).astype(np.float64)


def quantile(ordered: Vector, level: float, cell: int) -> float:
    """The mean of `cell` rows around a quantile of values in ascending order."""
    middle = round(level * (len(ordered) - 1))
    first = min(max(0, middle - cell // 2), max(0, len(ordered) - cell))
    around = ordered[first : first + cell]
    return float(around[0] if around[0] == around[-1] else around.mean())


def cut(values: Vector, most: int, cell: int) -> Bins:
    """Bins of about as many rows each, none with fewer than `cell`; of few values, one bin for each."""
    ordered = np.sort(values)
    distinct = np.unique(ordered)
    if len(distinct) <= most:
        edges = (distinct[1:] + distinct[:-1]) / 2
    else:
        edges = np.unique([quantile(ordered, part / most, cell) for part in range(1, most)])
    while len(edges):
        counts = Bins(edges).counts(values)
        least = int(np.argmin(counts))
        if counts[least] >= cell:
            break
        left, right = (counts[b] if 0 <= b < len(counts) else np.inf for b in (least - 1, least + 1))
        edges = np.delete(edges, least - 1 if left <= right else least)
    return Bins(edges)


def joined(counts: Vector, most: int, cell: int) -> list[int]:
    """Where cells are parted into bins of about as many rows, at most `most`, none with fewer than `cell` unless alone.

    Each bin begins at one of these places, but for the first, which begins at 0.
    """
    wanted, ends, rows = max(float(cell), counts.sum() / most), [], 0.0
    for place, count in enumerate(counts, 1):
        rows += count
        if rows >= wanted:
            ends.append(place)
            rows = 0.0
    return ends if rows >= cell and (not ends or ends[-1] < len(counts)) else ends[:-1]


def stability(expected: Vector, actual: Vector) -> float:
    """PSI of two sets of counts in the same bins: Σ (a − e) ln(a/e) of their shares."""
    e, a = (_filled(counts) for counts in (expected, actual))
    return float(np.sum((a - e) * np.log(a / e)))


DEPENDENT = 1e-6
"""A column of which no more is left, given those before it, follows from them: correlations have about nine digits."""


def variance_inflation(correlations: Array) -> Vector:
    """1/(1 − R²) of each column given all others, from the matrix of their correlations.

    Nan for a column that follows from those before it; it inflates no other.
    """
    kept: list[int] = []
    factor = np.zeros_like(correlations)  # Cholesky's, of the columns that are kept
    for column in range(len(correlations)):
        size = len(kept)
        row = solve_triangular(factor[:size, :size], correlations[kept, column], lower=True)
        left = 1.0 - row @ row
        if left > DEPENDENT:
            factor[size, :size], factor[size, size] = row, np.sqrt(left)
            kept.append(column)
    inverse = solve_triangular(factor[: len(kept), : len(kept)], np.eye(len(kept)), lower=True)
    found = np.full(len(correlations), np.nan)
    found[kept] = np.square(inverse).sum(axis=0)
    return found


@dataclass(frozen=True)
class Evidence:
    """What bins say about a label of two classes."""

    weights: Vector
    """WOE of each bin: ln(share of class 0 / share of class 1)."""
    value: float
    """IV: Σ (share of class 0 − share of class 1) · WOE."""


def evidence(rows: Vector, seconds: Vector, flip: float = 0.0) -> Evidence:
    """WOE and IV from rows of each bin and those of class 1 among them, whose labels were flipped so often."""
    ones = (seconds - flip * rows) / (1 - 2 * flip)
    zeros = rows - ones
    lacking = (ones <= 0) | (zeros <= 0)
    ones, zeros = (np.where(lacking, np.maximum(counts, 0) + HALF, counts) for counts in (ones, zeros))
    one, zero = ones / ones.sum(), zeros / zeros.sum()
    weights = np.log(zero / one)
    return Evidence(weights, float(np.sum((zero - one) * weights)))


def _filled(counts: Vector) -> Vector:
    return np.asarray(np.where(counts > 0, counts, HALF) / counts.sum())
