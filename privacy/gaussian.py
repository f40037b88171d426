"""The Gaussian mechanism: what it costs, exactly, and noise on a grid that a computer can draw.

B. Balle and Y.-X. Wang, "Improving the Gaussian Mechanism for Differential Privacy", ICML 2018, Theorem 8: a release
of sensitivity Δ under N(0, σ²) noise in each coordinate is (ε, δ)-DP if and only if

    δ ≥ Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ),   μ = Δ/σ.

Releases compose to μ² = Σ μ_i², also where later ones are chosen after earlier ones were seen, as long as the sum stays
below a bound that is fixed beforehand (A. Smith and A. Thakurta, "Fully adaptive composition for Gaussian differential
privacy", 2022): so an account that refuses what would pass its budget may read ε off the sum.

Noise in floating point is not Gaussian, and its gaps give values away. Here a value stands on a grid of σ/1024, and
to it is added a Gaussian that was rounded to the grid: the same as rounding value + noise, hence post-processing of the
very mechanism above. The rounded Gaussian is drawn by its distribution function from 64-bit words; what the table's
rounding changes is a distance in total variation, t for each coordinate, and costs (1 + e^ε)·t of δ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr

from parley.privacy.noise import WORD_RANGE, EpsilonOutOfRange, Words

STEPS = 1024
"""Steps of the noise grid in one standard deviation."""
DISTANCE = 2.0**-48
"""Total variation between the table's noise and a rounded Gaussian, at most, for one coordinate."""

_REACH = 8.6  # in standard deviations: further out an atom has less mass than one word; the last one carries the tail
_HEADROOM = 1.0 + 1e-9  # what the functions of this module may round


def gaussian_delta(epsilon: float, ratio: float) -> float:
    """δ of one release at ε, for μ = Δ/σ (from above)."""
    if ratio == 0:
        return 0.0
    within = float(log_ndtr(ratio / 2 - epsilon / ratio))
    beyond = epsilon + float(log_ndtr(-ratio / 2 - epsilon / ratio))
    return -math.exp(within) * math.expm1(min(beyond - within, 0.0)) * _HEADROOM


def gaussian_epsilon(ratio: float, delta: float, distance: float = 0.0) -> float:
    """The smallest ε at δ, for μ and noise that is `distance` away from a Gaussian; infinite if there is none."""
    if ratio == 0 and distance == 0:
        return 0.0
    if not 0 < delta < 1 or not math.isfinite(ratio):
        return math.inf

    def holds(epsilon: float) -> bool:
        return gaussian_delta(epsilon, ratio) + (1 + math.exp(epsilon)) * distance <= delta

    high = 1.0
    while not holds(high):
        high *= 1.25
        if high > 500:  # e^ε leaves the floats soon after, and such an ε says nothing
            return math.inf
    low = 0.0
    if holds(low):
        return 0.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def gaussian_ratio(epsilon: float, delta: float, distance: float = 0.0) -> float:
    """The largest μ whose release is (ε, δ)-DP.

    Raises:
        EpsilonOutOfRange: if no noise on the grid keeps to these figures.
    """
    if not 0 < epsilon < math.inf or not 0 < delta < 1:
        raise EpsilonOutOfRange(f"Gaussian noise takes epsilon > 0 and 0 < delta < 1, not {epsilon} and {delta}.")
    room = delta - (1 + math.exp(min(epsilon, 500.0))) * distance
    if room <= delta / 2:
        raise EpsilonOutOfRange(
            f"The grid of the noise leaves no room for epsilon {epsilon:g} at delta {delta:g} in that many columns: "
            "lower epsilon, raise delta, or take fewer columns."
        )
    low, high = 0.0, 1.0
    while gaussian_delta(epsilon, high) <= room:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian_delta(epsilon, middle) <= room else (low, middle)
    return low


@dataclass(frozen=True, eq=False)
class GridNoise:
    """Noise in steps of a grid, drawn by inverting its distribution function."""

    masses: Words = field(repr=False)
    """Mass of −M … M in units of 2^-64; they sum to 2^64."""
    bounds: Words = field(repr=False)

    @property
    def reach(self) -> int:
        """M, in steps."""
        return (self.masses.size - 1) // 2

    def draw(self, words: Words) -> NDArray[np.int64]:
        """One number of steps for each word."""
        return np.asarray(np.searchsorted(self.bounds, words, side="right") - self.reach, dtype=np.int64)


@cache
def rounded_gaussian() -> GridNoise:
    """N(0, 1) rounded to multiples of 1/1024."""
    reach = math.ceil(_REACH * STEPS)
    x, h = np.arange(1, reach) / STEPS, 1 / STEPS
    # The mass between x − h/2 and x + h/2 by the density's Taylor series: a difference of two values of Φ would lose
    # more digits than the distance allows. The next term is below 1e-18.
    series = 1 + (x**2 - 1) * h**2 / 24 + (x**4 - 6 * x**2 + 3) * h**4 / 1920
    atoms = np.exp(-(x**2) / 2) * (h / math.sqrt(2 * math.pi)) * series
    return grid_noise(np.append(atoms, ndtr(-(reach - 0.5) * h)))


def grid_noise(side: NDArray[np.float64]) -> GridNoise:
    """Noise whose masses of 1, 2, … M steps are `side`, the same on the other side, and what is left at 0."""
    half = np.rint(side * float(WORD_RANGE)).astype(np.uint64)
    middle = WORD_RANGE - 2 * int(half.sum())
    masses = np.concatenate([half[::-1], np.array([middle], np.uint64), half])
    return GridNoise(masses, np.cumsum(masses, dtype=np.uint64)[:-1])
