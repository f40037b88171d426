"""BAMBI at the coordinator (the paper's Algorithm 1, server side, corrected).

Symbol map:

    paper     code             shape                        held by       leaves?
    h         sum of a round   (1+Q, batch, classes)        coordinator   no
    b, ỹ      labels.target    (batch, classes)             coordinator   ỹ only, after the gate
    θ, ϑ      Gradient         (…, batch, classes)          coordinator   yes, made from ỹ
    s_j       Coefficients     (Q,)                         coordinator   yes, a sum over parties
    L''(h) a  CurvatureStep    (batch, classes)             coordinator   yes, holds no label

A run is one generator: it yields rounds and is sent the sums. What an outcome says travels with the next ask, so a
step costs one round trip. Between upper iterations the coordinator remembers nothing but k.
"""

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from parley.coordinator.programs import Observer, Report
from parley.numerics.arrays import Array, Vector
from parley.numerics.limbs import from_limbs
from parley.numerics.losses import Loss
from parley.privacy.evaluations import Evaluation
from parley.protocols.bambi import batches
from parley.protocols.bambi.messages import (
    Ask,
    Coefficients,
    CurvatureForward,
    CurvatureStep,
    DirectionalForward,
    Gradient,
    LinearSystem,
    LowerForward,
    Outcome,
    Round,
    RowsForward,
    UpperForward,
)
from parley.protocols.bambi.settings import BambiSpec
from parley.protocols.rounds import Checkpoint, Finish
from parley.spec.rows import Rows, RowSets

EVALUATION_ROWS = 4096
SHORTEST_STEP = 2.0**-12
LARGEST_LOGIT = 2.0**13
"""No classifier needs larger ones; far below the limit of a secure sum, so that divergence is called by its name."""


class Labels(Protocol):
    """The gate to the labels."""

    def target(self, release: int, rows: Rows) -> Array:
        """Noisy targets of a release, paid for before they are returned."""

    def score(self, rows: Rows, h: Array) -> dict[str, float]:
        """Metrics on true labels, for the label holder's own eyes."""


class Diverged(ArithmeticError):
    """A sum has left the range in which it means anything."""


@dataclass(frozen=True)
class Plan:
    """Which rows each round reads and which label releases a run makes; known before it starts."""

    settings: BambiSpec
    rows: RowSets
    seed: int

    def lower_rows(self, k: int, t: int) -> Rows:
        """Rows of lower batch (k, t)."""
        return batches.lower_rows(self.settings, self.rows, self.seed, k, t)

    def upper_rows(self, k: int) -> Rows:
        """Rows of upper batch k."""
        return batches.upper_rows(self.settings, self.rows, self.seed, k)

    @property
    def releases_per_iteration(self) -> int:
        """Label releases of one upper iteration: those of the lower level, and one for the upper gradient."""
        settings = self.settings
        linearised = settings.hypergradient == "implicit" and settings.lower.solver == "sgd"
        return self._solve_releases(settings.lower.steps) + linearised + 1

    @property
    def releases(self) -> int:
        """Label releases of the whole run."""
        last = self.settings.upper.steps + 1
        return self.release(last, 0) + self._solve_releases(self.settings.lower.final_steps)

    def release(self, k: int, slot: int) -> int:
        """The number of a label release; the same whenever the round is made again."""
        before = 0 if k == 0 else self._solve_releases(self.settings.lower.warmup_steps)
        return before + max(0, k - 1) * self.releases_per_iteration + slot

    def released_rows(self, release: int) -> Rows:
        """The records that a release is about."""
        warmup, last = self.release(1, 0), self.release(self.settings.upper.steps + 1, 0)
        if release < warmup:
            return self.lower_rows(0, release)
        if release >= last:
            return self.lower_rows(self.settings.upper.steps + 1, release - last)
        k, slot = divmod(release - warmup, self.releases_per_iteration)
        return self.upper_rows(k + 1) if slot == self.releases_per_iteration - 1 else self.lower_rows(k + 1, slot)

    def lower_release(self, k: int, t: int) -> int:
        """The label release that gradient (k, t) of the lower level is made from."""
        return self.release(k, 0 if self.settings.lower.solver == "newton" else t)

    def _solve_releases(self, steps: int) -> int:
        # Every Newton step of a solve reads the same batch: one ỹ serves them all, and what follows from it is free.
        return min(steps, 1) if self.settings.lower.solver == "newton" else steps


@dataclass(frozen=True)
class Problem:
    """What stays fixed for a run."""

    plan: Plan
    loss: Loss
    labels: Labels
    outputs: int
    dtype: str
    evaluate_every: int = 10
    checkpoint_every: int = 25
    evaluations: Mapping[str, Evaluation] = field(default_factory=dict)
    """The ways out for figures on true labels, by the set of rows; none where they stay with the label holder."""

    @property
    def settings(self) -> BambiSpec:
        """The algorithm's settings."""
        return self.plan.settings


@dataclass(frozen=True)
class Pending:
    """An outcome that travels with the next ask, and the label release that it was made from."""

    outcome: Outcome
    release: int | None = None


Rounds = Generator[Round, Vector, Pending | None]


def rounds(problem: Problem, done: int, observe: Observer) -> Generator[Round, Vector, None]:
    """Every round of a run from upper iteration `done` + 1 on; `done` is the checkpoint that the parties begin from."""
    settings = problem.settings
    pending: Pending | None = None
    if done == 0 and settings.lower.warmup_steps:
        pending = yield from _lower_solve(problem, 0, settings.lower.warmup_steps, pending)
    for k in range(done + 1, settings.upper.steps + 1):
        pending = yield from _iteration(problem, k, pending, observe)
        if problem.evaluate_every and k % problem.evaluate_every == 0 and k < settings.upper.steps:
            pending = yield from evaluation(problem, k, pending, observe)
        if problem.checkpoint_every and k % problem.checkpoint_every == 0:
            yield asked(pending, Checkpoint(k))
            pending = None
    if settings.lower.final_steps:
        pending = yield from _lower_solve(problem, settings.upper.steps + 1, settings.lower.final_steps, pending)
    pending = yield from evaluation(problem, settings.upper.steps, pending, observe)
    yield asked(pending, Finish())


def asked(pending: Pending | None, ask: Ask) -> Round:
    """A round that carries the outcome of the one before."""
    return Round(None, ask) if pending is None else Round(pending.outcome, ask, pending.release)


def _iteration(problem: Problem, k: int, pending: Pending | None, observe: Observer) -> Rounds:
    settings = problem.settings
    lower = _Lower(problem, k)
    pending = yield from lower.solve(settings.lower.steps, pending)
    if settings.hypergradient == "implicit" and settings.lower.solver == "sgd":
        pending = yield from lower.gradient(settings.lower.steps, pending)
    h = _shaped(problem, (yield asked(pending, UpperForward(k))), len(problem.plan.upper_rows(k)))
    release = problem.plan.release(k, problem.plan.releases_per_iteration - 1)
    target = problem.labels.target(release, problem.plan.upper_rows(k))
    observe(Report(k, {"upper loss": problem.loss.value(h, target), "lower loss": lower.loss}))
    pending = Pending(Gradient(vartheta=problem.loss.gradient(h, target)), release)
    if settings.hypergradient == "implicit":
        return (yield from _conjugate_gradients(problem, k, "adjoint", lower.h, settings.implicit.rounds, pending))
    if settings.hypergradient == "zeroth_order":
        sums = finite((yield asked(pending, DirectionalForward(k))))
        return Pending(Coefficients(tuple(float(s) for s in sums)))
    return pending


def _lower_solve(problem: Problem, k: int, steps: int, pending: Pending | None) -> Rounds:
    return (yield from _Lower(problem, k).solve(steps, pending))


class _Lower:
    """The lower problem of one upper iteration, as the coordinator follows it."""

    def __init__(self, problem: Problem, k: int) -> None:
        self.problem, self.k = problem, k
        self.h: Array = np.empty(0)
        self._target: Array = np.empty(0)
        self._penalty = 0.0

    @property
    def loss(self) -> float:
        """The lower loss of the last batch."""
        return self.problem.loss.value(self.h, self._target)

    def solve(self, steps: int, pending: Pending | None) -> Rounds:
        newton = self.problem.settings.lower.solver == "newton"
        for t in range(steps):
            pending = yield from (self._confirm(t, pending) if newton else self.gradient(t, pending))
            if newton:
                rounds = self.problem.settings.implicit.newton_rounds
                pending = yield from _conjugate_gradients(self.problem, self.k, "newton", self.h, rounds, pending)
        return (yield from self._confirm(steps, pending)) if newton else pending

    def gradient(self, t: int, pending: Pending | None) -> Rounds:
        """θ of one gradient step on every trajectory."""
        rows, release = self.problem.plan.lower_rows(self.k, t), self._release(t)
        h = _shaped(self.problem, (yield asked(pending, LowerForward(self.k, t))), len(rows), stacked=True)
        h = _logits(self.problem, self.k, t, h)
        target = self.problem.labels.target(release, rows)
        self.h, self._target = h[0], target
        return Pending(Gradient(theta=self.problem.loss.gradient(h, target)), release)

    def _confirm(self, t: int, pending: Pending | None) -> Rounds:
        """Choose how much of the last Newton step to take, and send θ there.

        h is linear in y, so h at every length between the old and the new point is known without another round; the
        regulariser is a quadratic whose coefficients are two secure scalars. The target is noisy: no new label is read.
        """
        rows, release = self.problem.plan.lower_rows(self.k, t), self._release(t)
        sums = finite((yield asked(pending, LowerForward(self.k, t))))
        h = _logits(self.problem, self.k, t, _shaped(self.problem, sums[:-2], len(rows)))
        penalty, step_penalty = sums[-2:]
        target = self._target = self.problem.labels.target(release, rows)
        length = 1.0
        if t == 0:
            self.h, self._penalty = h, penalty
        else:
            start, old = self.h, self._penalty
            slope = penalty - old - step_penalty

            def objective(length: float) -> float:
                value = self.problem.loss.value(start + length * (h - start), target)
                return float(value + old + length * slope + length**2 * step_penalty)

            while objective(length) > objective(0.0) and length > SHORTEST_STEP:
                length /= 2
            self.h = start + length * (h - start)
            self._penalty = old + length * slope + length**2 * step_penalty
        theta = self.problem.loss.gradient(self.h, target)[None]
        return Pending(Gradient(theta=theta, step_length=length), release)

    def _release(self, t: int) -> int:
        return self.problem.plan.lower_release(self.k, t)


def _conjugate_gradients(
    problem: Problem, k: int, system: LinearSystem, h: Array, iterations: int, pending: Pending | None
) -> Rounds:
    """Solve H d = r with one round trip for each product (after Chronopoulos and Gear).

    z·Hz = a·c + Σ 2γ z·z with a = Σ S_m z_m and c = L''(h) a, so α and β are known as soon as a is, and travel with c.
    `a` of the solution is followed here, so the parties get L''(h) Σ S_m v_m without another round.
    """
    alpha = gamma = first = 0.0
    image = solution = np.zeros_like(h)
    for iteration in range(iterations):
        sums = finite((yield asked(pending, CurvatureForward(k, system, iteration))))
        a = _shaped(problem, sums[:-4], len(h))
        penalised, gamma_now = from_limbs(sums[-4:-2], sums[-2:])
        product = problem.loss.curvature_product(h, a)
        previous, gamma = gamma, float(gamma_now)
        first = gamma if iteration == 0 else first
        solved = gamma <= problem.settings.implicit.tolerance**2 * first
        delta = float(np.vdot(a, product)) + float(penalised)
        beta = gamma / previous if iteration and previous > 0 else 0.0
        curvature = delta - (beta * gamma / alpha if alpha else 0.0)
        alpha = gamma / curvature if curvature > 0 and not solved else 0.0
        image = a + beta * image
        solution = solution + alpha * image
        last = solved or alpha == 0.0 or iteration == iterations - 1
        finished = problem.loss.curvature_product(h, solution) if last and system == "adjoint" else None
        pending = Pending(CurvatureStep(product, alpha, beta, finished))
        if last:
            break
    return pending


def evaluation(problem: Problem, k: int, pending: Pending | None, observe: Observer) -> Rounds:
    """Score the held-out rows."""
    found: dict[str, float] = {}
    for held_out, rows in problem.plan.rows.held_out.items():
        parts = []
        for first in range(0, len(rows), EVALUATION_ROWS):
            count = min(EVALUATION_ROWS, len(rows) - first)
            sums = yield asked(pending, RowsForward("test" if held_out == "test" else "validation", first, count))
            parts.append(_shaped(problem, sums, count))
            pending = None
        scores = problem.labels.score(rows, np.concatenate(parts))
        way_out = problem.evaluations.get(held_out)
        shown = scores if way_out is None else way_out.release(k, scores)
        found |= {f"{held_out} {name}": value for name, value in shown.items()}
    if found:
        observe(Report(k, found))
    return pending


def _shaped(problem: Problem, sums: Vector, rows: int, *, stacked: bool = False) -> Array:
    h = finite(sums).reshape(-1, rows, problem.outputs).astype(problem.dtype)
    return h if stacked else h[0]


def _logits(problem: Problem, k: int, t: int, h: Array) -> Array:
    """h of a lower batch, unless it has grown beyond what any classifier needs."""
    if problem.settings.loss == "squared" or np.abs(h).max(initial=0.0) <= LARGEST_LOGIT:
        return h
    if k <= 1 and t <= 1:
        raise Diverged(
            f"the first lower step took the sum of the embeddings beyond {LARGEST_LOGIT:g}: the features are not "
            "standardised (write `preprocess` for the tables), or train.lower.optimiser.step is far too large"
        )
    raise Diverged(
        f"training diverged at upper step {k}, lower step {t}: the sum of the embeddings has grown beyond "
        f"{LARGEST_LOGIT:g}. Lower train.lower.optimiser.step and train.upper.optimiser.step, or raise "
        "train.regularisation, and start again"
    )


def finite(sums: Vector) -> Vector:
    """The sums, or a refusal to go on from them."""
    if not np.isfinite(sums).all():
        raise Diverged("the sum of the embeddings is not finite: lower the step sizes, or standardise the features")
    return sums
