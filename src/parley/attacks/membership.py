"""Was a row trained on? From predictions of the finished model (loss threshold, Yeom et al. 2018)."""

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from parley.attacks.findings import Finding, bounded, unbounded
from parley.attacks.stand_in import StandIn
from parley.attacks.tapes import Array, rehearse
from parley.numerics.streams import stream
from parley.protocols.fedbio.settings import FedbioSpec
from parley.simulation.runs import PredictionUnsupported, holdings_of, train_pooled
from parley.spec.rows import divide

MEMBERSHIP, AVERAGED = "membership from predictions", "membership from averages"


def advantage(members: NDArray[np.float64], others: NDArray[np.float64]) -> float:
    """The largest difference, over all thresholds, between the shares of members and of others below it."""
    edges = np.sort(np.concatenate([members, others]))
    below = [np.searchsorted(np.sort(part), edges, side="right") / len(part) for part in (members, others)]
    return float(np.max(below[0] - below[1]))


def chance(members: int, others: int) -> float:
    """An advantage that two samples of one distribution pass once in ten thousand times (Kolmogorov and Smirnov)."""
    return math.sqrt(-math.log(1e-4) / 2) * math.sqrt((members + others) / (members * others))


def infer_membership(subject: StandIn) -> list[Finding]:
    """Train on labels that nobody could predict, and tell rows that were trained on by their loss."""
    rows = divide(subject.spec.split, subject.rows, stream(subject.spec.seed, "split"))
    if isinstance(subject.spec.train, FedbioSpec):
        return _from_averages(subject, subject.spec.train)
    if subject.spec.train.layout != "vertical" or not len(rows.test):
        return []
    trained = train_pooled(subject.spec, subject.stores, subject.labels)
    try:
        scores = trained.predict([held.table for held in holdings_of(subject.spec, subject.stores)])
    except PredictionUnsupported:
        return []
    losses = _losses(scores, subject.truth)
    found = advantage(losses[rows.trained], losses[rows.test])
    luck = chance(len(rows.trained), len(rows.test))
    told = f"advantage {found:.2f} over guessing ({luck:.2f} by chance), {len(rows.trained)} rows with random labels"
    remedy = "train for fewer steps or with more regularisation, and permit `predict` to few"
    return [unbounded(MEMBERSHIP, "client", told, max(found, 0.0), luck, remedy)]


def most_advantage(epsilon: float, delta: float) -> float:
    """The largest advantage that (ε, δ)-differential privacy of a record allows anyone who tells members by it."""
    return min(1.0, (math.expm1(epsilon) + 2 * delta) / (math.exp(epsilon) + 1))


def _from_averages(subject: StandIn, train: FedbioSpec) -> list[Finding]:
    """Tell the rows of the last party from rows that it never had, by the loss of the averaged model."""
    name, held = subject.spec.parties[-1].name, holdings_of(subject.spec, subject.stores)[-1]
    classes = subject.classes
    known = held.tables.labels(subject.spec.table_of(len(subject.spec.parties) - 1)).values.astype(np.int64)
    draw = np.random.default_rng(11)
    others, wrong = draw.standard_normal(subject.features[name].shape), draw.integers(0, classes, subject.rows)
    model = rehearse(subject).models[-1]
    losses = [_losses(_scores(model, each), label) for each, label in ((held.table.features, known), (others, wrong))]
    found, luck = max(advantage(*losses), 0.0), chance(subject.rows, subject.rows)
    told = f"advantage {found:.2f} over guessing ({luck:.2f} by chance), {subject.rows} rows with random labels"
    records = train.record_privacy
    if records is None:
        remedy = "write `record_privacy` under `train`, or train for fewer rounds"
        return [unbounded(AVERAGED, "coordinator", told, found, luck, remedy)]
    most = min(1.0, most_advantage(records.epsilon, records.delta) + luck)
    return [bounded(AVERAGED, "coordinator", told, found, most, f"ε = {records.epsilon:g} of each record")]


def _scores(model: Mapping[str, Array], rows: Array) -> Array:
    """Probabilities that a network by layers gives to rows."""
    for layer in range(len(model) // 2):
        rows = np.maximum(rows, 0.0) if layer else rows
        rows = rows @ model[f"layers.{layer}.weight"] + model[f"layers.{layer}.bias"]
    return np.asarray(softmax(rows, axis=1))


def _losses(scores: NDArray[np.floating], truth: NDArray[np.int64]) -> NDArray[np.float64]:
    scores = np.clip(np.asarray(scores, dtype=np.float64), 1e-12, 1.0)
    if scores.shape[1] == 1:
        right = np.where(truth == 1, scores[:, 0], 1 - scores[:, 0])
    else:
        right = scores[np.arange(len(truth)), truth]
    return np.asarray(-np.log(np.clip(right, 1e-12, 1.0)))
