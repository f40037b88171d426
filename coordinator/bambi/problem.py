"""What stays fixed for a run of BAMBI at the coordinator: rows, label releases, the loss."""

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

from parley.coordinator.bambi.levels import Level, LossLevel
from parley.numerics.arrays import Array, Vector
from parley.numerics.losses import Loss
from parley.privacy.evaluations import Evaluation
from parley.protocols.bambi import batches
from parley.protocols.bambi.columns import widened
from parley.protocols.bambi.messages import Ask, Outcome, Round
from parley.protocols.bambi.settings import BambiSpec
from parley.spec.rows import Rows, RowSets

if TYPE_CHECKING:
    from parley.coordinator.bambi.own_problem import OwnProblem


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
        """Rows of upper batch k; of both levels where there is one problem."""
        return batches.upper_rows(self.settings, self.rows, self.seed, k)

    @property
    def releases_per_iteration(self) -> int:
        """Label releases of one upper iteration: those of the lower level, and one for the upper gradient."""
        settings = self.settings
        if settings.problem == "joint":
            return 1
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
        if self.settings.problem == "joint":
            return 0
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
    own: "OwnProblem | None" = None
    """The label holder's side of a problem of one's own; both levels are the loss where there is none."""
    half: bool = False
    """Whether arrays go to the parties in half precision."""

    @property
    def columns(self) -> int:
        """Columns of h that cross."""
        return self.settings.columns(self.outputs)

    @property
    def settings(self) -> BambiSpec:
        """The algorithm's settings."""
        return self.plan.settings

    def level(self, name: Literal["lower", "upper"], k: int, rows: Rows, release: int) -> Level:
        """The objective of a level on these rows, but for what parties add to it."""
        target = self.labels.target(release, rows)
        return LossLevel(self.loss, target) if self.own is None else self.own.level(name, k, rows, target, release)


@dataclass(frozen=True)
class Pending:
    """An outcome that travels with the next ask, and the label release that it was made from."""

    outcome: Outcome
    release: int | None = None


Rounds = Generator[Round, Vector, Pending | None]


def asked(pending: Pending | None, ask: Ask) -> Round:
    """A round that carries the outcome of the one before."""
    return Round(None, ask) if pending is None else Round(pending.outcome, ask, pending.release)


def shaped(problem: Problem, sums: Vector, rows: int, *, stacked: bool = False) -> Array:
    """The sum of embeddings, (rows, outputs); `stacked` keeps the axis of trajectories."""
    h = finite(sums).reshape(-1, rows, problem.columns).astype(problem.dtype)
    return widened(h if stacked else h[0], problem.outputs)


def finite(sums: Vector) -> Vector:
    """The sums, or a refusal to go on from them."""
    if not np.isfinite(sums).all():
        raise Diverged("the sum of the embeddings is not finite: lower the step sizes, or standardise the features")
    return sums
