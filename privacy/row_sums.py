"""Sums about single rows, with a bound for each row: shortened addends, noise that the parties share inside the sum.

A sum has a few numbers for each row i of a batch, of which this party adds a_i; between sums the party moves its model
by Σ_i g_i. Both are noised, so that a row speaks in its own a_i and g_i and nowhere else:

    addends   a_i shortened to norm R; every party's share of the noise is inside the masked sum (noise_shares.py)
    steps     g_i shortened to norm C/B; this party's own noise, whole, before the model moves

Were the steps left exact, a row would move the model, and with it the addends of all other rows: shortening and noising
its own addend would bound nothing. Given the noised steps the model is post-processing. Replacing a row moves its
addend by at most 2R and a step by at most 2C/B: with noise of m times as much in each, a round in which the row is
costs 1/m² of zero-concentrated privacy, GaussianSum of ratio √2/m. m is the smallest for which the row that is in most
rounds keeps to ε. Held-out rows are in no step, and predicted ones in a single sum: they take less noise.

Noise of held-out and predicted rows follows from row and model: who asks again gets the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from parley.privacy.accounting import Composed, GaussianSum, RecordCounts, online_epsilon
from parley.privacy.dataset_ledger import FRESH, BudgetExhausted, DatasetCharge, DatasetTerms
from parley.privacy.gaussian import DISTANCE
from parley.privacy.ledger import Budget, Charge, Ledger, LedgerConflict
from parley.privacy.noise import EpsilonOutOfRange, KeyedNoise
from parley.privacy.noise_shares import NoiseShare, Vector, clipped
from parley.privacy.permanent_noise import PermanentNoise, RecordTags
from parley.privacy.record_releases import RecordReleases, RunTerms

_MOST_NOISE = 1e9


@dataclass(frozen=True)
class RowBounds:
    """What a run promises of each row of each party."""

    terms: RunTerms
    bound: float
    """R."""
    step_bound: float
    """C."""
    honest: int
    """Parties that keep their share of the noise to themselves, this one among them."""

    def multiplier(self, rounds: int, parts: int, size: int) -> float:
        """m: the least noise with which a row that is in so many rounds, in `parts` releases of each, costs at most ε.

        `size` is how many numbers are drawn where the row has a part, over all releases of a round.

        Raises:
            EpsilonOutOfRange: if no noise will do.
        """
        return _least_noise(self.terms, rounds, parts, size)

    def addends(self, multiplier: float) -> NoiseShare:
        """This party's share of the noise in a sum."""
        return NoiseShare(2 * self.bound, multiplier, self.honest)

    def steps(self, multiplier: float, batch: int) -> NoiseShare:
        """This party's own noise in a step; what a row adds to it is divided by the batch."""
        return NoiseShare(2 * self.step_bound / batch, multiplier, 1)


@dataclass(frozen=True)
class Owner:
    """Whose rows they are, and what the owner lets them cost."""

    ledger: Ledger
    noise: KeyedNoise
    rows: DatasetTerms
    run: str
    recipients: tuple[str, ...]
    tags: RecordTags
    """Of all rows of the table."""


@dataclass(frozen=True)
class TrainedRows:
    """Rows that a run trains on: round by round, addends and a step."""

    bounds: RowBounds
    multiplier: float
    releases: RecordReleases

    @classmethod
    def of(
        cls, owner: Owner, bounds: RowBounds, counts: NDArray[np.int64], rounds: int, width: int, model: int
    ) -> TrainedRows:
        """`counts` has in how many of the `rounds` each row is; a sum has `width` numbers of it, a step `model`."""
        size = bounds.honest * width + model
        multiplier = bounds.multiplier(int(counts.max(initial=1)), 2, size)
        releases = RecordReleases(
            owner.ledger,
            owner.noise,
            owner.run,
            owner.recipients,
            owner.rows,
            bounds.terms,
            owner.tags,
            _event(multiplier, 2, size),
            RecordCounts(counts),
            max(rounds, 1),
        )
        return cls(bounds, multiplier, releases)

    def addend(self, rows: Vector, number: int) -> Vector:
        """What this party adds to the sum of round `number` about each row of its batch (rows × numbers)."""
        share = self.bounds.addends(self.multiplier)
        return self.releases.noised(share, share.cut(clipped(rows, self.bounds.bound)), 2 * number)

    def step(self, parts: Iterable[Vector], batch: int, number: int) -> Vector:
        """Σ g_i of round `number`, noised; `parts` has some rows' g_i each, and all together those of the batch."""
        share = self.bounds.steps(self.multiplier, batch)
        bound = self.bounds.step_bound / batch
        summed = [share.summed(clipped(part, bound)) for part in parts]
        return self.releases.noised(share, np.asarray(np.sum(summed, axis=0)), 2 * number + 1)


@dataclass(frozen=True)
class LookedAtRows:
    """Rows that models are tried on, or used on: one sum about each of them for every model."""

    owner: Owner
    bounds: RowBounds
    name: str
    """Of the set of rows."""
    rows: NDArray[np.int64]
    models: int
    """How many models there are at most."""
    width: int
    """Numbers of a row in a sum."""

    @property
    def multiplier(self) -> float:
        """m of one sum."""
        return self.bounds.multiplier(self.models, 1, self.bounds.honest * self.width)

    def rehearse(self) -> None:
        """Refuse what the owner's budget does not cover; nothing is written."""
        counts = RecordCounts(np.full(len(self.rows), self.models, dtype=np.int64))
        self.owner.ledger.rehearse(self._chain, self._charge(counts, FRESH))

    def addend(self, values: Vector, chosen: NDArray[np.int64], model: bytes) -> Vector:
        """What this party adds about some of the rows (places in the table); `model` is what they were made with.

        Raises:
            BudgetExhausted: if it is one model more than was promised, or the owner's budget is spent.
        """
        purpose = f"looked-at/{self.multiplier!r}/{self.bounds.bound!r}/{self.bounds.honest}"
        context = "\0".join([self.owner.run, sha256(model).hexdigest(), self.owner.noise.fingerprint])
        permanent = PermanentNoise(self.owner.noise, self.owner.tags, context)
        self._pay(permanent.draw_name(purpose), model)
        share = self.bounds.addends(self.multiplier)
        words = permanent.words(purpose, self.owner.run, 0, chosen, values.shape[1])
        return np.asarray(share.cut(clipped(values, self.bounds.bound)) + share.draw(words))

    def _pay(self, draw: str, model: bytes) -> None:
        """Charge all rows of the set for a model, once; models are told apart by what they are."""
        ledger, terms = self.owner.ledger, self.bounds.terms
        budget = Budget(terms.epsilon * (1 + 1e-9), terms.delta)
        ledger.open_run(self._chain, len(self.rows), budget, dataset=self.owner.tags.dataset)
        charge = self._charge(RecordCounts(np.ones(len(self.rows), dtype=np.int64)), draw, model)
        for number in range(self.models):
            try:
                ledger.reserve(self._chain, number, 1, charge)
            except LedgerConflict:  # another model's
                continue
            return
        raise BudgetExhausted(f"rows of {self.name} were looked at with {self.models} models, which was all")

    def _charge(self, counts: RecordCounts, draw: str, model: bytes = b"") -> Charge:
        event = _event(self.multiplier, 1, self.bounds.honest * self.width)
        tags = self.owner.tags
        some = RecordTags(tags.dataset, tags.identities[self.rows], tags.records[self.rows])
        account = DatasetCharge(self.owner.rows, some, draw)
        return Charge(event, self.owner.recipients, counts, model, account)

    @property
    def _chain(self) -> str:
        """Predictions of a run ask for other rows each time: each set of rows has a chain of its own."""
        rows = sha256(self.owner.tags.records[self.rows].tobytes()).hexdigest()[:12]
        return f"{self.owner.run}/{self.owner.tags.dataset}/{self.name}/{rows}"


@cache
def _least_noise(terms: RunTerms, rounds: int, parts: int, size: int) -> float:
    def enough(multiplier: float) -> bool:
        event = _event(multiplier, parts, size)
        return online_epsilon(Composed(event, rounds), terms.delta) <= terms.epsilon

    low, high = 0.0, 1.0
    while not enough(high):
        low, high = high, 2 * high
        if high > _MOST_NOISE:
            raise EpsilonOutOfRange(
                f"no noise keeps {rounds} rounds with {size} numbers of a row each to epsilon {terms.epsilon:g} at "
                f"delta {terms.delta:g}: make fewer rounds, take a smaller model, lower epsilon or raise delta"
            )
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _event(multiplier: float, parts: int, size: int) -> GaussianSum:
    """What one round costs a row that is in it, in `parts` releases that are noised alike."""
    return GaussianSum(math.sqrt(parts) / multiplier, size * DISTANCE)


def in_parts(rows: int, size: int, most: int = 1 << 22) -> Iterator[slice]:
    """Rows of `size` numbers each, in parts that fit a memory."""
    each = max(1, most // max(size, 1))
    return (slice(first, min(first + each, rows)) for first in range(0, rows, each))
