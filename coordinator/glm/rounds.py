"""Generalised linear models at the coordinator: it sees mixtures of all columns, holds the labels, and solves.

    symbol   code         shape          held by       leaves?
    A        mixed        (rows, q)      coordinator   no
    K        reading      (q, p)         coordinator   no; Z = AK has orthonormal columns, times √rows
    ỹ        target       (rows,)        coordinator   no
    β        beta         (p + 1,)       coordinator   u = Kβ and the intercept, made from ỹ
    MᵀM      weights      (q, q)         coordinator   no; the sum of M_mᵀM_m

A run is one generator: it yields rounds and is sent the sums. Before the solution nothing is kept: a run that is
interrupted begins anew, asks for the same mixtures and finds the same solution.
"""

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from parley.coordinator.programs import Observer, Report, due
from parley.numerics.arrays import Array, Vector
from parley.numerics.generalised_linear import Exposed, Family, Fit, NoSolution, Numbers, Quadratic, fit
from parley.numerics.limbs import from_limbs
from parley.privacy.evaluations import Evaluation
from parley.protocols.glm.messages import PENALTY_UNIT, SHRINK_TAIL, GlmRound, Solution, columns_of
from parley.protocols.glm.settings import GlmSpec
from parley.spec.events import RunWarning
from parley.spec.rows import Rows, RowSets

FIRST_ROWS = 256
"""Rows of the first sum, which tells how many mixtures there are."""
CHUNK = 1 << 20
"""Numbers of each further sum."""
EVALUATION_ROWS = 1 << 16
DEPENDENT = 1e-9
"""A direction of the mixtures that is shorter than this share of the longest one is rounding."""
UNBOUNDED = 1e4
"""A variance of a coefficient beyond this, of a column of unit size: rows of some kind have one outcome only."""
UNBOUNDED_COLUMNS = RunWarning(
    "coefficients without bound",
    "some columns tell the outcome of some rows for certain, so that coefficients and standard errors there mean "
    "nothing",
    "take a `penalty`, or give the columns fewer and larger categories",
)
FIRST_TIE = 0.5
FEW_STEPS = 40
"""Shrinking steps in which their tie is balanced."""


class Labels(Protocol):
    """The gate to the labels."""

    def target(self, release: int, rows: Rows) -> Array:
        """Noisy targets of a release, paid for before they are returned."""

    def score(self, rows: Rows, h: Array) -> dict[str, float]:
        """Metrics on true labels, for the label holder's own eyes."""


@dataclass(frozen=True)
class Exposure:
    """How much of each row was observed."""

    gate: Labels
    """The way to what the solution is made from."""
    values: Vector
    """Of all rows, for the label holder's own eyes."""


@dataclass(frozen=True)
class Problem:
    """What stays fixed for a run."""

    settings: GlmSpec
    family: Family
    rows: RowSets
    labels: Labels
    evaluations: Mapping[str, Evaluation]
    """The ways out for figures of held-out rows, by the name of the set."""
    predicted: Family
    """The family of true labels: what held-out rows are predicted by."""
    checkpoint_every: int = 0
    class_weights: Array | None = None
    """Of the two classes; None where rows count alike."""
    exposure: Exposure | None = None
    """Of all rows; None where they were observed alike."""


@dataclass(frozen=True)
class Reduced:
    """The mixtures in a basis that is as wide as there are columns."""

    z: Array
    """(rows, p + 1); the last column is the ones."""
    reading: Array
    """K."""

    def solution(self, beta: Vector) -> Vector:
        """u, and the intercept."""
        return np.append(self.reading @ beta[:-1], beta[-1])

    def covariance(self, found: Array) -> Array:
        """C, of u and the intercept."""
        wide = np.pad(self.reading, ((0, 1), (0, 1)))
        wide[-1, -1] = 1.0
        return np.asarray(wide @ found @ wide.T)


Rounds = Generator[GlmRound, Vector, Solution]


def rounds(problem: Problem, done: int, observe: Observer) -> Generator[GlmRound, Vector, None]:
    """Every round of a run; `done` is 1 where the parties have the solution in their checkpoints."""
    solution: Solution | None = None
    if not done:
        solution = yield from _solution(problem, observe)
        if due(1, problem.checkpoint_every):
            yield GlmRound("checkpoint", 1, solution=solution)
            solution = None  # the parties have it
    parts, rows = [], problem.rows.measured
    for first in range(0, len(rows), EVALUATION_ROWS):
        count = min(EVALUATION_ROWS, len(rows) - first)
        parts.append((yield GlmRound("evaluate", first=first, count=count, solution=solution)))
        solution = None
    if parts:
        observe(Report(1, _measured(problem, scored(problem.predicted, problem.settings, np.concatenate(parts)))))
    yield GlmRound("finish", 1, solution=solution)


def _measured(problem: Problem, predicted: Array) -> dict[str, float]:
    """Figures of each held-out set; `predicted` has the sets' rows one after the other."""
    found, first = dict[str, float](), 0
    for held_out, rows in problem.rows.held_out.items():
        part = predicted[first : first + len(rows)]
        if problem.exposure is not None:
            part = part * problem.exposure.values[rows, None]
        scores = problem.labels.score(rows, part)
        shown = problem.evaluations[held_out].release(1, scores)
        found |= {f"{held_out} {name}": value for name, value in shown.items()}
        first += len(rows)
    return found


def scored(family: Family, settings: GlmSpec, eta: Vector) -> Array:
    """Logits of classes, expected values of numbers, as a column."""
    return (eta if settings.variance_power is None else family.mean(eta))[:, None]


def _solution(problem: Problem, observe: Observer) -> Rounds:
    mixed = yield from _design(len(problem.rows.trained))
    if problem.settings.penalty.strength:
        high, low = np.split(finite((yield GlmRound("penalty"))), 2)
        weights = PENALTY_UNIT * from_limbs(high, low).reshape(mixed.shape[1], -1)
        reduced = reduce(mixed, penalised=True)
        solution, found = yield from _penalised(problem, reduced, weights)
    else:
        reduced = reduce(mixed, penalised=False)
        found = fit(reduced.z, y := _target(problem), _trained(problem), weights=_weights(problem, y))
        if problem.settings.family != "linear" and found.covariance.diagonal().max() > UNBOUNDED:
            observe(Report(0, {}, UNBOUNDED_COLUMNS))
        freedom = float(found.freedom) if problem.settings.family == "linear" else 0.0
        covariance = None if problem.class_weights is not None else reduced.covariance(found.covariance)
        gram = reduced.covariance(np.linalg.inv(reduced.z.T @ reduced.z))
        solution = Solution(reduced.solution(found.beta), covariance, freedom, gram)
    told = {"deviance": found.deviance, "null deviance": found.null_deviance}
    if problem.family.estimates_dispersion and not problem.settings.penalty.strength:
        told["dispersion"] = found.dispersion
    observe(Report(1, told))
    return solution


def _design(rows: int) -> Generator[GlmRound, Vector, Array]:
    parts: list[Array] = []
    first, count = 0, min(FIRST_ROWS, rows)
    while count:
        part = finite((yield GlmRound("design", first=first, count=count))).reshape(count, -1)
        parts.append(part)
        first += count
        count = _next_part(part.shape[1], rows - first)
    return np.concatenate(parts)


def _next_part(mixed: int, left: int) -> int:
    return min(max(1, CHUNK // mixed), left)


def design_parts(rows: int, mixed: int) -> Iterator[int]:
    """How many rows each round of the design asks for, where a row has so many mixtures."""
    count = min(FIRST_ROWS, rows)
    while count:
        yield count
        rows -= count
        count = _next_part(mixed, rows)


def reduce(mixed: Array, *, penalised: bool) -> Reduced:
    """Orthonormal combinations of the mixtures, as many as there are columns.

    Raises:
        NoSolution: where columns of different parties depend on each other, and no penalty chooses among solutions.
    """
    rows, columns = len(mixed), columns_of(mixed.shape[1])
    if not penalised and rows <= columns + 1:
        raise NoSolution(f"{rows} training rows do not determine {columns} coefficients and an intercept: add rows, "
                         "or take a `penalty`")  # fmt: skip
    _, lengths, right = np.linalg.svd(np.linalg.qr(mixed, mode="r"), full_matrices=False)
    kept = int((lengths > DEPENDENT * lengths[0]).sum()) if lengths.size else 0
    if not penalised and _dependent(mixed, kept, columns):
        raise NoSolution(
            "columns of different parties are combinations of each other, so that many coefficients fit alike: have "
            "one party leave its copy out, or take a `penalty`"
        )
    reading = right[:kept].T / lengths[:kept] * np.sqrt(rows)
    return Reduced(np.hstack([mixed @ reading, np.ones((rows, 1))]), reading)


def _dependent(mixed: Array, kept: int, columns: int) -> bool:
    """Whether the columns depend on each other, or all together on the intercept."""
    if kept < columns:
        return True
    ones = np.ones(len(mixed))
    fitted, *_ = np.linalg.lstsq(mixed, ones, rcond=DEPENDENT)
    return float(np.linalg.norm(ones - mixed @ fitted)) < float(np.sqrt(DEPENDENT * len(mixed)))


def _target(problem: Problem) -> Vector:
    found: Vector = problem.labels.target(0, problem.rows.trained).astype(np.float64).reshape(-1)
    return found


def _trained(problem: Problem) -> Family:
    """The family of the training rows, with how much of each was observed."""
    if problem.exposure is None or not isinstance(problem.family, Numbers):
        return problem.family
    seen = problem.exposure.gate.target(0, problem.rows.trained).astype(np.float64).reshape(-1)
    return Exposed(problem.family, seen)


def _weights(problem: Problem, y: Vector) -> Vector | None:
    """How much each row counts."""
    return None if problem.class_weights is None else np.asarray(problem.class_weights[y.astype(np.int64)])


def _penalised(problem: Problem, reduced: Reduced, weights: Array) -> Generator[GlmRound, Vector, tuple[Solution, Fit]]:
    """Ridge at once; with an l1 part by ADMM (Boyd et al. 2011), in which every party shrinks its own coefficients."""
    penalty, y = problem.settings.penalty, _target(problem)
    ridge, lasso = penalty.strength * (1 - penalty.l1_ratio), penalty.strength * penalty.l1_ratio
    lengths = np.pad(reduced.reading.T @ weights @ reduced.reading, ((0, 1), (0, 1)))
    size, beta = len(lengths), None
    if not lasso:
        found = fit(
            reduced.z, y, _trained(problem), Quadratic(ridge * lengths, np.zeros(size)), weights=_weights(problem, y)
        )
        return Solution(reduced.solution(found.beta)), found
    tie, pull, weights_of, family = FIRST_TIE, np.zeros(size), _weights(problem, y), _trained(problem)
    for step in range(1, penalty.steps + 1):
        found = fit(reduced.z, y, family, Quadratic((ridge + tie) * lengths, tie * pull), beta, weights_of)
        beta = found.beta
        told = finite((yield GlmRound("shrink", solution=Solution(reduced.solution(beta)), tie=tie)))
        gap, change, size_of = np.sqrt(np.maximum(_lengths(told), 0.0))
        if max(gap, change) <= penalty.tolerance * max(size_of, 1.0):
            return Solution(reduced.solution(beta)), found
        shrunk, dual = (reduced.reading.T @ part for part in np.split(told[:-SHRINK_TAIL], 2))
        before, tie = tie, _balanced(tie, gap, tie * change, step)
        pull = np.append(shrunk - dual * (before / tie), 0.0)
    raise NoSolution(
        f"the coefficients did not settle in {penalty.steps} shrinking steps: standardise the columns (`preprocess: "
        "{scale: standard}`), or raise `penalty.steps` or `penalty.tolerance`"
    )


def _lengths(told: Vector) -> Vector:
    tail = told[-SHRINK_TAIL:]
    return from_limbs(tail[: SHRINK_TAIL // 2], tail[SHRINK_TAIL // 2 :])


def _balanced(tie: float, gap: float, moved: float, step: int) -> float:
    """ρ that keeps both residuals alike (Boyd et al. 2011, section 3.4.1), in the first steps only: it must settle."""
    if step > FEW_STEPS:
        return tie
    if gap > 10 * moved:
        return 2 * tie
    return tie / 2 if moved > 10 * gap else tie


def finite(sums: Vector) -> Vector:
    """The sums, or a refusal to go on from them."""
    if not np.isfinite(sums).all():
        raise NoSolution("a sum over the parties is not finite: start the run again")
    return sums
