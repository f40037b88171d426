"""Generalised linear models at a party: its columns leave once, under weights that only it knows.

In federated IRLS parties get a residual for each row in every step, and so labels. Here every party mixes its columns
by secret Gaussian weights, the coordinator sees the sum of the mixtures, solves for the labels in it, and tells the
solution in terms of the mixtures.

    symbol   code              shape             held by       leaves?
    X_m      features          (rows, p_m)       party         never
    Q_m T_m  basis, triangle   X_m = Q_m T_m/√n  party         never; orthonormal columns, so that no scale leaves
    G_m      weights           (r_m, q)          party         never; secret, of the party's own key
    A        sum of designs    (rows, q)         coordinator   Σ_m Q_m G_m √n = Σ_m X_m M_m
    M_m      mixing            (p_m, q)          party         never; T_m⁻¹ G_m, so that w_m = M_m u
    u, C     solution          (q + 1,), square  all           from the coordinator: A u = Σ_m X_m w_m
    w_m      weights of state  (p_m,)            party         three digits, by policy
    z_m, d_m shrunk, dual      (p_m,)            party         in sums M_mᵀz_m and M_mᵀd_m

Columns that depend on others of the same party, or on the intercept, get coefficient 0. q is a few more than the number
of all columns: a square Gaussian matrix may be nearly singular, an oblong one is not.
"""

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from parley.numerics.arrays import Array, Vector
from parley.numerics.limbs import to_limbs
from parley.privacy.noise import KeyedNoise
from parley.protocols.glm.messages import PENALTY_UNIT, Solution
from parley.tables.rows import LocalRows

INDEPENDENT = 1e-7
"""A column whose part outside the others is shorter than this share of it counts as dependent."""
NEARLY_DEPENDENT = 2.0**-8
"""The same with a penalty, whose weights must fit a sum: 1 − R² is 1.5e-5 there, variance inflation 65 000."""
RELAXATION = 1.6
"""Of ADMM (Boyd et al. 2011, section 3.4.3): between 1.5 and 1.8 few steps are needed."""
LARGEST_MIXING = 2.0**10
"""Sizes of weights of a penalised run beyond this, or below its inverse, would not fit the ring of a sum."""


@dataclass(frozen=True)
class MappedRows:
    """Rows of a table that lie in a file, and are read a shard at a time."""

    table: LocalRows
    rows: NDArray[np.int64] | None = None
    """All of them if None."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self), self.table.shape[1]

    def __len__(self) -> int:
        return len(self.table) if self.rows is None else len(self.rows)

    def shards(self) -> Iterator[Array]:
        """All rows, a shard at a time."""
        return self.table.shards(self.rows)


@dataclass(frozen=True)
class MappedBasis:
    """√n Q_m = √n X_m T_m⁻¹, made for the rows that are asked for."""

    features: MappedRows
    kept: Array
    triangle: Array

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, span: slice) -> Array:
        rows = np.arange(len(self)) if self.features.rows is None else self.features.rows
        chosen = self.features.table[rows[span]][:, self.kept]
        return np.asarray(solve_triangular(self.triangle, chosen.T, trans="T").T * np.sqrt(len(self)))


def _shards(features: Array | MappedRows) -> Iterable[Array]:
    return features.shards() if isinstance(features, MappedRows) else [features]


def _total(features: Array | MappedRows, of_shard: Callable[[Array], Array]) -> Array:
    """The sum over shards, in their order."""
    return functools.reduce(np.add, map(of_shard, _shards(features)))


def triangle_of(shards: Iterable[Array]) -> Array:
    """T of QT = X, a shard of X at a time: the triangle of the shards so far, above the next one (Demmel et al. 2012).

    The Gram matrix XᵀX would be simpler, and lose half of the digits that tell a dependent column.
    """
    above: Array | None = None
    for shard in shards:
        above = np.asarray(np.linalg.qr(shard if above is None else np.vstack([above, shard]), mode="r"))
    if above is None:
        raise ValueError("there are no rows to factorise")
    return above


def independent_columns(features: Array | MappedRows, least: float = INDEPENDENT) -> Array:
    """Which columns are no combination of the ones before them and a constant; none that is constant itself.

    `least` is the share of a column outside the others from which on it is none.
    """
    if not all(features.shape):
        return np.zeros(features.shape[1], dtype=bool)
    mean, spread = _moments(features)
    lengths = np.sqrt(spread)
    known = lengths > INDEPENDENT * np.sqrt(_total(features, lambda shard: np.square(shard).sum(axis=0)))
    kept = known.copy()
    triangle = triangle_of((shard - mean)[:, known] / lengths[known] for shard in _shards(features))
    outside = np.zeros(int(known.sum()))
    outside[: len(triangle)] = np.abs(np.diag(triangle))
    kept[known] = outside > least
    return np.asarray(kept)


def _moments(features: Array | MappedRows) -> tuple[Vector, Vector]:
    """The mean of each column, and Σ (x − mean x)²."""
    mean = _total(features, lambda shard: shard.sum(axis=0)) / len(features)
    return mean, _total(features, lambda shard: np.square(shard - mean).sum(axis=0))


@dataclass(frozen=True)
class Block:
    """What the party works on; made once for a session."""

    basis: Array | MappedBasis
    """√n Q_m: the training rows of the independent columns."""
    mixing: Array
    """M_m; rows of dependent columns are zero."""
    weights: Array
    """G_m."""
    carries_intercept: bool
    """The first party adds the intercept to its part of linear predictors."""
    spread: Vector
    """Σ (x − mean x)² of each column."""

    @property
    def mixtures(self) -> int:
        """q."""
        return int(self.weights.shape[1])


def block(
    features: Array | MappedRows,
    noise: KeyedNoise,
    run: str,
    party: str,
    mixtures: int,
    *,
    carries_intercept: bool,
    least: float = INDEPENDENT,
) -> Block:
    """Orthonormal columns and secret weights; the same whenever a session of the run begins."""
    kept = independent_columns(features, least)
    basis, triangle = _orthonormal(features, kept)
    weights = secret_gaussians(noise, run, party, int(kept.sum()), mixtures)
    mixing = np.zeros((len(kept), mixtures))
    mixing[kept] = solve_triangular(triangle, weights) * np.sqrt(len(features)) if kept.any() else 0.0
    spread = _moments(features)[1] if len(features) else np.zeros(len(kept))
    return Block(basis, mixing, weights, carries_intercept, spread)


def _orthonormal(features: Array | MappedRows, kept: Array) -> tuple[Array | MappedBasis, Array]:
    """√n Q_m, and T_m."""
    if isinstance(features, MappedRows):
        triangle = triangle_of(shard[:, kept] for shard in features.shards())
        return MappedBasis(features, kept, triangle), triangle
    basis, triangle = np.linalg.qr(np.ascontiguousarray(features[:, kept], dtype=np.float64))
    return basis * np.sqrt(len(features)), triangle


def secret_gaussians(noise: KeyedNoise, run: str, party: str, rows: int, columns: int) -> Array:
    """Normal variables (Box and Muller 1958) from the party's own key and name, and the run's."""
    words = noise.words(f"glm mixtures {party}", run, 0, np.arange(rows, dtype=np.int64), 2 * columns)
    uniform = ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    first, second = uniform[:, :columns], uniform[:, columns:]
    return np.asarray(np.sqrt(-2 * np.log(first)) * np.cos(2 * np.pi * second))


@dataclass(frozen=True)
class Shrinking:
    """The party's part of ADMM."""

    shrunk: Vector
    """z_m."""
    dual: Vector
    """d_m, scaled."""
    tie: float
    """ρ."""


@dataclass(frozen=True)
class State:
    """The party between two rounds."""

    weights: Vector
    """w_m, and the intercept last where the party carries it."""
    standard_errors: Vector
    """Of them; nan where there are none."""
    inflation: Vector
    """Variance inflation of each column: 1/(1 − R²) of the column given all others; nan where it is not known."""
    freedom: float = 0.0
    summed: int = 0
    """Training rows whose mixtures have left."""
    shrinking: Shrinking | None = None
    k: int = 0
    """Iterations that are in the weights."""


def design(party: Block, first: int, count: int) -> Array:
    """The party's part of A, for these training rows."""
    return party.basis[first : first + count] @ party.weights


def penalty(party: Block) -> Array:
    """M_mᵀM_m in units of PENALTY_UNIT, as two limbs: ‖w_m‖² = uᵀM_mᵀM_m u."""
    return np.concatenate(to_limbs((party.mixing.T @ party.mixing).ravel() / PENALTY_UNIT))


def solved(party: Block, state: State, solution: Solution) -> State:
    """Read the party's own coefficients, and their standard errors, from the solution."""
    reading = _reading(party)
    weights = reading @ solution.values
    if state.shrinking is not None:
        weights[: len(party.mixing)] = state.shrinking.shrunk
    errors = np.full(len(weights), np.nan)
    if solution.covariance is not None:
        variances = np.einsum("ij,jk,ik->i", reading, solution.covariance, reading)
        used = np.abs(reading).sum(axis=1) > 0  # a dependent column has no standard error
        errors[used] = np.sqrt(np.maximum(variances[used], 0.0))
    inflation = state.inflation if solution.inverse_gram is None else _inflation(party, solution.inverse_gram)
    return replace(state, weights=weights, standard_errors=errors, inflation=inflation, freedom=solution.freedom, k=1)


def _inflation(party: Block, inverse_gram: Array) -> Vector:
    """The diagonal of (XᵀX)⁻¹ of centred columns, which M_m reads, times their own Σ (x − mean x)²."""
    inner = inverse_gram[:-1, :-1]
    found = np.einsum("ij,jk,ik->i", party.mixing, inner, party.mixing) * party.spread
    return np.where(np.abs(party.mixing).sum(axis=1) > 0, found, np.nan)


def _reading(party: Block) -> Array:
    """(M_m, 0), and a row that reads the intercept where the party carries it."""
    reading = np.pad(party.mixing, ((0, int(party.carries_intercept)), (0, 1)))
    if party.carries_intercept:
        reading[-1, -1] = 1.0
    return reading


def shrink(party: Block, state: State, solution: Vector, tie: float, threshold: float) -> tuple[State, Vector]:
    """One step of ADMM (Boyd et al. 2011, section 6.4): soft-threshold, and what the next solution needs of it."""
    weights = party.mixing @ solution[:-1]
    before = state.shrinking or Shrinking(np.zeros_like(weights), np.zeros_like(weights), tie)
    relaxed = RELAXATION * weights + (1 - RELAXATION) * before.shrunk
    moved = relaxed + before.dual * (before.tie / tie)
    shrunk = np.sign(moved) * np.maximum(np.abs(moved) - threshold / tie, 0.0)
    after = Shrinking(shrunk, moved - shrunk, tie)
    gap, change = weights - shrunk, shrunk - before.shrunk
    high, low = to_limbs(np.array([gap @ gap, change @ change, shrunk @ shrunk]))
    told = np.concatenate([party.mixing.T @ shrunk, party.mixing.T @ after.dual, high, low])
    return replace(state, shrinking=after), told


def linear_predictor(features: Array, weights: Vector) -> Vector:
    """The party's part of η, with the intercept where its weights have one more number than it has columns."""
    columns = features.shape[1]
    part = features @ weights[:columns]
    return part + weights[columns] if len(weights) > columns else part
