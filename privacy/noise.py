"""Label noise from a keyed CSPRNG: addressable by record, exact on the integers.

GradPerturb (the paper on vertical federated bilevel optimisation, Algorithms 2 and 3) draws floating-point Laplace
noise from an unnamed generator. Here:

- Random words are the AES-256-CTR key stream. The key stays with the label holder; the 96-bit nonce is derived by
  SHA-256 from (purpose, run, release); the counter is the record's index. So record i of a release gets the same draw
  in every batch layout, and a retry or a replay after a crash sends identical bytes.
- Samplers compare 64-bit words with integer thresholds; there is no float between the key stream and the noisy label.
  A distribution is thus a table of integer masses that sum to 2^64, and its privacy loss can be checked exactly.

Direction of rounding. Randomised response: the probability of every wrong answer is rounded **up** to a multiple of
2^-64. Discrete Laplace: masses are rounded to nearest for a loss that is 2^-24 below the declared one; the finished
table is then checked, and refused unless its realised ε ≤ the declared ε. Both make the guarantee exact.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass, field
from decimal import Decimal, localcontext
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

Words = NDArray[np.uint64]

KEY_BYTES = 32
WORD_RANGE = 1 << 64
GRID = 16
"""Steps per unit of the noise grid."""

_HEADROOM = 2.0**-24  # what rounding may cost, taken off the declared loss before the table is made
_SMALLEST_MASS = 2.0**26  # atoms below this many 2^-64 are cut off (and clamped), so that rounding stays below headroom
_GUIDE_BITS = 16


class WrongKeyLength(ValueError):
    """A noise key is not 32 bytes."""


class EpsilonOutOfRange(ValueError):
    """The privacy parameter cannot be realised exactly."""


class RecordOutOfRange(ValueError):
    """A record's index does not fit the counter of the key stream."""


def new_key() -> bytes:
    """Draw a fresh key from the operating system."""
    return secrets.token_bytes(KEY_BYTES)


def read_or_create_key(path: Path) -> bytes:
    """Return the label holder's key at `path`, made on first use and readable by its owner only.

    The key must outlive a crash (a resumed run replays its noise) and must never leave the label holder.
    """
    fresh = new_key()
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return _checked(path.read_bytes())
    with os.fdopen(handle, "wb") as stream:
        stream.write(fresh)
        stream.flush()
        os.fsync(stream.fileno())
    return fresh


class WordSource(Protocol):
    """Where a mechanism takes its random words from: `KeyedNoise`, or noise that is permanent."""

    def words(self, purpose: str, run: str, release: int, records: NDArray[np.int64], count: int) -> Words:
        """Return `count` words for each record; the same call gives the same words."""
        ...


@dataclass(frozen=True)
class KeyedNoise:
    """The label holder's source of random words."""

    key: bytes = field(repr=False)
    """AES-256 key, 32 bytes."""

    def __post_init__(self) -> None:
        _checked(self.key)

    @property
    def fingerprint(self) -> str:
        """Tells keys apart: permanent noise under a new key is another draw, which is charged on top."""
        return sha256(b"parley.features.v1" + self.key).hexdigest()[:16]

    def words(self, purpose: str, run: str, release: int, records: NDArray[np.int64], count: int) -> Words:
        """Return `count` words for each record (len(records)×count), a function of the arguments and the key alone.

        `purpose` separates mechanisms and their parameters, so that no two of them ever share a word.
        """
        blocks = (count + 1) // 2  # a block is 16 bytes: two words
        records = np.asarray(records, dtype=np.int64).reshape(-1)
        if records.size and (records.min() < 0 or int(records.max() + 1) * blocks > 1 << 32):
            raise RecordOutOfRange(
                f"Records must lie in 0 … {(1 << 32) // blocks - 1} for {count} words each; split the table of labels."
            )
        counters = (records[:, None] * blocks + np.arange(blocks)).reshape(-1)
        inputs = np.empty((counters.size, 4), dtype=">u4")
        inputs[:, :3] = np.frombuffer(_nonce(purpose, run, release), dtype=">u4")
        inputs[:, 3] = counters
        # The CTR key stream at arbitrary positions: each block is the cipher of its own counter, so ECB over distinct
        # counters is CTR by definition, in one call for a scattered batch.
        cipher = Cipher(algorithms.AES(self.key), modes.ECB()).encryptor()  # noqa: S305
        stream = cipher.update(inputs.tobytes())
        return np.frombuffer(stream, dtype="<u8").reshape(records.size, 2 * blocks)[:, :count]


def wrong_answer_threshold(epsilon: float, others: int) -> int:
    """Return ⌈2^64/(e^ε + others)⌉: the mass of each of the `others` wrong answers, so that right/wrong ≤ e^ε."""
    if not 0 < epsilon < float("inf") or others < 1:
        raise EpsilonOutOfRange(f"epsilon must be positive and finite, not {epsilon}; to train without noise say off.")
    with localcontext() as context:
        context.prec = 60
        slack = Decimal(1) - Decimal(10) ** -50  # e^ε from below, so that the quotient is from above
        quotient = Decimal(WORD_RANGE) / (Decimal(epsilon).exp() * slack + others)
        return int(quotient.to_integral_value(rounding="ROUND_CEILING"))


def bernoulli(words: Words, threshold: int) -> NDArray[np.bool_]:
    """Return True with probability exactly threshold/2^64."""
    return words < np.uint64(threshold)


@dataclass(frozen=True, eq=False)
class GridLaplace:
    """Discrete Laplace noise on a 1/16 grid, for which a shift of one unit costs at most `unit_epsilon`.

    Its scale is 1/unit_epsilon units. The table ends where an atom's mass would fall below 2^-38; the end atoms carry
    the tails. Noisy values are clamped to `low … high` whatever the label was, which closes the gap that a finite
    support would open at its ends.
    """

    unit_epsilon: float
    masses: Words = field(repr=False)
    """Mass of −M … M in units of 2^-64; they sum to 2^64."""
    realised_epsilon: float
    """Largest log-ratio between the clamped outputs for 0 and for 1, rounded up; at most `unit_epsilon`."""
    bounds: Words = field(repr=False)
    guide: NDArray[np.int32] = field(repr=False)
    decided: NDArray[np.bool_] = field(repr=False)

    @property
    def reach(self) -> int:
        """M, in grid steps."""
        return (self.masses.size - 1) // 2

    @property
    def low(self) -> int:
        """Smallest noisy value, in grid steps: what 0 and 1 (one unit = 16 steps) can both reach."""
        return GRID - self.reach

    @property
    def high(self) -> int:
        """Largest noisy value, in grid steps."""
        return self.reach

    def noisy_steps(self, units: NDArray[np.int64], words: Words) -> NDArray[np.int64]:
        """Return clamp(16·units + noise) in grid steps, for units in {0, 1}."""
        return np.asarray(np.clip(GRID * units + self.draw(words), self.low, self.high))

    def draw(self, words: Words) -> NDArray[np.int64]:
        """Invert the distribution function at each word; the top 16 bits decide nearly always."""
        cell = (words >> np.uint64(64 - _GUIDE_BITS)).astype(np.int32)
        index = self.guide[cell].astype(np.int64)
        open_ = ~self.decided[cell]
        index[open_] = np.searchsorted(self.bounds, words[open_], side="right")
        return np.asarray(index - self.reach)

    def output_masses(self, units: int) -> list[int]:
        """Return the exact masses of `noisy_steps` (low … high) for a label of 0 or 1 unit, for audits."""
        shifted = range(units * GRID - self.reach, units * GRID + self.reach + 1)
        masses = [0] * (self.high - self.low + 1)
        for value, mass in zip(shifted, self.masses.tolist(), strict=True):
            masses[min(max(value, self.low), self.high) - self.low] += mass
        return masses


@cache
def grid_laplace(unit_epsilon: float) -> GridLaplace:
    """Make the table for `unit_epsilon` and check it; 0.0005 ≤ unit_epsilon ≤ 16."""
    if not 0.0005 <= unit_epsilon <= 16:
        raise EpsilonOutOfRange(
            f"Laplace labels take 0.0005 … 16 per differing coordinate, not {unit_epsilon}; "
            "below it the noise drowns any label, above it nothing is protected."
        )
    rate = (unit_epsilon - _HEADROOM) / GRID
    centre = np.tanh(rate / 2)  # (1−α)/(1+α) with α = e^−rate
    reach = int(np.log(centre * WORD_RANGE / _SMALLEST_MASS) / rate)
    atoms = centre * np.exp(-rate * np.arange(1, reach))
    tail = np.exp(-rate * reach) / (1 + np.exp(-rate))
    side = np.rint(np.append(atoms, tail) * float(WORD_RANGE)).astype(np.uint64)
    middle = WORD_RANGE - 2 * int(side.sum())
    masses = np.concatenate([side[::-1], np.array([middle], np.uint64), side])
    realised = _realised_epsilon(masses)
    if realised > unit_epsilon:
        raise EpsilonOutOfRange(f"The table for {unit_epsilon} realises {realised}; choose another epsilon.")
    bounds = np.cumsum(masses, dtype=np.uint64)[:-1]
    guide, decided = _guide(bounds)
    return GridLaplace(unit_epsilon, masses, realised, bounds, guide, decided)


def _realised_epsilon(masses: Words) -> float:
    """Bound the largest log-ratio between the clamped outputs of labels 0 and 1 from above."""
    # inner values 17−M … M−1: label 0 has mass[j], label 1 has mass[j−16]
    zero, one = masses[GRID + 1 : -1].astype(np.float64), masses[1 : -GRID - 1].astype(np.float64)
    inner = np.abs(np.log(zero / one)).max()
    # the upper end M: label 0 by its own tail, label 1 by all from M−16 on; the lower end mirrors it
    end = np.log(float(masses[-GRID - 1 :].sum()) / float(masses[-1]))
    return float(max(inner, end)) * (1 + 2.0**-48) + 2.0**-48  # two roundings, one division, one log: above the truth


def _guide(bounds: Words) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    first = np.arange(1 << _GUIDE_BITS, dtype=np.uint64) << np.uint64(64 - _GUIDE_BITS)
    last = first | np.uint64((1 << (64 - _GUIDE_BITS)) - 1)
    low = np.searchsorted(bounds, first, side="right")
    return low.astype(np.int32), low == np.searchsorted(bounds, last, side="right")


def _nonce(purpose: str, run: str, release: int) -> bytes:
    # Lengths first: no two different triples make the same bytes.
    parts = [purpose.encode(), run.encode(), str(release).encode()]
    return sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).digest()[:12]


def _checked(key: bytes) -> bytes:
    if len(key) != KEY_BYTES:
        raise WrongKeyLength(
            f"A noise key has {KEY_BYTES} bytes, not {len(key)}; restore the key file or start a new run."
        )
    return key
