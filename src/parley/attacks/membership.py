"""Was a row trained on? From predictions of the finished model (loss threshold, Yeom et al. 2018)."""

import math

import numpy as np
from numpy.typing import NDArray

from parley.attacks.findings import Finding, unbounded
from parley.attacks.stand_in import StandIn
from parley.numerics.streams import stream
from parley.simulation.runs import PredictionUnsupported, holdings_of, train_pooled
from parley.spec.rows import divide

MEMBERSHIP = "membership from predictions"


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


def _losses(scores: NDArray[np.floating], truth: NDArray[np.int64]) -> NDArray[np.float64]:
    scores = np.clip(np.asarray(scores, dtype=np.float64), 1e-12, 1.0)
    if scores.shape[1] == 1:
        right = np.where(truth == 1, scores[:, 0], 1 - scores[:, 0])
    else:
        right = scores[np.arange(len(truth)), truth]
    return np.asarray(-np.log(np.clip(right, 1e-12, 1.0)))
