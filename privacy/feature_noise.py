"""Noisy rows: each record's features, bounded in norm, under Gaussian noise that is drawn once, for ever.

Neighbours are two tables that differ in one row, which may be any row: both versions have norm at most R, so they are
at most 2R apart. What is computed from noisy rows is post-processing, however many runs, sums and models there are.

    clipped      a row x becomes x·min(1, R/‖x‖)
    on the grid  coordinates are cut off towards 0 to multiples of σ/1024, which lengthens no row
    noised       a Gaussian that was rounded to that grid is added in each coordinate (gaussian.py)

The noise of a record follows from the holder's key, its table, its id, its values and these settings
(permanent_noise.py): the same row draws the same noise in every run, a row that has changed draws noise of its own. The
ledger charges a row when its noise is first drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parley.privacy.accounting import GaussianRelease
from parley.privacy.gaussian import DISTANCE, STEPS, gaussian_ratio, rounded_gaussian
from parley.privacy.noise import KeyedNoise
from parley.privacy.permanent_noise import PermanentNoise, RecordTags, number_tags, tag_records

_WORDS_AT_ONCE = 1 << 21


class RowsNotFinite(ValueError):
    """A row holds a value that is no finite number, and so has no norm."""


@dataclass(frozen=True)
class NoisedRows:
    """Rows that may be seen, and what has to be paid before they are."""

    values: NDArray[np.float64]
    event: GaussianRelease
    tags: RecordTags
    draw: str
    """Names the draw of the noise for the ledger."""


@dataclass(frozen=True)
class RowNoise:
    """The mechanism: (ε, δ) for each row of norm at most R."""

    epsilon: float
    delta: float
    bound: float
    """R."""

    def event(self, columns: int) -> GaussianRelease:
        """What one release of one row is, for the ledger.

        Raises:
            EpsilonOutOfRange: if the noise cannot be calibrated to ε and δ.
        """
        distance = columns * DISTANCE
        return GaussianRelease(gaussian_ratio(self.epsilon, self.delta, distance), distance)

    def sigma(self, columns: int) -> float:
        """The noise's standard deviation, 2R/μ."""
        return 2 * self.bound / self.event(columns).ratio

    def clipped(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Rows of norm at most R; none is longer by a rounding either."""
        largest = np.abs(rows).max(axis=1, initial=0.0, keepdims=True)
        scaled = np.divide(rows, largest, out=np.zeros_like(rows), where=largest > 0)  # squares must not overflow
        norms = largest * np.sqrt((scaled**2).sum(axis=1, keepdims=True))
        shrunk = scaled * (self.bound * (1 - 2.0**-40)) * (largest / np.maximum(norms, np.finfo(np.float64).tiny))
        return np.asarray(np.where(norms <= self.bound * (1 - 2.0**-40), rows, shrunk))

    def noised(
        self, key: KeyedNoise, dataset: str, ids: Sequence[str], columns: Sequence[str], rows: NDArray[np.float64]
    ) -> NoisedRows:
        """Bound and noise rows (records × columns); the same call gives the same bytes.

        Raises:
            RowsNotFinite: if a value is not a number.
        """
        rows = np.ascontiguousarray(rows, dtype=np.float64) + 0.0  # −0 and 0 are one value
        if not np.isfinite(rows).all():
            raise RowsNotFinite("a value is missing or infinite, so that its row has no norm")
        event, width = self.event(rows.shape[1]), rows.shape[1]
        step = self.sigma(width) / STEPS
        tags = tag_records(key, dataset, ids, number_tags(rows))
        permanent = PermanentNoise(key, tags, "\0".join([key.fingerprint, *columns]))
        purpose = f"features/{self.epsilon!r}/{self.delta!r}/{self.bound!r}"
        # the quotient may round up by 2^-52 of itself, which the headroom of `clipped` covers
        values = np.trunc(self.clipped(rows) / step)
        at_once = max(1, _WORDS_AT_ONCE // width)
        for first in range(0, len(rows), at_once):
            chosen = np.arange(first, min(first + at_once, len(rows)), dtype=np.int64)
            values[chosen] += rounded_gaussian().draw(permanent.words(purpose, "", 0, chosen, width))
        return NoisedRows(values * step, event, tags, permanent.draw_name(purpose))
