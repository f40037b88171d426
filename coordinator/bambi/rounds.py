"""BAMBI at the coordinator (the paper's Algorithm 1, server side, corrected).

Symbol map:

    paper     code             shape                        held by       leaves?
    h         sum of a round   (1+Q, batch, classes − 1)   coordinator   no
    b, ỹ      labels.target    (batch, classes)             coordinator   ỹ only, after the gate
    θ, ϑ      Gradient         (…, batch, classes − 1)      coordinator   yes, made from ỹ
    s_j       Coefficients     (Q,)                         coordinator   yes, a sum over parties
    L''(h) a  CurvatureStep    (batch, classes − 1)         coordinator   yes, holds no label

A run is one generator: it yields rounds and is sent the sums. What an outcome says travels with the next ask, so a
step costs one round trip. Between upper iterations the coordinator remembers k and how the run is going (`Course`).
"""

from collections.abc import Generator

import numpy as np

from parley.coordinator.bambi.course import Course, above_floor
from parley.coordinator.bambi.lower_solve import Lower, conjugate_gradients
from parley.coordinator.bambi.problem import Pending, Problem, Rounds, asked, finite, shaped
from parley.coordinator.programs import Observer, Report, due
from parley.numerics.arrays import Vector
from parley.protocols.bambi.batches import envelope
from parley.protocols.bambi.columns import shortened
from parley.protocols.bambi.messages import Coefficients, DirectionalForward, Gradient, Round, RowsForward, UpperForward
from parley.protocols.rounds import Checkpoint, Finish
from parley.spec.events import RunWarning

EVALUATION_ROWS = 4096
REMEDY = (
    "halve train.upper.optimiser.step, or take larger batches (train.upper.batch, train.lower.batch) or a larger "
    "train.regularisation"
)


SAME_ROWS = RunWarning(
    "same rows at both levels",
    "with `split.upper: lower` the indirect term of the hyper-gradient vanishes at the lower solution",
    "take `hypergradient: local`, which gets further in some dozen exchanges; or give the upper level rows of its own",
)


class BilevelRounds:
    """The rounds of one run."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self.course = Course()

    def rounds(self, done: int, observe: Observer) -> Generator[Round, Vector, None]:
        """Every round from upper iteration `done` + 1 on; `done` is the checkpoint that the parties begin from."""
        problem, settings = self._problem, self._problem.settings
        pending: Pending | None = None
        if done == 0:
            self.course = Course()
            if problem.own is not None:
                problem.own.begin()
        if done == 0 and settings.lower.warmup_steps and settings.problem != "joint":
            pending = yield from Lower(problem, 0).solve(settings.lower.warmup_steps, pending)
        for k in range(done + 1, settings.upper.steps + 1):
            pending = yield from self._iteration(k, pending, observe)
            if due(k, problem.evaluate_every) and k < settings.upper.steps:
                pending = yield from evaluation(problem, k, pending, observe)
            if due(k, problem.checkpoint_every) or self._keeps_variables(k):
                yield asked(pending, Checkpoint(k))
                pending = None
        if settings.lower.final_steps and settings.problem != "joint":
            pending = yield from Lower(problem, settings.upper.steps + 1).solve(settings.lower.final_steps, pending)
        pending = yield from evaluation(problem, settings.upper.steps, pending, observe)
        yield asked(pending, Finish())

    @property
    def _has_one_set_of_rows(self) -> bool:
        """Whether local rounds would learn the same network."""
        settings, rows = self._problem.settings, self._problem.plan.rows
        implicit = settings.problem == "hyper_representation" and settings.hypergradient == "implicit"
        return implicit and settings.embeds and np.array_equal(rows.lower, rows.upper)

    def _keeps_variables(self, k: int) -> bool:
        """The last variables of one's own problem are kept with a checkpoint, where there are any."""
        problem = self._problem
        return problem.own is not None and problem.checkpoint_every > 0 and k == problem.settings.upper.steps

    def _iteration(self, k: int, pending: Pending | None, observe: Observer) -> Rounds:
        problem, settings = self._problem, self._problem.settings
        if settings.problem == "joint":
            return (yield from self._upper(k, pending, observe, {}))
        lower = Lower(problem, k, self.course.solved)
        pending = yield from lower.solve(settings.lower.steps, pending)
        if settings.hypergradient == "implicit" and settings.lower.solver == "sgd":
            pending = yield from lower.gradient(settings.lower.steps, pending)
        self.course = self.course.lower_solved(above_floor(lower.level.floor, lower.begun), lower.objective)
        pending = yield from self._upper(k, pending, observe, {"lower loss": lower.loss})
        if envelope(settings, problem.plan.rows):
            return pending
        if settings.hypergradient == "implicit":
            rounds, scale = settings.implicit.rounds, self.course.scale
            pending = yield from conjugate_gradients(lower, "adjoint", rounds, pending, scale)
            if problem.own is not None:
                problem.own.implicit_step(k, lower.h, lower.solution, scale)
            return pending
        if settings.hypergradient == "zeroth_order":
            sums = finite((yield asked(pending, DirectionalForward(k))))
            if problem.own is not None:
                problem.own.zeroth_order_step(k, sums)
            return Pending(Coefficients(tuple(float(s) for s in sums)))
        return pending

    def _upper(self, k: int, pending: Pending | None, observe: Observer, figures: dict[str, float]) -> Rounds:
        """ϑ on the rows of the upper level, and what it tells of how the run is going."""
        problem, plan = self._problem, self._problem.plan
        rows, release = plan.upper_rows(k), plan.release(k, plan.releases_per_iteration - 1)
        h = shaped(problem, (yield asked(pending, UpperForward(k))), len(rows))
        level = problem.level("upper", k, rows, release)
        if problem.own is not None:
            figures |= problem.own.upper_seen(h)
        loss = level.value(h)
        self.course, warning = self.course.seen(above_floor(level.floor, loss)).judged(REMEDY)
        if k == 1 and self._has_one_set_of_rows:
            warning = SAME_ROWS
        observe(Report(k, {"upper loss": loss, **figures}, warning))
        scale = self.course.scale if envelope(problem.settings, plan.rows) else 1.0
        vartheta = shortened(level.gradient(h), problem.columns)
        return Pending(Gradient(vartheta=vartheta, step_length=scale), release)


def evaluation(problem: Problem, k: int, pending: Pending | None, observe: Observer) -> Rounds:
    """Score the held-out rows."""
    found: dict[str, float] = {}
    for held_out, rows in problem.plan.rows.held_out.items():
        parts = []
        for first in range(0, len(rows), EVALUATION_ROWS):
            count = min(EVALUATION_ROWS, len(rows) - first)
            sums = yield asked(pending, RowsForward("test" if held_out == "test" else "validation", first, count))
            parts.append(shaped(problem, sums, count))
            pending = None
        scores = problem.labels.score(rows, np.concatenate(parts))
        way_out = problem.evaluations.get(held_out)
        shown = scores if way_out is None else way_out.release(k, scores)
        found |= {f"{held_out} {name}": value for name, value in shown.items()}
    if found:
        observe(Report(k, found))
    return pending
