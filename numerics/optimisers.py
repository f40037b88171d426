"""First-order updates of a party's own block, as pure functions."""

from dataclasses import dataclass
from typing import Protocol, Self

import torch
from torch import Tensor

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
class Moments:
    """Running means of the gradient and of its square."""

    first: Tensor
    second: Tensor
    count: int = 0

    @classmethod
    def zeros(cls, x: Tensor) -> Self:
        """Before the first step."""
        return cls(torch.zeros_like(x), torch.zeros_like(x))


def schedule(step: float, decay_from: float, k: int, steps: int) -> float:
    """The step size at iteration k of `steps` (from 1): constant, then linear to zero."""
    begin = decay_from * steps
    if k <= begin or steps <= begin:
        return step
    return step * max(0.0, (steps + 1 - k) / (steps + 1 - begin))


def descend(
    x: Tensor, gradient: Tensor, moments: Moments, optimiser: Optimiser, k: int, steps: int
) -> tuple[Tensor, Moments]:
    """One step of x against `gradient`."""
    if optimiser.clip is not None:
        gradient = gradient * torch.clamp(optimiser.clip / gradient.norm().clamp_min(1e-30), max=1.0)
    size = schedule(optimiser.step, optimiser.decay_from, k, steps)
    count = moments.count + 1
    if optimiser.kind == "adam":
        first = BETA_1 * moments.first + (1 - BETA_1) * gradient
        second = BETA_2 * moments.second + (1 - BETA_2) * gradient.square()
        corrected = first / (1 - BETA_1**count)
        scale = (second / (1 - BETA_2**count)).sqrt() + EPSILON
        return x - size * corrected / scale, Moments(first, second, count)
    first = optimiser.momentum * moments.first + gradient
    return x - size * first, Moments(first, moments.second, count)
