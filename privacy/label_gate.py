"""The gate in front of the labels: a noisy target is handed out only when the ledger has paid for it."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parley.numerics.losses import Loss
from parley.privacy.accounting import RecordCounts
from parley.privacy.dataset_ledger import DatasetCharge, DatasetTerms
from parley.privacy.label_vault import LabelVault
from parley.privacy.ledger import BudgetExhausted, Charge, Ledger

Rows = NDArray[np.int64]

BLOCK = 256
"""Releases that are reserved at once, so that a step costs no disk sync."""


class LabelGate:
    """Pays for label releases in blocks and hands out noisy targets. Runs at the coordinator."""

    def __init__(
        self,
        vault: LabelVault,
        ledger: Ledger,
        run: str,
        recipients: tuple[str, ...],
        released_rows: Callable[[int], Rows],
        releases: int,
        trained_rows: Rows,
        terms: DatasetTerms | None = None,
    ) -> None:
        """`released_rows` says which records a release is about; `trained_rows` are all that are ever released.

        `terms` are those of the labels' owner over all runs; without them only the run's own budget counts.
        """
        self._vault, self._ledger, self._run, self._recipients = vault, ledger, run, recipients
        self._released_rows, self._releases, self._trained_rows = released_rows, releases, trained_rows
        self._account = None if terms is None else DatasetCharge(terms, vault.tags, vault.draw)

    @property
    def loss(self) -> Loss:
        """The loss that fits the noisy targets."""
        return self._vault.loss_for_training()

    def target(self, release: int, rows: Rows) -> NDArray[Any]:
        """Noisy targets of a release, paid for before they are returned.

        Raises:
            BudgetExhausted: if the budget of the run, or of the labels over all runs, does not cover the release;
                nothing is spent.
            RecordsChanged: if labels that were released before have changed.
        """
        if not self.is_paid(release):
            self._pay(self._vault.billed_release(release))
        return self._vault.target(release, rows)

    def is_paid(self, release: int) -> bool:
        """Whether the ledger covers a release."""
        return self._ledger.covers(self._run, self._vault.billed_release(release))

    def is_known_paid(self, release: int) -> bool:
        """Whether a release is paid for, as far as this process knows without asking the database."""
        return self._ledger.knows_paid(self._run, self._vault.billed_release(release))

    def score(self, rows: Rows, h: NDArray[Any]) -> dict[str, float]:
        """Metrics on true labels, for the label holder's own eyes."""
        score = self._vault.score(rows, h)
        return {score.accuracy_name: score.accuracy, "loss": score.loss, **score.figures}

    def _pay(self, release: int) -> None:
        if self._vault.billed_release(release + 1) == release:  # one draw serves everything
            self._reserve(release, 1, RecordCounts.of_batches(len(self._vault), [self._trained_rows]))
            return
        count = min(BLOCK, self._releases - release)
        while True:
            batches = [self._released_rows(number) for number in range(release, release + count)]
            try:
                self._reserve(release, count, RecordCounts.of_batches(len(self._vault), batches))
                return
            except BudgetExhausted:
                if count == 1:
                    raise
                count //= 2  # spend what is left of the budget in smaller blocks

    def _reserve(self, release: int, count: int, counts: RecordCounts) -> None:
        charge = Charge(self._vault.event, self._recipients, counts, account=self._account)
        self._ledger.reserve(self._run, release, count, charge)
