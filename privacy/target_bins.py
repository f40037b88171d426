"""Randomised response on bins: noise for the real-valued labels of a regression.

Real labels have no bound of their own, so the spec declares a range, which is public and never looked up in the data:
labels beyond it count as its ends. The range is cut by K points g_0 … g_{K−1}, evenly apart. A label y between two of
them is rounded to one or the other at random, so that its mean is y, and the point is sent through K-ary randomised
response. Whatever y is, each point comes out with a probability between q and p = e^ε·q: that is ε-differential
privacy, whatever the rounding. The target is the de-biased point

    t = (g − q·Σ_j g_j)/(p − q),    E[t | y] = y.

The gradient of a squared loss is linear in its target, so that training on t is training on y with noise of mean zero.
After Ghazi et al., Regression with label differential privacy, ICLR 2023, whose bins follow a prior of the labels.
# differs from the paper: no prior is estimated (that costs a part of ε); points are even, and their number is the one
# with the smallest variance over the range.

symbol · code
  K      · points
  p, q   · transition
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from parley.numerics.losses import Loss
from parley.privacy.accounting import RandomisedResponse, Release
from parley.privacy.label_mechanisms import RandomisedLabels
from parley.privacy.noise import WORD_RANGE, Words, WordSource

Array = NDArray[Any]
MOST_POINTS = 64
"""Points that are tried where a spec names none; more are never better at the ε that a spec may take."""


@dataclass(frozen=True)
class Bins:
    """The declared range of a regression's labels."""

    low: float
    high: float
    points: int | None = None
    """K; the number with the smallest variance if None."""


@dataclass(frozen=True)
class BinnedTargets:
    """De-biased targets of a regression, from randomised response on bins."""

    epsilon: float
    bins: Bins
    name: ClassVar[str] = "target_bins"

    @cached_property
    def classes(self) -> int:
        """K."""
        if self.bins.points is not None:
            return self.bins.points
        return min(range(2, MOST_POINTS + 1), key=lambda points: _variance(self.epsilon, points))

    @property
    def epsilon_per_release(self) -> float:
        """The declared ε."""
        return self.epsilon

    @property
    def event(self) -> Release:
        """K-ary randomised response."""
        return RandomisedResponse(self.epsilon, self.classes)

    @property
    def purpose(self) -> str:
        """The stream of this ε, range and number of points."""
        return f"label/{self.name}/{self.classes}/{self.bins.low!r}/{self.bins.high!r}/{self.epsilon!r}"

    @cached_property
    def grid(self) -> NDArray[np.float64]:
        """The points."""
        return np.linspace(self.bins.low, self.bins.high, self.classes)

    @cached_property
    def targets(self) -> NDArray[np.float64]:
        """What each point becomes once it is de-biased."""
        table = self._response.transition
        right, wrong = table[0, 0], table[1, 0]
        return np.asarray((self.grid - wrong * self.grid.sum()) / (right - wrong))

    def probabilities(self, labels: Array) -> NDArray[np.float64]:
        """P(point | label), a row for each label: what `noisy` does, up to 2^-64."""
        below, up = self._place(labels)
        rounded = np.zeros((below.size, self.classes))
        rows = np.arange(below.size)
        rounded[rows, below] = 1 - up
        rounded[rows, np.minimum(below + 1, self.classes - 1)] += up
        return np.asarray(rounded @ self._response.transition.T)

    def noisy_points(
        self, labels: Array, noise: WordSource, run: str, release: int, records: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The number of the point that stands for each label."""
        words = noise.words(self.purpose, run, release, records, 2)
        below, up = self._place(labels)
        goes_up = words[:, 1].astype(np.float64) < up * float(WORD_RANGE)
        rounded = np.minimum(below + goes_up, self.classes - 1)
        return self._response.noisy_classes(rounded, _Drawn(words), run, release, records)

    def noisy(
        self, labels: Array, noise: WordSource, run: str, release: int, records: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """De-biased targets, one column."""
        points = self.noisy_points(labels, noise, run, release, records)
        return self.targets[points][:, None].astype(np.float32)

    def training_loss(self, loss: Loss) -> Loss:
        """The plain loss: its gradient is linear in the target."""
        return loss

    def mean_variance(self) -> float:
        """Of a target, over labels that are even on the range."""
        return (self.bins.high - self.bins.low) ** 2 * _variance(self.epsilon, self.classes)

    @cached_property
    def _response(self) -> RandomisedLabels:
        return RandomisedLabels(self.epsilon, self.classes)

    def _place(self, labels: Array) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The point at or below each label, and the probability of the next one."""
        labels = np.clip(np.asarray(labels, dtype=np.float64).reshape(-1), self.bins.low, self.bins.high)
        place = (labels - self.bins.low) / (self.bins.high - self.bins.low) * (self.classes - 1)
        below = np.minimum(place.astype(np.int64), self.classes - 1)
        return below, place - below


@dataclass(frozen=True)
class _Drawn:
    """Words that were drawn already."""

    drawn: Words

    def words(self, purpose: str, run: str, release: int, records: NDArray[np.int64], count: int) -> Words:  # noqa: ARG002
        return self.drawn[:, :count]


def _variance(epsilon: float, points: int) -> float:
    """Of a target, for labels that are even on [0, 1]: E[t²] − E[y²]."""
    wrong = 1 / (np.exp(epsilon) + points - 1)
    span = wrong * (np.exp(epsilon) - 1)  # p − q
    grid = np.linspace(0, 1, points)
    targets = (grid - wrong * grid.sum()) / span
    # a label that is even on [0, 1] is rounded to an inner point with probability 1/(K−1), to an end with half of that
    rounded = np.full(points, 1 / (points - 1))
    rounded[[0, -1]] /= 2
    return float((span * rounded + wrong) @ targets**2 - 1 / 3)
