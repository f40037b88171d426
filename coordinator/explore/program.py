"""Exploring at the coordinator: labels behind their gate, once, where the spec asks for figures against them."""

from collections.abc import Generator
from typing import Any

import numpy as np

from parley.coordinator.forecasts import Forecast, Trips, Widths, widths_of
from parley.coordinator.labels import LabelAccess, LabelsMissing, ReleasePlan, check_rows
from parley.coordinator.programs import CommonRows, CoordinatorAlgorithm, Observer, due
from parley.numerics.losses import ForwardCorrectedLogistic, Logistic
from parley.numerics.streams import stream
from parley.privacy.label_gate import LabelGate
from parley.privacy.pair_products import LIMBS, from_floats, products_of
from parley.privacy.release import OutcomeGate
from parley.protocols.explore.codec import PROTOCOL, decode_contribution, encode_instruction
from parley.protocols.explore.messages import ExploreRound, ReleasedLabels
from parley.protocols.explore.settings import ExploreSpec
from parley.spec.rows import Rows, divide
from parley.spec.run import RunSpec
from parley.tables.loading import Labels


class ExploreProgram:
    """A run: one round that makes the figures, with labels or without, and one that keeps them."""

    outputs, finish = 2, ExploreRound("finish", 1)
    encode, decode = staticmethod(encode_instruction), staticmethod(decode_contribution)

    def __init__(
        self, labels: LabelGate | None, rows: Rows, checkpoint_every: int, *, correlations: bool = False
    ) -> None:
        self._correlations = correlations
        self._labels, self._rows, self._checkpoint_every = labels, rows, checkpoint_every
        self.gate = (
            OutcomeGate(lambda _: False) if labels is None else OutcomeGate(labels.is_paid, labels.is_known_paid)
        )

    def rounds(self, done: int, observe: Observer) -> Generator[ExploreRound, Any, None]:  # noqa: ARG002 (no metrics)
        """Every round of the run; `done` is 1 where the parties have the figures in their checkpoints."""
        products = None
        if self._correlations and not done:
            products = from_floats((yield ExploreRound("correlate")))
        released = None if done else self._released()
        if not done and due(1, self._checkpoint_every):
            yield ExploreRound("checkpoint", 1, released, products)
            released = products = None  # the parties have made the figures
        yield ExploreRound("finish", 1, released, products)

    def _released(self) -> ReleasedLabels | None:
        if self._labels is None:
            return None
        classes, loss = self._labels.target(0, self._rows).reshape(-1).astype(np.uint8), self._labels.loss
        return ReleasedLabels(classes, loss.flip if isinstance(loss, ForwardCorrectedLogistic) else 0.0)


def program(spec: RunSpec, access: LabelAccess) -> ExploreProgram:
    """The program of a run."""
    crossed = spec.settings(ExploreSpec).correlations
    if not spec.settings(ExploreSpec).against_label:
        return ExploreProgram(None, np.empty(0, dtype=np.int64), spec.checkpoint_every, correlations=crossed)
    labels = two_classes(access)
    rows = divide(spec.split, len(labels), stream(spec.seed, "split")).trained
    _count_figures(spec, access, labels, rows)
    gate = access.gate(labels, Logistic(), ReleasePlan(lambda _: rows, 1, rows))
    return ExploreProgram(gate, rows, spec.checkpoint_every, correlations=crossed)


def two_classes(access: LabelAccess) -> Labels:
    """The labels that evidence is against.

    Raises:
        LabelsMissing: if they are not of two classes.
    """
    labels = access.load("softmax")
    if len(labels.classes) != 2:
        raise LabelsMissing(
            f"evidence is against labels of two classes, {access.spec.label_table} has {len(labels.classes)}: name a "
            "label table of two classes (`labels`), or leave `against_label` out"
        )
    return labels


def check(spec: RunSpec, access: LabelAccess, rows: CommonRows) -> None:
    """Refuse labels that do not fit the parties' rows, or a split that does not."""
    trained = divide(spec.split, rows.count, stream(spec.seed, "split")).trained
    if spec.settings(ExploreSpec).against_label:
        labels = two_classes(access)
        check_rows(labels, rows.count, rows.digest, rows.party)
        _count_figures(spec, access, labels, trained)


def _count_figures(spec: RunSpec, access: LabelAccess, labels: Labels, rows: Rows) -> None:
    """Evidence against true labels is a figure on them, as an accuracy is; of noisy ones the ledger knows already."""
    if spec.privacy.labels.mechanism == "off":
        if access.evaluations is not None:
            access.evaluations.refuse_exact("train.against_label without noise on labels")
        access.evaluation(labels, rows, "explored", 1)


def foretell(spec: RunSpec, access: LabelAccess, widths: Widths) -> Forecast:
    """What the rounds carry: a byte for each row's label down, once, and sums of products up, where all are asked for.

    Masked columns between the parties are counted where labels tell how many rows there are.
    """
    labels = 0
    if spec.settings(ExploreSpec).against_label:
        labels = len(divide(spec.split, len(access.load("logistic")), stream(spec.seed, "split")).trained)
    checkpoint = [Trips(1, keeps=True)] if due(1, spec.checkpoint_every) else []
    if not spec.settings(ExploreSpec).correlations:
        return [Trips(1, labels, keeps=True), *checkpoint]
    known = widths_of(widths, [entry.name for entry in spec.parties])
    products = products_of(known)
    between = 8.0 * labels * sum(known) * (len(known) - 1)
    return [
        Trips(1, summed=LIMBS * products, number_bytes=8, between=between),
        Trips(1, labels + 8 * products, keeps=True),
        *checkpoint,
    ]


ALGORITHM = CoordinatorAlgorithm(PROTOCOL, program, check, forecast=foretell)
