"""Laplace noise for vectors that leave a party: keyed, replayable, and on a grid.

Assumption 3.1 of Z. Chen and Y. Wang, "Locally Differentially Private Decentralized Stochastic Bilevel
Optimization with Guaranteed Convergence Accuracy" (LDP-DSBO) asks for independent Laplace noise on every
coordinate. Floating-point Laplace noise is not private: which floats can come out depends on the value below the
noise. So the value is rounded to a grid of `scale`·2⁻⁴⁰ (at most), integer noise is added, and only the sum is
turned into a float, which is post-processing.

The noise is discrete Laplace, P(k) ∝ q^|k| with q = exp(−grid/scale): the difference of two geometric variables,
whose binary digits are independent Bernoulli variables with odds q^(2^j). Each digit is one comparison of a 64-bit
word of AES-256-CTR, so no float lies between the key stream and the noise. Probabilities are rounded to 2⁻⁶⁴,
which moves the distribution of one draw by less than 2⁻⁵⁸ (`sampler_delta`). The rounding of the value to the
grid adds at most one grid step per coordinate to the sensitivity (`rounding_loss`).

A step sends the same bytes to every neighbour and at every retry: words are addressed by (run, release, field).
"""

import math
from functools import cache

import numpy as np
from numpy.typing import NDArray

from parley.privacy.noise import KeyedNoise

GRID_BITS = 40
"""The grid is at least this many binary digits finer than the scale of the noise."""

_DIGITS = GRID_BITS + 7  # a digit of weight 2^47 grid steps is set with probability below e^−64
_CHUNK = 4096
_LARGEST_STEP = 2.0**62


class ScaleOutOfRange(ValueError):
    """A noise scale is not a positive, finite number."""


class ValueOutOfRange(ValueError):
    """A value cannot be put on the grid: it is not finite, or too large for the noise that hides it."""


def grid_step(scale: float) -> float:
    """Return the grid for noise of this scale: the power of two just below scale·2⁻⁴⁰."""
    if not 0 < scale < math.inf:
        raise ScaleOutOfRange(f"A Laplace scale of {scale} must be positive and finite.")
    return 2.0 ** (math.floor(math.log2(scale)) - GRID_BITS)


def rounding_loss(size: int, scale: float) -> float:
    """Return the ε that rounding `size` coordinates to the grid can add to one release."""
    return size * grid_step(scale) / scale


def sampler_delta(draws: int) -> float:
    """Return the δ that the sampler's rounded probabilities can add over `draws` coordinates."""
    return draws * 2.0 * _DIGITS * 2.0**-65


def laplace_steps(noise: KeyedNoise, run: str, release: int, field: str, size: int, scale: float) -> NDArray[np.int64]:
    """Draw `size` discrete Laplace variables, in grid steps; a function of the key and the arguments alone."""
    thresholds = _thresholds(grid_step(scale) / scale)
    place = np.int64(1) << np.arange(_DIGITS, dtype=np.int64)
    drawn = np.empty(size, dtype=np.int64)
    purpose = f"ldp.laplace.{field}.{float(scale).hex()}"
    for start in range(0, size, _CHUNK):
        coordinates = np.arange(start, min(start + _CHUNK, size))
        words = noise.words(purpose, run, release, coordinates, 2 * _DIGITS)
        digits = words.reshape(len(coordinates), 2, _DIGITS) < thresholds
        geometric = digits @ place
        drawn[coordinates] = geometric[:, 0] - geometric[:, 1]
    return drawn


def add_laplace(
    values: NDArray[np.floating], scale: float, noise: KeyedNoise, run: str, release: int, field: str
) -> NDArray[np.float64]:
    """Return values plus Laplace noise of `scale`, the only form in which they may leave."""
    step = grid_step(scale)
    flat = np.asarray(values, dtype=np.float64).reshape(-1)
    if not np.isfinite(flat).all() or np.abs(flat).max(initial=0.0) / step >= _LARGEST_STEP:
        raise ValueOutOfRange(
            f"Field {field!r} holds a value that is not finite or exceeds 2²² times its noise scale {scale}: "
            "project the variables to a box before they are shared."
        )
    noised = np.rint(flat / step).astype(np.int64)
    noised += laplace_steps(noise, run, release, field, flat.size, scale)
    return (noised.astype(np.float64) * step).reshape(np.shape(values))


@cache
def _thresholds(rate: float) -> NDArray[np.uint64]:
    """Return round(2⁶⁴·q^(2^j)/(1 + q^(2^j))) for each digit j, q = e^−rate."""
    odds = np.exp(-rate * 2.0 ** np.arange(_DIGITS))
    return np.array([round(2**64 * (float(o) / (1.0 + float(o)))) for o in odds], dtype=np.uint64)
