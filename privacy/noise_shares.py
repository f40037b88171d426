"""Noise that the parties of a secure sum draw together: each adds a share, and only the sum of all shares is seen.

P. Kairouz, Z. Liu and T. Steinke, "The Distributed Discrete Gaussian Mechanism for Federated Learning with Secure
Aggregation", ICML 2021. Values and shares stand on one grid, so the sum opens to

    Σ values + Σ shares,   a share: discrete Gaussian of scale σ in each coordinate.

Whoever knows the shares of all but h parties still faces h of them, whose sum is a discrete Gaussian of scale √h·σ but
for e^(−10⁷) (Theorem 1 there, at σ of 1024 steps or more). A record that moves the sum by Δ in Euclidean norm then
costs Δ²/(2hσ²) of zero-concentrated privacy (Canonne, Kamath and Steinke, 2020): GaussianSum of ratio Δ/(√h·σ).

The grid's step is a power of two: the ring of the secure sum holds its multiples exactly, so nothing rounds after the
noise was added.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from parley.privacy.accounting import GaussianSum
from parley.privacy.gaussian import DISTANCE, STEPS, GridNoise, grid_noise
from parley.privacy.noise import KeyedNoise, Words

Vector = NDArray[np.float64]


class GridTooFine(ValueError):
    """The ring of the secure sum has too few digits for the noise."""


@dataclass(frozen=True)
class NoiseShare:
    """One party's share of the noise, and the grid that values stand on."""

    sensitivity: float
    """Δ: how far one record moves the sum at most."""
    multiplier: float
    """Noise of the honest parties together, in units of Δ: the larger, the smaller ε."""
    honest: int
    """h: how many parties keep their share to themselves, this one among them."""

    @property
    def scale(self) -> float:
        """σ of one share."""
        return self.sensitivity * self.multiplier / math.sqrt(self.honest)

    @property
    def step(self) -> float:
        """The grid's step, a power of two: σ is 1024 to 2048 of them."""
        return 2.0 ** math.floor(math.log2(self.scale / STEPS))

    def event(self, size: int) -> GaussianSum:
        """What one sum of `size` numbers costs a record that is in it."""
        return GaussianSum(1 / self.multiplier, self.honest * size * DISTANCE)

    def check(self, fraction_bits: int) -> None:
        """Refuse a ring that would round the grid.

        Raises:
            GridTooFine: if it has too few digits after the point.
        """
        if self.step < 2.0**-fraction_bits:
            raise GridTooFine(
                f"a ring with {fraction_bits} digits after the point would round noise of scale {self.scale:.3g}: take "
                "`aggregation: {ring_bits: 64}`, a larger clip or more noise"
            )

    def cut(self, contributions: Vector) -> Vector:
        """Records' contributions, each number cut off towards 0 to the grid: none gets longer."""
        return np.asarray(np.trunc(contributions / self.step) * self.step)

    def summed(self, contributions: Vector) -> Vector:
        """The sum of records' contributions (records × size), each cut off to the grid."""
        return np.asarray(self.cut(contributions).sum(axis=0))

    def on_grid(self, public: Vector) -> Vector:
        """Something that no record is in, rounded to the grid."""
        return np.asarray(np.rint(public / self.step) * self.step)

    def noised(self, value: Vector, key: KeyedNoise, run: str, release: int) -> Vector:
        """`value` with this party's share; the same call gives the same bytes, and another value other noise."""
        purpose = f"share/{self.scale!r}/{sha256(value.tobytes()).hexdigest()}"
        words = key.words(purpose, run, release, np.arange(value.size, dtype=np.int64), 1)[:, 0]
        return np.asarray(value + self.draw(words).reshape(value.shape))

    def draw(self, words: Words) -> Vector:
        """A share for each of some random words."""
        return np.asarray(discrete_gaussian(self.scale / self.step).draw(words) * self.step)


def clipped(contributions: Vector, bound: float) -> Vector:
    """Rows of norm at most `bound`."""
    norms = np.linalg.norm(contributions, axis=1, keepdims=True)
    kept = bound * (1 - 2.0**-40)  # so that no rounding lengthens a row
    return np.asarray(contributions * np.minimum(1.0, kept / np.maximum(norms, np.finfo(np.float64).tiny)))


@cache
def discrete_gaussian(sigma: float) -> GridNoise:
    """The discrete Gaussian: mass ∝ exp(−k²/2σ²) at k; for σ of hundreds of steps its sum is σ√2π to all digits."""
    reach = math.ceil(8.6 * sigma)
    k = np.arange(1, reach)
    atoms = np.exp(-(k**2) / (2 * sigma**2)) / (sigma * math.sqrt(2 * math.pi))
    return grid_noise(np.append(atoms, ndtr(-(reach - 0.5) / sigma)))
