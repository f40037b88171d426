"""The lower problem at the coordinator: gradient steps, or Newton steps by conjugate gradients, on one batch.

Newton steps follow a y that x has moved away from, on batches that may have fewer rows than y has weights. Three things
keep that safe, and cost no round, since h is linear in y:

1. A warm start that fits the new rows badly is shrunk: h at λy is λh, so the best λ in [0, 1] is known from one sum.
2. The length of a step is searched on the sums of its ends.
3. Where the batch has n of the N lower rows, the step is cut to max(n/N, (1 + k)^−0.6), so y averages over batches. A
   full step to the solution of n rows with p weights costs p/2n of excess loss on all others, however exact it is; a
   part ρ of it ρ/(2 − ρ) of that.
"""

import math
from dataclasses import dataclass, field

import numpy as np

from parley.coordinator.bambi.course import RISE
from parley.coordinator.bambi.levels import Level, LossLevel
from parley.coordinator.bambi.problem import Diverged, Pending, Problem, Rounds, asked, finite, shaped
from parley.numerics.arrays import Array
from parley.numerics.limbs import from_limbs
from parley.protocols.bambi.columns import shortened
from parley.protocols.bambi.messages import CurvatureForward, CurvatureStep, Gradient, LinearSystem, LowerForward
from parley.protocols.bambi.settings import NEWTON_REPEATS

SHORTEST_STEP = 2.0**-12
AVERAGING = 0.6
"""How fast the part of a Newton step on a batch shrinks: between ½, where noise stays, and 1, where y freezes."""
WARM_STARTS = tuple(np.linspace(1.0, 0.0, 21))
LARGEST_LOGIT = 2.0**13
"""No classifier needs larger ones; far below the limit of a secure sum, so that divergence is called by its name."""


@dataclass
class Lower:
    """The lower problem of one upper iteration, as the coordinator follows it."""

    problem: Problem
    k: int
    target_value: float = np.inf
    """What the objective came to in the iteration before."""
    h: Array = field(default_factory=lambda: np.empty(0))
    begun: float = np.inf
    """The loss of the batch before the first step."""
    objective: float = np.inf
    """Loss and penalty after the last step."""
    solution: Array = field(default_factory=lambda: np.empty(0))
    """Σ_m S_m d_m of the last linear system."""
    level: Level = field(init=False)
    """The objective on the batch of the last round."""
    _penalty: float = 0.0

    def __post_init__(self) -> None:
        self.level = LossLevel(self.problem.loss, np.empty(0))

    @property
    def loss(self) -> float:
        """The lower loss of the last batch."""
        return self.level.value(self.h)

    def solve(self, steps: int, pending: Pending | None) -> Rounds:
        """The steps of a spec; Newton's are repeated while they leave y worse off than it was."""
        if self.problem.settings.lower.solver == "sgd":
            for t in range(steps):
                pending = yield from self.gradient(t, pending)
            return pending
        pending = yield from self._confirm(0, pending)
        for t in range(1, steps + NEWTON_REPEATS + 1):
            if t > steps and self.objective <= RISE * self.target_value:
                break
            rounds = self.problem.settings.implicit.newton_rounds
            pending = yield from conjugate_gradients(self, "newton", rounds, pending)
            pending = yield from self._confirm(t, pending)
        return pending

    @property
    def _part(self) -> float:
        """ρ, the longest Newton step: all of it on all rows or before x moves, less and less on batches."""
        rows = self.problem.plan.rows.lower
        share = len(self.problem.plan.lower_rows(self.k, 0)) / len(rows)
        if not self.problem.settings.lower.averaging or self.k == 0:
            return 1.0
        return max(share, math.pow(1 + self.k, -AVERAGING))

    def gradient(self, t: int, pending: Pending | None) -> Rounds:
        """θ of one gradient step on every trajectory."""
        rows, release = self.problem.plan.lower_rows(self.k, t), self.problem.plan.lower_release(self.k, t)
        h = shaped(self.problem, (yield asked(pending, LowerForward(self.k, t))), len(rows), stacked=True)
        _check_size(self.problem, self.k, t, h)
        self.h, self.level = h[0], self.problem.level("lower", self.k, rows, release)
        if t == 0:
            self.begun = self.loss
        return Pending(Gradient(theta=shortened(self.level.gradient(h), self.problem.columns)), release)

    def _confirm(self, t: int, pending: Pending | None) -> Rounds:
        """Choose how much to keep of y, or of the last Newton step, and send θ there.

        The regulariser is a quadratic whose coefficients are two secure scalars. The target is noisy: no new label is
        read.
        """
        rows, release = self.problem.plan.lower_rows(self.k, t), self.problem.plan.lower_release(self.k, t)
        sums = finite((yield asked(pending, LowerForward(self.k, t))))
        h = shaped(self.problem, sums[:-2], len(rows))
        penalty, step_penalty = map(float, sums[-2:])
        self.level = self.problem.level("lower", self.k, rows, release)
        length = self._shrink(h, penalty) if t == 0 else self._search(h, penalty, step_penalty)
        _check_size(self.problem, self.k, t, self.h)
        self.objective = self.loss + self._penalty
        theta = shortened(self.level.gradient(self.h), self.problem.columns)[None]
        return Pending(Gradient(theta=theta, step_length=length), release)

    def _shrink(self, h: Array, penalty: float) -> float:
        """λ: the part of the warm start that fits these rows best; 0 begins anew."""
        self.h = h
        self.begun = self.loss

        def objective(part: float) -> float:
            return self.level.value(_scaled(h, part)) + part**2 * penalty

        best = float(min(WARM_STARTS, key=objective))
        self.h, self._penalty = _scaled(h, best), best**2 * penalty
        return best

    def _search(self, h: Array, penalty: float, step_penalty: float) -> float:
        """The length of the last Newton step, whose ends have these sums."""
        start, old = self.h, self._penalty
        slope = penalty - old - step_penalty

        def reached(length: float) -> tuple[Array, float]:
            return start + _scaled(h - start, length), old + length * slope + length**2 * step_penalty

        def objective(length: float) -> float:
            between, its_penalty = reached(length)
            return self.level.value(between) + its_penalty

        length = self._part
        while objective(length) > objective(0.0) and length > SHORTEST_STEP:
            length /= 2
        self.h, self._penalty = reached(length)
        return length


def conjugate_gradients(
    lower: Lower, system: LinearSystem, iterations: int, pending: Pending | None, scale: float = 1.0
) -> Rounds:
    """Solve H d = r with one round trip for each product (after Chronopoulos and Gear).

    z·Hz = a·c + Σ 2γ z·z with a = Σ S_m z_m and c = L''(h) a, so α and β are known as soon as a is, and travel with c.
    `a` of the solution is followed here, so the parties get L''(h) Σ S_m v_m without another round; and with it how
    much of its step x may take.
    """
    problem, k, h, level = lower.problem, lower.k, lower.h, lower.level
    alpha = gamma = first = 0.0
    image = solution = np.zeros_like(h)
    for iteration in range(iterations):
        sums = finite((yield asked(pending, CurvatureForward(k, system, iteration))))
        a = shaped(problem, sums[:-4], len(h))
        penalised, gamma_now = from_limbs(sums[-4:-2], sums[-2:])
        product = level.curvature_product(h, a)
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
        finished = level.curvature_product(h, solution) if last and system == "adjoint" else None
        sent = None if finished is None else shortened(finished, problem.columns)
        step = CurvatureStep(shortened(product, problem.columns), alpha, beta, sent, scale)
        pending = Pending(step, level.release)
        if last:
            break
    lower.solution = solution
    return pending


def _scaled(h: Array, factor: float) -> Array:
    """In the dtype of h."""
    return np.asarray(h * h.dtype.type(factor))


def _check_size(problem: Problem, k: int, t: int, h: Array) -> None:
    """Refuse to go on where h has grown beyond what any classifier needs."""
    if problem.settings.loss == "squared" or np.abs(h).max(initial=0.0) <= LARGEST_LOGIT:
        return
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
