"""The coordinator's only holder of raw labels.

Everything that leaves the coordinator is computed from `target`, which returns noisy rows only; there is no method that
returns a label. `score` is the one function of true labels, for the label holder's own eyes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from parley.numerics.losses import Logistic, Loss, Softmax, Squared
from parley.numerics.metrics import Measures, class_details, classification_figures, intervals, regression_figures
from parley.privacy.accounting import Release, Unprotected
from parley.privacy.dataset_ledger import FRESH
from parley.privacy.label_mechanisms import (
    ONCE,
    Kind,
    LabelMechanism,
    Schedule,
    UnaryLabels,
    UnknownLabelMechanism,
    choose_mechanism,
)
from parley.privacy.noise import KeyedNoise, WordSource
from parley.privacy.permanent_noise import PermanentNoise, RecordTags, class_tags, number_tags, tag_records
from parley.privacy.target_bins import BinnedTargets, Bins

Array = NDArray[Any]


class RegressionLabelsUnprotected(ValueError):
    """Label privacy was asked for real-valued labels in a way for which there is no mechanism."""


class LabelsStayInTheVault(TypeError):
    """Something tried to serialise the vault."""


class NoSuchRecord(IndexError):
    """A row names a record that has no label here."""


@dataclass(frozen=True)
class LabelPolicy:
    """How a run protects its labels."""

    schedule: Schedule
    """`once` (recommended), `per_step` (the paper's), or `off`."""
    epsilon: float | None = None
    """ε for all runs together (`once`) or for one release (`per_step`); none when off."""
    kind: Kind = "auto"
    """Which noise; `auto` takes the one with the lower variance."""
    bins: Bins | None = field(default=None, repr=False)
    """The declared range of a regression's labels."""


@dataclass(frozen=True)
class Score:
    """How the model does on true labels. A function of true labels: it must not leave the label holder."""

    loss: float
    accuracy: float
    accuracy_name: str
    figures: dict[str, float]
    """Further figures: those of `parley.numerics.metrics` that the rows at hand define."""


class LabelVault:
    """Labels behind their mechanism. Runs at the coordinator (the label holder), nowhere else."""

    def __init__(
        self,
        labels: Array,
        loss: Loss,
        policy: LabelPolicy,
        noise: KeyedNoise,
        run: str,
        tags: RecordTags | None = None,
        classes: Sequence[str] = (),
        dtype: type[np.floating[Any]] = np.float32,
        measures: Measures | None = None,
    ) -> None:
        """`tags` say which records the labels belong to (rows by number if left out), `classes` what labels mean.

        `measures` says what `score` computes beside the figures that every run has; nothing if left out. `dtype` is
        that of true targets; noisy ones are small whole numbers or have noise that hides the digits.
        """
        self._loss = loss
        self._policy = policy
        self._noise = noise
        self._run = run
        self._mechanism = _mechanism(loss, policy)
        self._truth = loss.encode(labels, dtype)  # refuses labels that do not fit the loss
        if isinstance(self._mechanism, BinnedTargets) and self._truth.shape[1] != 1:
            raise RegressionLabelsUnprotected("Bins protect one target; train each on its own.")
        self._labels = np.asarray(labels).reshape(len(self._truth), -1)[:, 0]
        self._once: Array | None = None
        self._classes, self._measures = classes, measures
        self.tags = tags or _numbered(noise, labels)
        self._permanent = PermanentNoise(noise, self.tags, "\0".join(classes))

    def __repr__(self) -> str:
        return f"LabelVault({len(self)} records, {self._policy})"

    def __len__(self) -> int:
        return len(self._truth)

    def __reduce__(self) -> NoReturn:
        raise LabelsStayInTheVault("A label vault cannot be pickled or copied; load the labels where they are held.")

    @property
    def event(self) -> Release:
        """What one release of one record is, for the ledger."""
        return Unprotected() if self._mechanism is None else self._mechanism.event

    @property
    def draw(self) -> str:
        """Names the permanent draw of the noise, for the ledger; `FRESH` where each release draws its own."""
        if self._policy.schedule != "once" or self._mechanism is None:
            return FRESH
        return self._permanent.draw_name(self._mechanism.purpose)

    def billed_release(self, release: int) -> int:
        """Return the release that `release` is paid under: itself, or the run's only one where ỹ is drawn once."""
        return ONCE if self._policy.schedule == "once" else release

    def loss_for_training(self) -> Loss:
        """Return the loss that `target` rows belong to (forward-corrected for randomised classes)."""
        return self._loss if self._mechanism is None else self._mechanism.training_loss(self._loss)

    def target(self, release: int, rows: NDArray[np.int64]) -> Array:
        """Return noisy target rows (B×C) for the records `rows`.

        The same for all trajectories and parties; a repeated call, in any batch layout, returns the same bytes. What
        the rows cost must be in the ledger before anything computed from them leaves.
        """
        rows = self._checked(rows)
        if self._policy.schedule == "off":
            return self._truth[rows]
        assert self._mechanism is not None  # noqa: S101 (every other schedule has one)
        if self._policy.schedule != "once":
            return self._draw(self._mechanism, release, rows)
        if self._once is None:
            self._once = self._draw(self._mechanism, ONCE, np.arange(len(self)))
        return np.asarray(self._once[rows])

    def score(self, rows: NDArray[np.int64], h: Array) -> Score:
        """Compute metrics on **true** labels, for the label holder's own eyes.

        Never send them to a party: loss, accuracy and an early stop that follows them are label releases too, and
        these carry no noise and no charge.
        """
        rows = self._checked(rows)
        truth, predicted = self._truth[rows], self._loss.predict(h)
        figures_of = regression_figures if isinstance(self._loss, Squared) else classification_figures
        figures = figures_of(predicted, self._labels[rows])
        if self._measures is not None:
            figures |= self._details(rows, h, self._measures)
        return Score(self._loss.value(h, truth), self._loss.accuracy(h, truth), self._loss.accuracy_name, figures)

    def _details(self, rows: NDArray[np.int64], h: Array, measures: Measures) -> dict[str, float]:
        loss, labels, truth, predicted = self._loss, self._labels[rows], self._truth[rows], self._loss.predict(h)
        figures_of = regression_figures if isinstance(loss, Squared) else classification_figures

        def resampled(drawn: Array) -> dict[str, float]:
            again = {
                "loss": loss.value(h[drawn], truth[drawn]),
                loss.accuracy_name: loss.accuracy(h[drawn], truth[drawn]),
            }
            return again | figures_of(predicted[drawn], labels[drawn])

        found = {} if isinstance(loss, Squared) else class_details(predicted, labels, self._classes, measures)
        return found | intervals(resampled, len(rows), measures)

    def _draw(self, mechanism: LabelMechanism, release: int, rows: NDArray[np.int64]) -> Array:
        source: WordSource = self._permanent if self._policy.schedule == "once" else self._noise
        labels = self._labels[rows]
        if not isinstance(mechanism, BinnedTargets):
            labels = labels.astype(np.int64)
        noisy = mechanism.noisy(labels, source, self._run, release, rows)
        return noisy[:, 1:] if isinstance(self._loss, Logistic) else noisy

    def _checked(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        rows = np.asarray(rows, dtype=np.int64).reshape(-1)
        if rows.size and (rows.min() < 0 or rows.max() >= len(self)):
            raise NoSuchRecord(f"Records are 0 … {len(self) - 1}; the batch was made for another table of labels.")
        return rows


def _numbered(noise: KeyedNoise, labels: Array) -> RecordTags:
    """Tags of labels that nobody named: rows by number, classes by number."""
    values = np.asarray(labels)
    if np.issubdtype(values.dtype, np.integer) and values.size and values.min() >= 0:
        tagged = class_tags(
            [str(number) for number in range(int(values.max()) + 1)], values.reshape(len(values), -1)[:, 0]
        )
    else:
        tagged = number_tags(values)
    return tag_records(noise, "", [str(row) for row in range(len(values))], tagged)


def _mechanism(loss: Loss, policy: LabelPolicy) -> LabelMechanism | None:
    """Return the mechanism that fits the loss; none for an unprotected regression."""
    match loss:
        case Softmax(classes=classes):
            return choose_mechanism(policy.schedule, classes, policy.epsilon, policy.kind)
        case Logistic():
            mechanism = choose_mechanism(policy.schedule, 2, policy.epsilon, policy.kind)
            if isinstance(mechanism, UnaryLabels):
                raise UnknownLabelMechanism("A single logit has one column for two bits; use randomised_response.")
            return mechanism
        case Squared() if policy.schedule == "off":
            return None
        case Squared() if policy.schedule == "once" and policy.bins is not None and policy.epsilon is not None:
            mechanism = BinnedTargets(policy.epsilon, policy.bins)
            mechanism.event  # noqa: B018  (refuses an ε or a number of points that makes no sense)
            return mechanism
        case Squared():
            raise RegressionLabelsUnprotected(
                "Real-valued labels are protected by noise that is drawn once on bins of a declared range: give "
                "`mechanism: once` and `bins: {low: …, high: …}`, or turn label privacy off explicitly."
            )
        case _:
            raise UnknownLabelMechanism(
                f"No label mechanism is known for {type(loss).__name__}; use Softmax, Logistic or Squared."
            )
