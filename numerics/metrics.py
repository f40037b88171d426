"""How good predictions are: the figures that people of the trade ask for, from probabilities and true labels.

Figures that the labels at hand do not define (a ranking needs rows of both classes) are left out rather than made up.

| figure            | of                | is                                                                        |
|-------------------|-------------------|---------------------------------------------------------------------------|
| auc               | two classes       | P(a positive row scores higher than a negative one), ties count half      |
|                   | several classes   | the mean of each class against the rest (macro)                           |
| average precision | two classes       | Σ (R_n − R_{n−1}) P_n over the thresholds                                 |
| ks                | two classes       | the largest difference of the two classes' distributions of scores        |
| brier score       | classes           | mean squared distance of probabilities from the truth; two classes: of p₁ |
| calibration error | two classes       | mean |share of positives − mean probability| over ten bins, by their rows |
| mae, rmse         | numbers           | as usual                                                                  |
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

BINS = 10
"""Of the calibration curve: equally wide, as regulators draw them."""


def classification_figures(probabilities: Array, classes: Array) -> dict[str, float]:
    """Figures of class probabilities, (rows, classes) or (rows, 1) of the second of two, against class numbers."""
    p = np.asarray(probabilities, dtype=np.float64)
    if p.shape[1] == 1:
        p = np.hstack([1.0 - p, p])
    truth = np.asarray(classes, dtype=np.int64)
    if not len(truth):
        return {}
    return _two_classes(p[:, 1], truth == 1) if p.shape[1] == 2 else _several_classes(p, truth)


def regression_figures(values: Array, targets: Array) -> dict[str, float]:
    """Figures of predicted numbers against the true ones."""
    errors = np.asarray(values, dtype=np.float64).reshape(-1) - np.asarray(targets, dtype=np.float64).reshape(-1)
    if not len(errors):
        return {}
    return {"mae": float(np.mean(np.abs(errors))), "rmse": float(np.sqrt(np.mean(errors**2)))}


def auc(scores: Array, positive: Array) -> float | None:
    """Area under the ROC curve, by ranks; None where all rows are of one class."""
    positives, negatives = int(positive.sum()), int((~positive).sum())
    if not positives or not negatives:
        return None
    ranks = _ranks(scores)[positive].sum()
    return float((ranks - positives * (positives + 1) / 2) / (positives * negatives))


def _ranks(values: Array) -> Array:
    """Ranks from 1; equal values share the mean of theirs. (scipy.stats has this, and takes a second to load.)"""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    shared: Array = np.cumsum(counts) - (counts - 1) / 2
    return shared[place]


def calibration_curve(probabilities: Array, positive: Array) -> list[tuple[float, float, int]]:
    """Of each bin that has rows: mean probability, share of positives, rows."""
    bins = np.minimum((probabilities * BINS).astype(np.int64), BINS - 1)
    counts = np.bincount(bins, minlength=BINS)
    predicted, observed = (np.bincount(bins, weights=w, minlength=BINS) for w in (probabilities, positive))
    return [(float(predicted[b] / n), float(observed[b] / n), int(n)) for b, n in enumerate(counts) if n]


def _two_classes(p: Array, positive: Array) -> dict[str, float]:
    curve = calibration_curve(p, positive)
    figures = {
        "brier score": float(np.mean((p - positive) ** 2)),
        "calibration error": sum(n * abs(share - mean) for mean, share, n in curve) / len(p),
    }
    area = auc(p, positive)
    if area is None:
        return figures
    return {"auc": area, "average precision": _average_precision(p, positive), "ks": _ks(p, positive)} | figures


def _several_classes(p: Array, truth: Array) -> dict[str, float]:
    one_hot = np.arange(p.shape[1]) == truth[:, None]
    figures = {
        "brier score": float(np.mean(np.sum((p - one_hot) ** 2, axis=1))),
    }
    areas = [auc(p[:, c], one_hot[:, c]) for c in range(p.shape[1])]
    known = [area for area in areas if area is not None]
    return ({"auc": float(np.mean(known))} if len(known) == len(areas) else {}) | figures


def _thresholds(scores: Array, positive: Array) -> tuple[Array, Array]:
    """True and false positives at every distinct threshold, from the highest down."""
    order = np.argsort(-scores, kind="stable")
    last = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)
    true = np.cumsum(positive[order])[last]
    return true, last + 1 - true


def _average_precision(scores: Array, positive: Array) -> float:
    true, false = _thresholds(scores, positive)
    gained = np.diff(true, prepend=0) / true[-1]
    return float(np.sum(gained * true / (true + false)))


def _ks(scores: Array, positive: Array) -> float:
    true, false = _thresholds(scores, positive)
    return float(np.max(np.abs(true / true[-1] - false / false[-1])))
