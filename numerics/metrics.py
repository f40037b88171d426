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

Beside them stand figures of single cuts, bands and classes, whose names have a slash (`score_bands`), and the ends of
bootstrap intervals, `auc/low` and `auc/high`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parley.numerics.score_bands import plain, several_class_detail, two_class_detail
from parley.numerics.streams import stream

Array = NDArray[Any]

BINS = 10
"""Of the calibration curve: equally wide, as regulators draw them."""


LEVEL = 0.95
"""Of bootstrap intervals."""


@dataclass(frozen=True)
class Measures:
    """What is measured beside the figures that every run has."""

    threshold: float = 0.5
    """A row counts as the second of two classes above this probability."""
    least: int = 20
    """Fewest rows of a cell that leaves."""
    resamples: int = 0
    """Of bootstrap intervals; 0 for none."""


def class_details(p: Array, truth: Array, names: Sequence[str], measures: Measures) -> dict[str, float]:
    """Confusion matrix, rates, and bands or classes, over cells of enough rows."""
    p, truth = _columns(p), np.asarray(truth, dtype=np.int64)
    named = [names[c] if c < len(names) else str(c) for c in range(p.shape[1])]
    least = max(measures.least, 1)
    if p.shape[1] == 2:
        return two_class_detail(p[:, 1], truth, named, measures.threshold, least)
    areas = {
        f"classes/auc/{plain(name)}": float(f"{auc(p[:, c], truth == c):.4g}")
        for c, name in enumerate(named)
        if least <= int((truth == c).sum()) <= len(truth) - least
    }
    return areas | several_class_detail(p, truth, named, least)


def intervals(figures_of: Callable[[Array], dict[str, float]], rows: int, measures: Measures) -> dict[str, float]:
    """Ends of percentile intervals of figures, of so many resamples of the rows; to three digits, for what leaves.

    The rows of the resamples are the same in every run: by other ones, figures of other parts of the rows would leave.
    """
    if not measures.resamples or not rows:
        return {}
    draw = stream(0, "bootstrap")
    found: dict[str, list[float]] = {}
    for _ in range(measures.resamples):
        for name, value in figures_of(draw.integers(0, rows, rows)).items():
            found.setdefault(name, []).append(value)
    ends = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
    return {
        f"{name}/{side}": float(f"{np.quantile(values, end):.3g}")
        for name, values in found.items()
        for side, end in zip(("low", "high"), ends, strict=True)
        if len(values) == measures.resamples  # a figure that some resamples do not define has no interval
    }


def classification_figures(probabilities: Array, classes: Array) -> dict[str, float]:
    """Figures of class probabilities, (rows, classes) or (rows, 1) of the second of two, against class numbers."""
    p, truth = _columns(probabilities), np.asarray(classes, dtype=np.int64)
    if not len(truth):
        return {}
    return _two_classes(p[:, 1], truth == 1) if p.shape[1] == 2 else _several_classes(p, truth)


def _columns(probabilities: Array) -> Array:
    p = np.asarray(probabilities, dtype=np.float64)
    return np.hstack([1.0 - p, p]) if p.shape[1] == 1 else p


AVERAGED = ("loss", "auc", "average precision", "ks", "brier score", "calibration error")
"""Figures that are averaged over parties which hold labels of their own."""


def party_addends(probabilities: Array, classes: Array) -> Array:
    """One party's addends of such averages: AVERAGED, then a one for each that its rows define."""
    p, truth = np.asarray(probabilities, dtype=np.float64), np.asarray(classes, dtype=np.int64)
    figures = classification_figures(p, truth)
    if len(truth):
        likely = np.maximum(p[np.arange(len(truth)), truth], np.finfo(np.float64).tiny)
        figures["loss"] = float(-np.log(likely).mean())
    defined = [name in figures for name in AVERAGED]
    return np.array([*(figures.get(name, 0.0) for name in AVERAGED), *defined], dtype=np.float64)


def party_averages(sums: Array) -> dict[str, float]:
    """The averages, from the sums of all parties' addends; figures that no party's rows define are left out."""
    values, parties = np.split(np.asarray(sums, dtype=np.float64), 2)
    counts = np.rint(parties)
    found = zip(AVERAGED, values, counts, strict=True)
    return {f"mean {name}": float(value / count) for name, value, count in found if count > 0}


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
