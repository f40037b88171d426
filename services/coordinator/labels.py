"""The coordinator's labels: loaded by table name, checked against the parties' rows, and put into a vault."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from parley.coordinator.bambi import Plan
from parley.numerics.losses import Logistic, Loss, Softmax, Squared
from parley.privacy.label_gate import LabelGate
from parley.privacy.label_vault import LabelPolicy, LabelVault
from parley.privacy.ledger import Budget, Ledger
from parley.privacy.noise import KeyedNoise
from parley.services.coordinator.config import LabelConfig
from parley.services.coordinator.sessions import RowsDiffer
from parley.spec.asysqn import AsysqnSpec
from parley.spec.bambi import BambiSpec
from parley.spec.run import RunSpec
from parley.tables.identities import RowChoice
from parley.tables.loading import Labels, id_digest, load_labels


class LabelsMissing(LookupError):
    """The coordinator has no such label table, or it does not fit the loss."""


@dataclass(frozen=True)
class LabelShelf:
    """Label tables by name, read again when they change."""

    tables: dict[str, LabelConfig]
    choose: Callable[[RunSpec], RowChoice | None] = lambda _: None
    """The rows that a run's alignment chose."""
    _loaded: dict[tuple[object, ...], tuple[int, Labels]] = field(default_factory=dict, compare=False, repr=False)

    def load(self, spec: RunSpec) -> Labels:
        """The labels of a run."""
        name = spec.label_table
        if name not in self.tables:
            raise LabelsMissing(
                f"the coordinator has no labels {name!r}, only {sorted(self.tables)}: correct `labels` in the spec, or "
                "add the table to the coordinator's configuration"
            )
        config, loss = self.tables[name], _loss_name(spec)
        kind: Literal["classes", "real"] = "real" if loss in ("squared", "ridge") else "classes"
        labels = self._read(name, config, kind, self.choose(spec))
        if loss in ("logistic", "squared_hinge") and len(labels.classes) != 2:
            raise LabelsMissing(
                f"the {loss} loss takes two classes, {name} has {len(labels.classes)}: use softmax, or two classes"
            )
        return labels

    def _read(self, name: str, config: LabelConfig, kind: Literal["classes", "real"], only: RowChoice | None) -> Labels:
        stamp, known = config.stamp(), self._loaded.get((name, kind, only))
        if known is None or known[0] != stamp:
            known = (stamp, load_labels(config.source, config.column, config.format, config.id, kind=kind, only=only))
            self._loaded[name, kind, only] = known
        return known[1]


def _loss_name(spec: RunSpec) -> str:
    train = spec.train
    if not isinstance(train, BambiSpec | AsysqnSpec):
        raise TypeError(f"{train.algorithm} has no labels at the coordinator")
    return train.loss


def check_rows(labels: Labels, rows: int, digest: bytes, party: str) -> None:
    """Refuse labels that are not about the parties' rows."""
    if len(labels) != rows:
        raise RowsDiffer(f"there are {len(labels)} labels for {rows} rows of {party}: align labels and tables by id")
    if bytes.fromhex(id_digest(labels.ids)) != digest:
        raise RowsDiffer(f"the labels' ids are not those of {party}'s {rows} rows: align labels and tables")


def loss_of(spec: RunSpec, labels: Labels) -> tuple[Loss, int]:
    """The loss and the columns of the summed embedding."""
    match spec.settings(BambiSpec).loss:
        case "softmax":
            return Softmax(len(labels.classes)), len(labels.classes)
        case "logistic":
            return Logistic(), 1
    return Squared(), 1


def make_gate(spec: RunSpec, labels: Labels, plan: Plan, ledger: Ledger, key: bytes, run_id: str) -> LabelGate:
    """The gate through which a run's labels leave."""
    settings = spec.privacy.labels
    loss, _ = loss_of(spec, labels)
    off = settings.mechanism == "off"
    policy = LabelPolicy(settings.mechanism, None if off else settings.epsilon)
    vault = LabelVault(labels.values, loss, policy, KeyedNoise(key), run_id)
    budget = settings.budget or (settings.epsilon if settings.mechanism == "once" else math.inf)
    ledger.open_run(run_id, len(labels), Budget(math.inf if off else budget))
    trained = np.union1d(plan.rows.lower, plan.rows.upper)
    recipients = tuple(entry.name for entry in spec.parties)
    return LabelGate(vault, ledger, run_id, recipients, plan.released_rows, plan.releases, trained)
