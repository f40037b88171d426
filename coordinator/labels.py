"""The labels of one run at the coordinator, and the one way to the gate in front of them."""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from parley.coordinator.evaluations import EvaluationAccess
from parley.numerics.losses import Loss
from parley.numerics.metrics import Measures
from parley.numerics.weighted_loss import balanced_weights
from parley.privacy.accounting import RecordCounts, Unprotected
from parley.privacy.dataset_ledger import DatasetCharge, DatasetTerms, UnprotectedRefused
from parley.privacy.evaluations import Evaluation, EvaluationPolicy
from parley.privacy.label_gate import LabelGate
from parley.privacy.label_vault import LabelPolicy, LabelVault
from parley.privacy.ledger import Budget, Charge, Ledger
from parley.privacy.noise import KeyedNoise
from parley.privacy.permanent_noise import TAG_BYTES, RecordTags, class_tags, number_tags, tag_records
from parley.privacy.target_bins import Bins
from parley.spec.run import RunSpec
from parley.tables.digests import labels_digest
from parley.tables.errors import RowsDiffer
from parley.tables.loading import Labels

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
    terms: DatasetTerms = field(default_factory=DatasetTerms)
    """What the labels' owner allows over all runs."""
    evaluations: EvaluationAccess | None = None
    """Counts figures on true labels; None where they stay with the label holder."""
    problem_imports: Collection[str] = ()
    """Problems that the coordinator's owner lets a run import."""
    terms_of: Callable[[str], DatasetTerms] = lambda _: DatasetTerms()
    """What owners of other label tables allow, by name."""
    names_of: Callable[[str], Sequence[str]] = lambda name: (name,)
    """All names of the same labels, by one of them."""

    def beside(self, table: str) -> "LabelAccess":
        """Another label table of the same coordinator, about the same rows, with an account of its own."""
        spec = self.spec.model_copy(update={"labels": table})
        return replace(
            self, spec=spec, run_id=f"{self.run_id}/{table}" if self.run_id else "", terms=self.terms_of(table)
        )

    def evaluation(self, labels: Labels, rows: RowNumbers, name: str, times: int) -> Evaluation:
        """The way out for figures on the true labels of these rows; `times` is for the whole run."""
        if self.evaluations is None or not len(rows):
            return Evaluation(len(rows))
        found = self.evaluations.over(labels, rows, name, times)
        if self.spec.stop is not None and found.is_exact:
            self._note_stop()
        return found

    def _note_stop(self) -> None:
        """Say in the account of the labels that exact figures on them decide when the run ends, which parties see.

        A party that moves its part of one row's scores from evaluation to evaluation reads that row's label off the
        model that is kept: no ε stands for that.

        Raises:
            UnprotectedRefused: if the labels' owner allows no release without noise.
        """
        if self.spec.privacy.labels.mechanism == "off":  # which the run's gate says
            return
        if self.terms.unprotected == "refuse":
            raise UnprotectedRefused(
                f"`stop` tells parties which evaluation was the best, an exact figure on labels of "
                f"{self.spec.label_table}, whose owner releases nothing without noise: leave `stop` out, or ask the "
                "owner for `evaluation_epsilon`"
            )
        if not self.run_id:  # it is only checked
            return
        dataset, chain = self._dataset(), f"{self.run_id}/stop"
        nobody = np.empty((0, TAG_BYTES), dtype=np.uint8)
        account = DatasetCharge(self.terms, RecordTags(dataset, nobody, nobody))
        recipients, once = tuple(entry.name for entry in self.spec.parties), RecordCounts(np.ones(1, dtype=np.int64))
        self.ledger.open_run(chain, 1, Budget(math.inf), dataset=dataset)
        self.ledger.reserve(chain, 0, 1, Charge(Unprotected(), recipients, once, account=account))

    @property
    def measures(self) -> Measures | None:
        """What is measured beside the usual figures; None where figures leave with noise only."""
        known = self.evaluations.policy if self.evaluations else EvaluationPolicy()
        asked = self.spec.evaluation
        if known.epsilon is not None:
            return None
        return Measures(asked.threshold, known.minimum_rows, asked.resamples)

    def load(self, loss: str) -> Labels:
        """The labels, as a loss of this name takes them."""
        labels = self.read(self.spec, "real" if loss in ("squared", "ridge") else "classes")
        if loss in ("logistic", "squared_hinge") and len(labels.classes) != 2:
            raise LabelsMissing(
                f"the {loss} loss takes two classes, {self.spec.label_table} has {len(labels.classes)}: name a label "
                "table of two classes (`labels`), train all classes by `algorithm: bambi` with `loss: softmax`, or "
                "numbers by `loss: squared` or glm's `family: linear`"
            )
        return labels

    def check_size(self, labels: Labels) -> None:
        """Refuse numbers that no sum of predictions could reach: it would be found out in the middle of the run.

        Raises:
            LabelsMissing: if their root mean square is larger than a sum may be; that of the declared range, if noisy.
        """
        if labels.classes or not len(labels):
            return
        limit, bins = self.spec.privacy.aggregation.resolved[2], self.spec.privacy.labels.bins
        square = (
            (bins.low**2 + bins.low * bins.high + bins.high**2) / 3
            if bins is not None
            else float(np.mean(np.square(labels.values)))
        )
        if square > limit**2:
            raise LabelsMissing(
                f"numbers of {self.spec.label_table} are too large for a sum, which holds {limit:g} at most: have the "
                "coordinator's owner declare `unit: 100000` (or the like) for these labels, so that figures and "
                "predictions are hundred thousands, or agree on a larger `aggregation.limit` in the spec's privacy and "
                "all parties' policies"
            )

    def class_weights(self, labels: Labels, rows: RowNumbers, wanted: Any) -> NDArray[np.float64] | None:
        """The weight of each class, as a spec's `class_weights` wants it for these training rows; None for alike.

        Raises:
            LabelsMissing: if the weights are not those of the labels' classes.
        """
        if wanted is None:
            return None
        if wanted == "balanced":
            return balanced_weights(labels.values[rows], len(labels.classes))
        if set(wanted) != set(labels.classes):
            quotes = " (YAML reads yes, no, on and off as truth values: put them in quotes)"
            raise LabelsMissing(
                f"class_weights are of {', '.join(sorted(wanted))}; the classes of {self.spec.label_table} are "
                f"{', '.join(labels.classes[:20])}: give each of them a weight, or write `balanced`"
                + (quotes if {"True", "False"} & set(wanted) else "")
            )
        return np.array([wanted[name] for name in labels.classes])

    def gate(
        self, labels: Labels, loss: Loss, plan: ReleasePlan, dtype: type[np.floating[Any]] = np.float32
    ) -> LabelGate:
        """The gate through which the run's labels leave, as numbers of this type; opens the run in the ledger."""
        settings, noise = self.spec.privacy.labels, KeyedNoise(self.noise_key)
        off = settings.mechanism == "off"
        bins = None if settings.bins is None else Bins(settings.bins.low, settings.bins.high, settings.bins.points)
        policy = LabelPolicy(settings.mechanism, None if off else settings.epsilon, settings.kind, bins)
        dataset = self._dataset()
        tags = tag_records(noise, dataset, labels.ids, _values(labels))
        vault = LabelVault(labels.values, loss, policy, noise, self.run_id, tags, labels.classes, dtype, self.measures)
        budget, digest = Budget(math.inf) if off else self._budget(), labels_digest(labels)
        self.ledger.open_run(self.run_id, len(labels), budget, digest, dataset)
        recipients = tuple(entry.name for entry in self.spec.parties)
        return LabelGate(
            vault,
            self.ledger,
            self.run_id,
            recipients,
            plan.released_rows,
            plan.releases,
            plan.trained_rows,
            self.terms,
        )

    def _dataset(self) -> str:
        """What the account of the labels is called: by the first of their names, or by the one that it has already."""
        names = self.names_of(self.spec.label_table)
        if len(names) == 1:
            return names[0]
        known = self.ledger.datasets()
        return next((name for name in names if name in known), names[0])

    def _budget(self) -> Budget:
        """What the run may spend: what its spec says, or ε of its one draw, or all that the labels' owner allows."""
        settings = self.spec.privacy.labels
        if settings.budget is not None:
            return Budget(settings.budget)
        if settings.mechanism == "once":
            return Budget(settings.epsilon)
        # a run that goes on keeps the budget that it began with, though the owner may have changed theirs
        return self.ledger.budget_of(self.run_id) or Budget(self.terms.epsilon, self.terms.delta)


def _values(labels: Labels) -> NDArray[np.void]:
    """What each record's label is, for its tag."""
    if labels.classes:
        return class_tags(labels.classes, labels.values.astype(np.int64))
    return number_tags(labels.values.astype(np.float64))


def check_rows(labels: Labels, rows: int, digest: bytes, party: str) -> None:
    """Refuse labels that are not about the parties' rows."""
    if len(labels) != rows:
        raise RowsDiffer(f"there are {len(labels)} labels for {rows} rows of {party}: align labels and tables by id")
    if bytes.fromhex(labels.row_digest) != digest:
        raise RowsDiffer(f"the labels' ids are not those of {party}'s {rows} rows: align labels and tables")
