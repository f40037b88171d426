"""First-order updates of a party's own block, as pure functions."""

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
from torch import Tensor

from parley.numerics.arrays import Array, Vector

Values = TypeVar("Values", Tensor, Array, Vector)
"""torch's for what a network is differentiated by, numpy's for what is linear: an operation of it costs less."""

BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8


class Optimiser(Protocol):
    """The settings that a step needs."""

    @property
    def kind(self) -> str:
        """`sgd` or `adam`."""

    @property
    def step(self) -> float:
        """Step size before the schedule."""

    @property
    def momentum(self) -> float:
        """Heavy-ball momentum of `sgd`."""

    @property
    def decay_from(self) -> float:
        """Share of the run after which the step falls linearly to zero."""

    @property
    def clip(self) -> float | None:
        """Largest norm of a gradient."""


@dataclass(frozen=True)
class ConstantStep:
    """An optimiser whose steps keep their size."""

    kind: str
    step: float
    momentum: float = 0.0
    decay_from: float = 1.0
    clip: float | None = None


@dataclass(frozen=True)
class Moments(Generic[Values]):
    """Running means of the gradient and of its square."""

    first: Values
    second: Values
    count: int = 0

    @classmethod
    def zeros(cls, x: Values) -> "Moments[Values]":
        """Before the first step."""
        return Moments(x * 0, x * 0)

    def repeated(self: "Moments[Array]", copies: int) -> "Moments[Array]":
        """One for each of so many trajectories that go on from here."""
        return Moments(np.repeat(self.first[None], copies, 0), np.repeat(self.second[None], copies, 0), self.count)

    def of(self: "Moments[Array]", trajectory: int) -> "Moments[Array]":
        """Those of one trajectory."""
        return Moments(self.first[trajectory], self.second[trajectory], self.count)


def schedule(step: float, decay_from: float, k: int, steps: int) -> float:
    """The step size at iteration k of `steps` (from 1): constant, then linear to zero."""
    begin = decay_from * steps
    if k <= begin or steps <= begin:
        return step
    return step * max(0.0, (steps + 1 - k) / (steps + 1 - begin))


def clipped(gradient: Values, longest: float | None) -> Values:
    """A gradient no longer than `longest`."""
    if longest is None:
        return gradient
    norm = float((gradient * gradient).sum()) ** 0.5
    short: Values = gradient * min(1.0, longest / max(norm, 1e-30))
    return short


def descend(
    x: Values, gradient: Values, moments: Moments[Values], optimiser: Optimiser, k: int, steps: int
) -> tuple[Values, Moments[Values]]:
    """One step of x against `gradient`, which is clipped first."""
    return move(x, clipped(gradient, optimiser.clip), moments, optimiser, schedule_of(optimiser, k, steps))


def schedule_of(optimiser: Optimiser, k: int, steps: int) -> float:
    """The step size of an optimiser at iteration k."""
    return schedule(optimiser.step, optimiser.decay_from, k, steps)


def move(
    x: Values, gradient: Values, moments: Moments[Values], optimiser: Optimiser, size: float
) -> tuple[Values, Moments[Values]]:
    """One step of the given size against a gradient as it is."""
    count = moments.count + 1
    if optimiser.kind == "adam":
        first = BETA_1 * moments.first + (1 - BETA_1) * gradient
        second = BETA_2 * moments.second + (1 - BETA_2) * (gradient * gradient)
        corrected = first / (1 - BETA_1**count)
        scale = (second / (1 - BETA_2**count)) ** 0.5 + EPSILON
        return x - size * corrected / scale, Moments(first, second, count)
    first = optimiser.momentum * moments.first + gradient
    return x - size * first, Moments(first, moments.second, count)


class AdamInPlace:
    """Many steps of Adam on one vector: `move` without a new array for every operation."""

    def __init__(self, x: Vector, moments: Moments[Vector], sizes: Vector) -> None:
        self.x = x.copy()
        self._first, self._second, self._count = moments.first.copy(), moments.second.copy(), moments.count
        self._sizes, self._scratch = sizes, np.empty_like(x)

    @property
    def moments(self) -> Moments[Vector]:
        """As of the last step."""
        return Moments(self._first, self._second, self._count)

    def step(self, gradient: Vector, scale: float) -> None:
        """Move every entry by its own size times `scale`."""
        self._count += 1
        first, second, scratch = self._first, self._second, self._scratch
        first *= BETA_1
        np.multiply(gradient, 1 - BETA_1, out=scratch)
        first += scratch
        second *= BETA_2
        np.multiply(gradient, gradient, out=scratch)
        scratch *= 1 - BETA_2
        second += scratch
        np.divide(second, 1 - BETA_2**self._count, out=scratch)
        np.sqrt(scratch, out=scratch)
        scratch += EPSILON
        np.divide(first, scratch, out=scratch)
        scratch *= self._sizes
        scratch *= scale / (1 - BETA_1**self._count)
        self.x -= scratch
