"""The labels of one run at the coordinator, and the one way to the gate in front of them."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from parley.numerics.losses import Loss
from parley.privacy.label_gate import LabelGate
from parley.privacy.label_vault import LabelPolicy, LabelVault
from parley.privacy.ledger import Budget, Ledger
from parley.privacy.noise import KeyedNoise
from parley.spec.run import RunSpec
from parley.tables.digests import labels_digest
from parley.tables.errors import RowsDiffer
from parley.tables.loading import Labels, id_digest

LabelKind = Literal["classes", "real"]
RowNumbers = NDArray[np.int64]


class LabelsMissing(LookupError):
    """The coordinator has no such label table, or it does not fit the loss."""


@dataclass(frozen=True)
class ReleasePlan:
    """Which label releases a run makes; known before it starts."""

    released_rows: Callable[[int], RowNumbers]
    """The records that a release is about."""
    releases: int
    """Label releases of the whole run."""
    trained_rows: RowNumbers
    """All records that are ever released."""


@dataclass(frozen=True)
class LabelAccess:
    """A run's labels, and what pays for them."""

    spec: RunSpec
    run_id: str
    read: Callable[[RunSpec, LabelKind], Labels]
    """Reads the run's label table."""
    ledger: Ledger
    noise_key: bytes

    def load(self, loss: str) -> Labels:
        """The labels, as a loss of this name takes them."""
        labels = self.read(self.spec, "real" if loss in ("squared", "ridge") else "classes")
        if loss in ("logistic", "squared_hinge") and len(labels.classes) != 2:
            raise LabelsMissing(
                f"the {loss} loss takes two classes, {self.spec.label_table} has {len(labels.classes)}: use softmax, "
                "or two classes"
            )
        return labels

    def gate(self, labels: Labels, loss: Loss, plan: ReleasePlan) -> LabelGate:
        """The gate through which the run's labels leave; opens the run in the ledger."""
        settings = self.spec.privacy.labels
        off = settings.mechanism == "off"
        policy = LabelPolicy(settings.mechanism, None if off else settings.epsilon)
        vault = LabelVault(labels.values, loss, policy, KeyedNoise(self.noise_key), self.run_id)
        budget = settings.budget or (settings.epsilon if settings.mechanism == "once" else math.inf)
        self.ledger.open_run(self.run_id, len(labels), Budget(math.inf if off else budget), labels_digest(labels))
        recipients = tuple(entry.name for entry in self.spec.parties)
        return LabelGate(
            vault, self.ledger, self.run_id, recipients, plan.released_rows, plan.releases, plan.trained_rows
        )


def check_rows(labels: Labels, rows: int, digest: bytes, party: str) -> None:
    """Refuse labels that are not about the parties' rows."""
    if len(labels) != rows:
        raise RowsDiffer(f"there are {len(labels)} labels for {rows} rows of {party}: align labels and tables by id")
    if bytes.fromhex(id_digest(labels.ids)) != digest:
        raise RowsDiffer(f"the labels' ids are not those of {party}'s {rows} rows: align labels and tables")
