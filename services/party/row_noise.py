"""A party's rows as a run may see them: noised where its spec asks for it, and paid for before anything leaves.

Every table that a session reads passes here, whatever its algorithm is: what is computed afterwards is post-processing.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256

import numpy as np
from scipy.sparse import issparse

from parley.party.roles import LocalPrivacy
from parley.privacy.accounting import RecordCounts, Unprotected
from parley.privacy.dataset_ledger import DatasetCharge, DatasetTerms
from parley.privacy.feature_noise import NoisedRows, RowNoise
from parley.privacy.ledger import Budget, Charge, Ledger
from parley.privacy.noise import KeyedNoise
from parley.privacy.permanent_noise import TAG_BYTES, RecordTags
from parley.spec.protection import FeaturePrivacySpec
from parley.tables.errors import TableError
from parley.tables.loading import Table

MOST_VALUES = 1 << 28
"""Most values of a sparse table that noise may fill."""


class TableTooWide(TableError):
    """Noise would fill a sparse table that does not fit a machine then."""


def account_name(table: str) -> str:
    """The account of a table's rows in its owner's ledger; labels of the same name have one of their own."""
    return f"features/{table}"


def noised_rows(settings: FeaturePrivacySpec, noise: KeyedNoise, table: Table) -> NoisedRows:
    """The table's rows, bounded and noised under the party's key."""
    rows, columns = table.features, table.columns
    if issparse(rows):
        if rows.shape[0] * rows.shape[1] > MOST_VALUES:
            raise TableTooWide(table.name, "noise would fill a sparse table", "Choose fewer columns by a view")
        rows = rows.toarray()
    mechanism = RowNoise(settings.epsilon, settings.delta, settings.bound)
    return mechanism.noised(noise, account_name(table.name), table.ids.tolist(), columns, rows)


def with_rows(table: Table, noised: NoisedRows) -> Table:
    """The same table with these values."""
    return replace(table, features=noised.values)


@dataclass
class RowProtection:
    """What one session does to the rows that it reads."""

    settings: FeaturePrivacySpec
    run_id: str
    recipients: tuple[str, ...]
    privacy: Callable[[], LocalPrivacy]
    """Opens the party's key and ledger."""
    terms: DatasetTerms
    """What the owner lets all runs together cost one row."""
    _owed: list[NoisedRows] = field(default_factory=list)
    _began: bool = False

    def protect(self, table: Table) -> Table:
        """The rows that the run may see.

        Raises:
            BudgetExhausted: if the owner's budget does not pay for them.
        """
        if self.settings.kind != "once":
            return table
        privacy = self.privacy()
        noised = noised_rows(self.settings, privacy.noise, table)
        if self._began:
            self._charge(privacy.ledger, noised)
        else:
            privacy.ledger.rehearse(self._chain(noised), self._charge_of(noised))
            self._owed.append(noised)
        return with_rows(table, noised)

    def pay(self) -> None:
        """Charge what was read so far, durably, and from now on whatever is read.

        Raises:
            BudgetExhausted: if another run has spent the budget meanwhile.
        """
        self._began = True
        while self._owed:
            self._charge(self.privacy().ledger, self._owed[0])
            del self._owed[0]

    def _charge(self, ledger: Ledger, noised: NoisedRows) -> None:
        chain, settings = self._chain(noised), self.settings
        # A little more than ε, which the ledger reads off the noise again.
        budget = Budget(settings.epsilon * (1 + 1e-9), settings.delta)
        ledger.open_run(chain, len(noised.tags), budget, dataset=noised.tags.dataset)
        ledger.reserve(chain, 0, 1, self._charge_of(noised))

    def _charge_of(self, noised: NoisedRows) -> Charge:
        counts = RecordCounts(np.ones(len(noised.tags), dtype=np.int64))
        account = DatasetCharge(self.terms, noised.tags, noised.draw)
        return Charge(noised.event, self.recipients, counts, account=account)

    def _chain(self, noised: NoisedRows) -> str:
        """A run reads several tables, and a prediction other rows each time: each has a chain of its own."""
        rows = sha256(noised.tags.records.tobytes()).hexdigest()[:12]
        return f"{self.run_id}/{noised.tags.dataset}/{rows}"


def note_exact_runs(ledger: Ledger, table: str, exact: Mapping[str, Sequence[str]], terms: DatasetTerms) -> None:
    """Say in a table's account, if it has one, which runs have seen its rows without noise: no ε stands for that.

    `exact` has the partners of every run that released exact values of the table. Of those that noised its rows the
    account knows already: what was exact about them are labels.
    """
    name = account_name(table)
    if name not in ledger.datasets():
        return
    nobody = np.empty((0, TAG_BYTES), dtype=np.uint8)
    charged = {run for run, _, rest in (chain.partition("/") for chain in ledger.runs()) if rest.startswith(f"{name}/")}
    for run, partners in exact.items():
        if run not in charged:
            account = DatasetCharge(terms, RecordTags(name, nobody, nobody))
            once = RecordCounts(np.ones(1, dtype=np.int64))
            ledger.open_run(f"{run}/{name}/exact", 1, Budget(math.inf), dataset=name)
            ledger.reserve(f"{run}/{name}/exact", 0, 1, Charge(Unprotected(), tuple(partners), once, account=account))
