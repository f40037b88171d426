"""What a run releases of records inside secure sums: accounted for before its first sum, and bound to what leaves.

The whole run is charged to the data set's account when it begins, by how many sums each record will be in. Each sum is
then written down with the value that leaves for it: one that is made again, after a restart, leaves with the same bytes
or not at all, so that nobody gets a sum more than was charged.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parley.privacy.accounting import Composed, GaussianSum, RecordCounts, online_epsilon
from parley.privacy.dataset_ledger import BudgetExhausted, DatasetCharge, DatasetTerms
from parley.privacy.ledger import Budget, Charge, Ledger
from parley.privacy.noise import KeyedNoise
from parley.privacy.noise_shares import NoiseShare
from parley.privacy.permanent_noise import RecordTags


@dataclass(frozen=True)
class RunTerms:
    """What a run may cost one record."""

    epsilon: float
    delta: float


@dataclass(frozen=True)
class RecordReleases:
    """One run's releases of one party's records."""

    ledger: Ledger
    noise: KeyedNoise
    run: str
    recipients: tuple[str, ...]
    owner: DatasetTerms
    """What all runs together may cost a record."""
    terms: RunTerms
    tags: RecordTags
    event: GaussianSum
    """What one sum costs a record that is in it."""
    counts: RecordCounts
    """In how many sums of the run each record is."""
    sums: int
    """How many sums there are."""

    @property
    def epsilon(self) -> float:
        """ε of the record that is in most sums, over the whole run."""
        return online_epsilon(Composed(self.event, self.counts.maximum), self.terms.delta)

    def rehearse(self) -> None:
        """Refuse a run that the spec's ε or the owner's budget does not cover; nothing is written.

        Raises:
            BudgetExhausted: naming which.
        """
        if not self.epsilon <= self.terms.epsilon:
            raise BudgetExhausted(
                f"a record would be in {self.counts.maximum} sums, which cost ε = {self.epsilon:.4g} at "
                f"δ = {self.terms.delta:g}, past the run's {self.terms.epsilon:g}: raise the noise or make fewer rounds"
            )
        if not self.ledger.covers(self._chain, 0):  # a run that goes on is paid for
            self.ledger.rehearse(self._chain, self._charge)

    def open(self) -> None:
        """Charge the whole run, durably; a run that goes on finds its charge."""
        self.rehearse()
        dataset, records = self.tags.dataset, len(self.tags)
        self.ledger.open_run(
            self._chain, records, Budget(self.terms.epsilon * (1 + 1e-9), self.terms.delta), dataset=dataset
        )
        self.ledger.reserve(self._chain, 0, self.sums, self._charge)
        self.ledger.open_run(self._contents, 1, Budget(math.inf), dataset=dataset)

    def noised(self, share: NoiseShare, value: NDArray[np.float64], number: int) -> NDArray[np.float64]:
        """The value of sum `number` with this party's share of the noise, once it is on record that this one leaves.

        Raises:
            LedgerConflict: if another value left for it before, or it is none of the run's sums.
        """
        noised = share.noised(value, self.noise, self.run, number)
        charge = Charge(self.event, self.recipients, RecordCounts(np.ones(1, dtype=np.int64)), noised.tobytes())
        self.ledger.reserve(self._contents, number, 1, charge)
        return noised

    @property
    def _charge(self) -> Charge:
        return Charge(self.event, self.recipients, self.counts, account=DatasetCharge(self.owner, self.tags))

    @property
    def _chain(self) -> str:
        return f"{self.run}/{self.tags.dataset}/records"

    @property
    def _contents(self) -> str:
        return f"{self.run}/{self.tags.dataset}/sums"
