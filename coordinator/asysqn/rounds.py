"""AsySQN at the coordinator: which rounds it asks for, synchronous or not, and when a run has come far enough.

Q. Zhang et al.: AsySQN, KDD 2021. Synchronous: the coordinator names the batch, opens the one sum that serves all
parties, and sends it back with the next ask; that exchange is the barrier. Asynchronous: it starts the parties' loops,
asks now and then how far they are, evaluates the objective without holding anybody up, and stops them. It has no clock
of its own: what the parties say of their loops' time tells when to ask again.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from parley.coordinator.asysqn.watch import Watch, accuracy, objective, observe
from parley.coordinator.programs import Observer, Report
from parley.numerics.gradient_estimators import Estimator, Rows
from parley.numerics.linear_losses import LinearLoss
from parley.numerics.metrics import Measures, class_details, classification_figures, intervals, regression_figures
from parley.privacy.evaluations import Evaluation
from parley.protocols.asysqn.batches import next_rows
from parley.protocols.asysqn.messages import (
    AllRows,
    AsysqnRound,
    Derivative,
    Evaluate,
    Halt,
    OpenedTheta,
    Outcome,
    Progress,
    RowsName,
    Start,
    ThetaForward,
)
from parley.protocols.asysqn.messages import Report as ReportAsk
from parley.protocols.rounds import Checkpoint, Finish

Vector = NDArray[np.float64]
Rounds = Generator[AsysqnRound, Any, None]
EVALUATION_SHARE = 0.25
"""At most about this share of a run's time goes into evaluations."""


class LabelledLoss(Protocol):
    """The loss behind the gate of the labels."""

    def derivative(self, requester: int | None, rows: RowsName, theta: Vector) -> Derivative:
        """∂L/∂θ on the rows of a step, paid for; of everybody's step where there is no requester."""


@dataclass(frozen=True)
class Clock:
    """Where synchronous parties stand: a function of the number of rounds alone."""

    steps: int = 0
    snapshots: int = 0
    steps_since: int = 0


@dataclass(frozen=True)
class Figures:
    """The ways out for figures on true labels."""

    training: Evaluation
    held_out: Mapping[str, tuple[int, Evaluation]] = field(default_factory=dict)
    """For each set of held-out rows how many there are, in the order in which they are watched."""

    def shown(self, k: int | None, problem: Problem, theta: Vector, labels: Vector, value: float) -> dict[str, float]:
        """What leaves of an evaluation. With noise, figures leave that a run which goes on measures again at the same
        k: those of a synchronous schedule."""
        trained = slice(None, problem.trained)
        if not self.training.is_exact and k is None:
            return {}
        metrics = self.training.release(k or 0, {"objective": value})
        if "objective" in metrics and problem.watch.optimum is not None:
            metrics["sub-optimality"] = metrics["objective"] - problem.watch.optimum
        if _are_classes(problem.labels):
            found = {"accuracy": accuracy(theta[trained], labels[trained])}
            metrics |= {f"training {name}": each for name, each in self.training.release(k or 0, found).items()}
        for target, reached in problem.watch.reached.items():
            metrics[f"rounds to {target:g}"] = float(reached)
        first = problem.trained
        for held_out, (rows, way_out) in self.held_out.items():
            part = slice(first, first + rows)
            found = way_out.release(k or 0, _held_out(problem, theta[part], labels[part]))
            metrics |= {f"{held_out} {name}": each for name, each in found.items()}
            first += rows
        return metrics


@dataclass
class Problem:
    """One run, as the coordinator sees it."""

    loss: LinearLoss
    estimator: Estimator
    regularisation: float
    snapshot_every: int
    synchronous: bool
    steps: int
    """Rounds of the run."""
    parties: Sequence[str]
    watched: Rows
    """Labels' rows of the watched θ, training rows first."""
    trained: int
    """How many of them are training rows."""
    labels: Vector
    """All labels, for the label holder's own eyes."""
    labelled_loss: LabelledLoss | None
    """Turns θ into slopes for the parties, where they have no labels."""
    stops: bool
    """Whether the run ends at its target."""
    evaluate_every: int
    checkpoint_every: int
    watch: Watch = field(default_factory=Watch)
    progress: dict[int, Progress] = field(default_factory=dict)
    """The newest word of each party."""
    figures: Figures = field(default_factory=lambda: Figures(Evaluation(0)))
    classes: Sequence[str] = ()
    """What labels mean."""
    weights: Vector | None = None
    """How much rows of each class count; None for alike."""
    measures: Measures | None = None
    """What is measured beside the usual figures."""

    @property
    def rounds(self) -> int:
        """Sums that were asked for by any party; barrier rounds where the schedule is synchronous."""
        calls = [progress.calls for progress in self.progress.values()]
        return max(self.watch.rounds, max(calls, default=0) if self.synchronous else sum(calls))

    @property
    def loop_seconds(self) -> float:
        """How long the parties' loops have run."""
        return max((progress.loop_seconds for progress in self.progress.values()), default=0.0)


def rounds(problem: Problem, done: int, observer: Observer) -> Rounds:
    """Every round of the run from round `done` + 1 on."""
    if problem.synchronous:
        yield from _synchronous(problem, done, observer)
    else:
        yield from _asynchronous(problem, observer)


def clock_after(problem: Problem, done: int) -> Clock:
    """The clock after `done` rounds."""
    clock = Clock()
    for _ in range(done):
        clock = _tick(problem, clock)
    return clock


def rows_at(problem: Problem, clock: Clock) -> RowsName:
    """The rows of the round that is due."""
    return next_rows(
        problem.estimator,
        problem.snapshot_every,
        snapshots=clock.snapshots,
        steps=clock.steps,
        steps_since=clock.steps_since,
    )


def _tick(problem: Problem, clock: Clock) -> Clock:
    if isinstance(rows_at(problem, clock), AllRows):
        return Clock(clock.steps, clock.snapshots + 1, 0)
    return Clock(clock.steps + 1, clock.snapshots, clock.steps_since + 1)


def _synchronous(problem: Problem, done: int, observer: Observer) -> Rounds:
    clock, pending, evaluated = clock_after(problem, done), None, -1
    k = done
    while k < problem.steps and not (problem.stops and problem.watch.met):
        rows = rows_at(problem, clock)
        theta = yield _round(pending, ThetaForward(rows))
        pending = _outcome(problem, rows, theta)
        clock, k = _tick(problem, clock), k + 1
        if _due(k, problem.evaluate_every):
            evaluate(problem, k, (yield _round(pending, Evaluate())), observer)
            pending, evaluated = None, k
        if _due(k, problem.checkpoint_every):
            yield _round(pending, Checkpoint(k))
            pending = None
    if evaluated != k:
        evaluate(problem, k, (yield _round(pending, Evaluate())), observer)
    yield _round(None, Checkpoint(k)) if k else _round(None, ReportAsk())
    yield _round(None, Finish())


def _asynchronous(problem: Problem, observer: Observer) -> Rounds:
    yield _round(None, ReportAsk())  # everybody answers before anybody asks
    yield _round(None, Start())
    next_evaluation, next_checkpoint = (
        _next(problem.rounds, problem.evaluate_every),
        _next(problem.rounds, problem.checkpoint_every),
    )
    before, pause = problem.rounds, 0.0
    while problem.rounds < problem.steps and not (problem.stops and problem.watch.met):
        yield _round(None, ReportAsk(), pause)
        pause = 0.0
        if next_evaluation is not None and problem.rounds >= next_evaluation:
            asked = problem.loop_seconds
            evaluate(problem, None, (yield _round(None, Evaluate())), observer)
            next_evaluation = _next(problem.rounds, problem.evaluate_every)
            pause = _pause_after(problem.loop_seconds - asked)
        if next_checkpoint is not None and problem.rounds >= next_checkpoint:
            yield _round(None, Checkpoint(problem.rounds))
            next_checkpoint = _next(problem.rounds, problem.checkpoint_every)
        due = [mark for mark in (next_evaluation, next_checkpoint, problem.steps) if mark is not None]
        pause += _pause_until(min(due), problem.rounds, before, problem.loop_seconds)
    yield _round(None, Halt())
    evaluate(problem, None, (yield _round(None, Evaluate())), observer)
    yield _round(None, Checkpoint(max(problem.rounds, 1)))
    yield _round(None, Finish())


def evaluate(problem: Problem, k: int | None, total: Vector, observer: Observer) -> None:
    """Compute the objective, and report it to the label holder."""
    theta, squared_norm = total[:-1], float(total[-1])
    labels = problem.labels[problem.watched]
    trained = slice(None, problem.trained)
    value = objective(
        problem.loss, theta[trained], labels[trained], problem.regularisation, squared_norm, problem.weights
    )
    done = problem.rounds if k is None else k
    problem.watch = observe(problem.watch, rounds=done, value=value)
    shown = problem.figures.shown(k, problem, theta, labels, value)
    observer(Report(done, {**party_progress(problem), **shown}))


def party_progress(problem: Problem) -> dict[str, float]:
    """What the parties say of themselves: counts, bytes, and the paper's utilisation of each (Section 6.3)."""
    parts = problem.progress.values()
    metrics = {
        "aggregation rounds": float(problem.rounds),
        "updates": float(sum(progress.updates for progress in parts)),
        "updates alone": float(sum(progress.updates_alone for progress in parts)),
        "peer bytes": float(sum(progress.peer_bytes for progress in parts)),
        "staleness": float(max((progress.staleness for progress in parts), default=0)),
    }
    for party, progress in sorted(problem.progress.items()):
        if progress.loop_seconds:
            name = problem.parties[party]
            metrics[f"utilisation {name}"] = min(1.0, progress.busy_seconds / progress.loop_seconds)
            metrics[f"updates {name}"] = float(progress.updates)
    return metrics


def _held_out(problem: Problem, theta: Vector, labels: Vector) -> dict[str, float]:
    found, measures = _figures(problem, theta, labels), problem.measures
    if measures is None or not len(theta):
        return found
    if _are_classes(problem.labels):
        found |= class_details(expit(theta)[:, None], labels > 0, problem.classes, measures)
    return found | intervals(lambda drawn: _figures(problem, theta[drawn], labels[drawn]), len(theta), measures)


def _figures(problem: Problem, theta: Vector, labels: Vector) -> dict[str, float]:
    found = {"loss": float(np.mean(problem.loss.value(theta, labels)))}
    if _are_classes(problem.labels):
        figures = classification_figures(expit(theta)[:, None], labels > 0)
        return {**found, "accuracy": accuracy(theta, labels), **figures}
    explained = 1.0 - float(np.mean((theta - labels) ** 2)) / float(np.var(labels))
    return {**found, "r2": explained, **regression_figures(theta, labels)}


def _are_classes(labels: Vector) -> bool:
    return set(np.unique(labels)) <= {-1.0, 1.0}


def _outcome(problem: Problem, rows: RowsName, theta: Vector) -> Outcome:
    if problem.labelled_loss is None:
        return OpenedTheta(theta)
    return problem.labelled_loss.derivative(None, rows, theta)


def _round(outcome: Outcome | None, ask: Any, pause_seconds: float = 0.0) -> AsysqnRound:
    release = outcome.label_release if isinstance(outcome, Derivative) else None
    return AsysqnRound(outcome, ask, release, pause_seconds=pause_seconds)


def _due(k: int, every: int) -> bool:
    return bool(every) and k % every == 0


def _next(rounds_done: int, every: int) -> int | None:
    return (rounds_done // every + 1) * every if every else None


def _pause_after(seconds: float) -> float:
    """A pause in proportion to the length of an evaluation, so that evaluations stay a small share of a run."""
    return min(max(seconds, 0.0) * (1.0 / EVALUATION_SHARE - 1.0), 1.0)


def _pause_until(mark: int, now: int, before: int, seconds: float) -> float:
    """About as long as the parties need to get to a mark, at the rate that they had in the seconds so far."""
    rate = (now - before) / max(seconds, 1e-3)
    return min(max((mark - now) / rate if rate > 0 else 0.05, 0.01), 0.5)


def replaced_watch(problem: Problem, **changes: Any) -> None:
    """Go on with a watch that was kept."""
    problem.watch = replace(problem.watch, **changes)
