"""Local rounds of BAMBI at the coordinator: it opens the sum of an exchange and paces what the parties do alone.

Both are chosen from how the joint loss fell since the last exchange on the same rows, so from values that are released
anyway. Where it falls by much, parties can do most of the work alone: they make many steps, and the next exchange is on
new rows. Where it falls by little, what one party should do depends on the others: they make few steps, stay with the
rows, and go on along their last two moves as far as the sum says is best (conjugate gradients, in effect).
"""

import json
from collections.abc import Generator
from dataclasses import asdict, dataclass, replace
from itertools import pairwise

import numpy as np

from parley.coordinator.bambi.problem import Pending, Plan, Problem, asked, shaped
from parley.coordinator.bambi.rounds import evaluation
from parley.coordinator.programs import Observer, Report, due
from parley.numerics.arrays import Array, Vector
from parley.numerics.combinations import best_combination
from parley.numerics.losses import noise_floor, noise_share
from parley.protocols.bambi import batches
from parley.protocols.bambi.columns import reduced
from parley.protocols.bambi.messages import LocalForward, LocalWork, Round
from parley.protocols.rounds import Checkpoint, Finish
from parley.spec.rows import Rows

FAST_FALL, SLOW_FALL = 0.25, 0.1
"""Relative falls of the joint loss between two exchanges: local work pays; what is missing is talk."""
MOVES = 2
NOISY_EPOCHS = 20
"""Passes of a whole run that even the noisiest labels are worth."""
LATEST = 0.95
"""Steps do not fall below a twentieth of their size."""
WEIGHTS = (-1.0, 3.0)
"""Smallest and largest weight of an earlier move."""


class LocalPlan(Plan):
    """Labels are released once for each batch, however many exchanges are on it."""

    @property
    def releases(self) -> int:
        """One for each batch."""
        return batches.local_batches(self.settings, self.rows)

    def released_rows(self, release: int) -> Rows:
        """The batch of that number."""
        return batches.local_rows(self.settings, self.rows, self.seed, release)


@dataclass(frozen=True)
class Pace:
    """What the coordinator remembers between two exchanges."""

    k: int = 0
    """Exchanges that are done."""
    batch: int = 0
    """Rows of the next one."""
    steps: int = 0
    """K of the last one; 0 before the first."""
    epochs: float = 0.0
    """Passes that the parties have made over the rows of exchanges."""
    value: float = 0.0
    """The joint loss at the last exchange."""
    trail: tuple[Array, ...] = ()
    """The sums of the last exchanges on the rows of the next one, the newest first; none where those are new."""

    def encoded(self) -> bytes:
        """For a checkpoint: numbers, then arrays."""
        kept = {"dtype": str(self.trail[0].dtype), "shape": self.trail[0].shape} if self.trail else {}
        numbers = asdict(replace(self, trail=())) | {"trail": len(self.trail)} | kept
        return b"\n".join([json.dumps(numbers).encode(), b"".join(h.tobytes() for h in self.trail)])

    @classmethod
    def decoded(cls, content: bytes) -> "Pace":
        """From a checkpoint."""
        line, _, data = content.partition(b"\n")
        numbers = json.loads(line)
        count, dtype, shape = numbers.pop("trail"), numbers.pop("dtype", "f4"), numbers.pop("shape", (0,))
        return cls(**numbers, trail=tuple(np.frombuffer(data, dtype).reshape(count, *shape)) if count else ())


class LocalRounds:
    """The rounds of one run."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self.pace = Pace()

    def rounds(self, done: int, observe: Observer) -> Generator[Round, Vector, None]:
        """Every round from exchange `done` + 1 on."""
        problem = self._problem
        pending: Pending | None = None
        if done == 0:
            self.pace = Pace()
        while not self._over:
            pending = yield from self._exchange(pending, observe)
            k = self.pace.k
            if due(k, problem.evaluate_every) and not self._over:
                pending = yield from evaluation(problem, k, pending, observe)
            if due(k, problem.checkpoint_every):
                yield asked(pending, Checkpoint(k))
                pending = None
        pending = yield from evaluation(problem, self.pace.k, pending, observe)
        yield asked(pending, Finish())

    @property
    def _over(self) -> bool:
        problem = self._problem
        return self.pace.k >= problem.settings.local.exchanges or self.pace.epochs >= passes(problem)[1]

    def _exchange(self, pending: Pending | None, observe: Observer) -> Generator[Round, Vector, Pending]:
        problem, release = self._problem, self.pace.batch
        rows = problem.plan.released_rows(release)
        sums = yield asked(pending, LocalForward(self.pace.k + 1, release))
        h = shaped(problem, sums, len(rows))
        target = problem.labels.target(release, rows)
        work, self.pace = decide(problem, self.pace, h, target)
        losses = {"upper loss": self.pace.value, "lower loss": self.pace.value, "local steps": float(work.steps)}
        observe(Report(self.pace.k, losses))
        return Pending(work, release)


def decide(problem: Problem, pace: Pace, h: Array, target: Array) -> tuple[LocalWork, Pace]:
    """How far the parties go on their own, from where, and on which rows the next exchange is."""
    settings, local = problem.settings, problem.settings.local
    per_pass = batches.steps_of_a_pass(settings, len(h))
    in_a_row, in_all = passes(problem)
    most = max(local.least_steps, in_a_row * per_pass)
    value = problem.loss.value(h, target)
    fall = relative_fall(pace.value, value, noise_floor(problem.loss)) if pace.trail else None
    steps = most if pace.steps == 0 else next_steps(pace.steps, fall, local.least_steps, most)
    weights: tuple[float, ...] = ()
    start = h
    if fall is not None and fall < FAST_FALL:
        trail = (h, *pace.trail)
        moves = [newer - older for newer, older in pairwise(trail)]
        best = np.clip(best_combination(problem.loss, h, moves, target), *WEIGHTS)
        found = best * min(1.0, 1.0 - fall / FAST_FALL)  # the faster it falls by itself, the less there is to help
        weights = tuple(float(weight) for weight in found)
        start = h + np.tensordot(found, np.stack(moves), 1).astype(h.dtype)
    scale = 1.0 - noise_share(problem.loss) * min(pace.epochs / in_all, LATEST)
    advances = problem.plan.releases > 1 and pace.k > 0 and (fall is None or fall >= SLOW_FALL)
    work = LocalWork(reduced(start, problem.columns), sent_labels(target, problem.outputs), steps, weights, scale)
    return work, Pace(
        k=pace.k + 1,
        batch=(pace.batch + 1) % problem.plan.releases if advances else pace.batch,
        steps=steps,
        epochs=pace.epochs + steps / per_pass,
        value=value,
        trail=() if advances else (h, *pace.trail)[:MOVES],
    )


def passes(problem: Problem) -> tuple[int, int]:
    """Most passes over the rows of an exchange in a row, and in the whole run.

    What a party learns of noisy labels in many passes over the same rows is their noise: the larger its share of the
    loss, the fewer there are, the more exchanges on new rows in their stead, and the smaller the steps towards the end.
    """
    local, kept = problem.settings.local, 1.0 - noise_share(problem.loss)
    return max(1, round(local.epochs * kept)), min(
        local.total_epochs, max(NOISY_EPOCHS, round(local.total_epochs * kept))
    )


def relative_fall(before: float, now: float, floor: float) -> float:
    """How much of what was left of the loss is gone; noise of labels leaves a floor that no model gets below."""
    left = before - floor
    return (before - now) / left if left > 0 else FAST_FALL


def next_steps(steps: int, fall: float | None, least: int, most: int) -> int:
    """K: twice as many where the loss falls fast, half as many where it hardly falls."""
    if fall is not None and fall > FAST_FALL:
        steps *= 2
    if fall is not None and fall < SLOW_FALL:
        steps //= 2
    return min(max(steps, least), most)


def sent_labels(target: Array, outputs: int) -> Array:
    """ỹ in the fewest bytes: a class for each row where every row names one, else the rows."""
    binary = np.isin(target, (0, 1)).all()
    if outputs == 1 and binary:
        return np.asarray(target[:, 0], np.uint8)
    if outputs > 1 and binary and (target.sum(axis=1) == 1).all():
        return np.asarray(target.argmax(axis=1), np.uint8 if outputs <= 256 else np.uint32)
    return target
