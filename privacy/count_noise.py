"""Noisy counts of a party's rows: charged to the account of its table before any of them is seen.

Neighbours are two tables that differ in one row, which may be any row. A row is in one cell of each histogram, so that
another row in its place changes two cells of each by one: k histograms together are at most √(2k) apart. In which cells
values are counted must not depend on any row.

    symbol   code        is
    k        histograms  how many a row is in
    σ        sigma       deviation of the noise of one cell, in rows: √(2k)/μ, or a little more
    μ        ratio       of (ε, δ), as gaussian.py has it

Counts stand on a grid of σ/1024 that whole rows are on, and a Gaussian that was rounded to that grid is added to each:
the same as rounding what the Gaussian mechanism releases. What is computed from noisy counts is post-processing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from parley.privacy.accounting import GaussianRelease, RecordCounts
from parley.privacy.dataset_ledger import DatasetCharge, DatasetTerms
from parley.privacy.gaussian import DISTANCE, STEPS, gaussian_ratio, rounded_gaussian
from parley.privacy.ledger import Budget, Charge, Ledger
from parley.privacy.noise import EpsilonOutOfRange, KeyedNoise
from parley.privacy.permanent_noise import RecordTags


@dataclass(frozen=True)
class CountNoise:
    """The mechanism: (ε, δ) for each row, over all histograms together."""

    epsilon: float
    delta: float
    histograms: int
    """k, at least 1."""

    @property
    def event(self) -> GaussianRelease:
        """What the histograms cost a row that is counted in them."""
        return GaussianRelease(self._apart / self.sigma, self._distance)

    @property
    def sigma(self) -> float:
        """Deviation of the noise of each cell, in rows."""
        return STEPS / self.steps

    @cached_property
    def steps(self) -> int:
        """Steps of the grid in one row.

        Raises:
            EpsilonOutOfRange: if the noise would be larger than 1024 rows, or no noise keeps to ε and δ.
        """
        steps = math.floor(STEPS * gaussian_ratio(self.epsilon, self.delta, self._distance) / self._apart)
        if steps < 1:
            raise EpsilonOutOfRange(
                f"At epsilon {self.epsilon:g} the noise of {self.histograms} histograms would be larger than {STEPS} "
                "rows: raise epsilon, or ask for fewer columns."
            )
        return steps

    def noised(self, noise: KeyedNoise, run: str, counts: NDArray[np.int64]) -> NDArray[np.float64]:
        """Counts of any shape under noise; the same call gives the same bytes."""
        purpose = f"counts/{self.epsilon!r}/{self.delta!r}/{self.histograms}"
        words = noise.words(purpose, run, 0, np.arange(counts.size, dtype=np.int64), 1)
        steps = counts * self.steps + rounded_gaussian().draw(words.reshape(counts.shape))
        return np.asarray(steps / self.steps, dtype=np.float64)

    @property
    def _apart(self) -> float:
        return math.sqrt(2 * self.histograms)

    @property
    def _distance(self) -> float:
        return 2 * self.histograms * DISTANCE


@dataclass(frozen=True)
class CountReleases:
    """One run's histograms of one party's rows."""

    ledger: Ledger
    noise: KeyedNoise
    run: str
    recipients: tuple[str, ...]
    owner: DatasetTerms
    """What all runs together may cost a row."""
    mechanism: CountNoise
    tags: RecordTags
    counted: RecordCounts
    """1 for each row that is counted."""

    def rehearse(self) -> None:
        """Refuse a run that the owner's budget does not cover; nothing is written.

        Raises:
            BudgetExhausted: if it does not.
        """
        if not self.ledger.covers(self._chain, 0):  # a run that goes on is paid for
            self.ledger.rehearse(self._chain, self._charge(b""))

    def release(self, counts: NDArray[np.int64]) -> NDArray[np.float64]:
        """Charge the histograms, durably, and noise them; made again after a restart, they are the same.

        Raises:
            BudgetExhausted: if the owner's budget does not cover them.
            LedgerConflict: if other counts were released before under the same noise.
        """
        noised = self.mechanism.noised(self.noise, self.run, counts)
        # A little more than ε, which the ledger reads off the noise again.
        budget = Budget(self.mechanism.epsilon * (1 + 1e-9), self.mechanism.delta)
        self.ledger.open_run(self._chain, len(self.tags), budget, dataset=self.tags.dataset)
        self.ledger.reserve(self._chain, 0, 1, self._charge(sha256(noised.tobytes()).digest()))
        return noised

    def _charge(self, content: bytes) -> Charge:
        account = DatasetCharge(self.owner, self.tags)
        return Charge(self.mechanism.event, self.recipients, self.counted, content, account)

    @property
    def _chain(self) -> str:
        return f"{self.run}/{self.tags.dataset}/counts"
