"""What a table of scores and classes tells at cuts between them: the confusion matrix, and the points of curves.

Two cuts around one row would tell its class. So cuts lie on a grid of hundredths, and only where at least `least` rows
lie between any two of them and beyond the outermost. Where they lie follows from the scores alone, so that whatever
threshold is asked for, in however many runs, the counts of the same bands are all that can be put together.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
GRID = np.arange(1, 100) / 100
"""Where cuts may lie: a row is above a cut if its score is larger."""
HALF = 50
"""The cell above ½."""
MOST_BANDS = 20
"""Of a curve."""
MOST_CLASSES = 10
"""Of a confusion matrix."""


@dataclass(frozen=True)
class Band:
    """Rows with scores up to a cut, and above the one before."""

    up_to: float
    rows: int
    mean: float
    """Of their scores."""
    positives: int


def cuts(scores: Array, least: int) -> list[int]:
    """Numbers of the cuts, ascending: cut j lies at GRID[j]. From ½ outwards, if both sides have enough rows."""
    counts = np.bincount(np.searchsorted(GRID, scores), minlength=len(GRID) + 1)
    below, above = int(counts[:HALF].sum()), int(counts[HALF:].sum())
    if min(below, above) >= least:
        upward = [HALF + j for j in _walk(counts[HALF:], least)]
        downward = [HALF - 2 - j for j in _walk(counts[:HALF][::-1], least)]
        return sorted([*downward, HALF - 1, *upward])
    if above <= below:
        return sorted(len(GRID) - 1 - j for j in _walk(counts[::-1], least))
    return _walk(counts, least)


def _walk(counts: Array, least: int) -> list[int]:
    """After which cells there is a cut, so that there are enough rows before each and after the last."""
    found, passed, left = [], 0, int(counts.sum())
    for j, count in enumerate(counts):
        passed, left = passed + int(count), left - int(count)
        if passed >= least and left >= least:
            found.append(j)
            passed = 0
    return found


def bands(scores: Array, positive: Array, least: int) -> list[Band]:
    """At most twenty bands of about as many rows each, lowest scores first."""
    cells, wanted = np.searchsorted(GRID, scores), max(least, -(-len(scores) // MOST_BANDS))
    chosen, begun, found = [], 0, cuts(scores, least)
    for cut in found:
        rows = int(((cells >= begun) & (cells <= cut)).sum())
        if rows >= wanted:
            chosen.append(cut)
            begun = cut + 1
    told = []
    for low, high in zip([0, *(cut + 1 for cut in chosen)], [*chosen, len(GRID)], strict=True):
        inside = (cells >= low) & (cells <= high)
        rows = int(inside.sum())
        mean = float(scores[inside].mean()) if rows else 0.0
        told.append(Band(float(GRID[high]) if high < len(GRID) else 1.0, rows, mean, int(positive[inside].sum())))
    return told


def cut_near(scores: Array, threshold: float, least: int) -> float | None:
    """The cut that is nearest to a threshold; None where there is none."""
    found = cuts(scores, least)
    return float(min(GRID[found], key=lambda cut: abs(cut - threshold))) if found else None


def two_class_detail(
    scores: Array, truth: Array, names: Sequence[str], threshold: float, least: int
) -> dict[str, float]:
    """The confusion matrix at the cut near a threshold, what follows from it, and the bands of the curves."""
    positive = truth == 1
    cut = cut_near(scores, threshold, least)
    if cut is None:
        return {}
    above = scores > cut
    figures = {"threshold": cut} | _rates(float((above & positive).sum()), float(above.sum()), float(positive.sum()))
    for t, true in enumerate(names):
        for p, predicted in enumerate(names):
            count = float(((truth == t) & (above == bool(p))).sum())
            figures[f"confusion/{plain(true)}/{plain(predicted)}"] = count
    for band in bands(scores, positive, least):
        name = f"bands/{band.up_to:.2f}"
        told = {"rows": float(band.rows), "mean": float(f"{band.mean:.3g}"), "positives": float(band.positives)}
        figures |= {f"{name}/{what}": value for what, value in told.items()}
    return figures


def several_class_detail(p: Array, truth: Array, names: Sequence[str], least: int) -> dict[str, float]:
    """Figures of each class that enough rows are of and are taken for, and the confusion matrix of a few classes.

    Classes that few rows are taken for are one column of the matrix, `other`, of enough rows in all.
    """
    taken, figures = p.argmax(axis=1), dict[str, float]()
    predicted = np.bincount(taken, minlength=p.shape[1])
    rare = _rare(predicted, least)
    for c, name in enumerate(names):
        positive = truth == c
        enough = min(int(positive.sum()), int((~positive).sum())) >= least
        if enough and c not in rare:
            rates = _rates(float((positive & (taken == c)).sum()), float(predicted[c]), float(positive.sum()))
            figures |= {f"classes/{what}/{plain(name)}": value for what, value in rates.items()}
    if len(names) > MOST_CLASSES or len(rare) == len(names):
        return figures
    for t, true in enumerate(names):
        for c, name in enumerate(names):
            if c not in rare:
                figures[f"confusion/{plain(true)}/{plain(name)}"] = float(((truth == t) & (taken == c)).sum())
        if rare:
            others = float(((truth == t) & np.isin(taken, list(rare))).sum())
            figures[f"confusion/{plain(true)}/other"] = others
    return figures


def _rare(predicted: Array, least: int) -> set[int]:
    """Classes that few rows are taken for, and as many more as it takes for enough rows in all."""
    order = np.argsort(predicted, kind="stable")
    chosen = [int(c) for c in order if 0 < predicted[c] < least]
    for c in order:
        if 0 < int(predicted[chosen].sum()) < least and int(c) not in chosen and predicted[c]:
            chosen.append(int(c))
    return set(chosen)


def _rates(hits: float, taken: float, there: float) -> dict[str, float]:
    """Precision, recall and F1; those that no row defines are left out."""
    found = {"precision": hits / taken} if taken else {}
    found |= {"recall": hits / there} if there else {}
    return found | ({"f1": 2 * hits / (taken + there)} if taken + there else {})


def plain(name: str) -> str:
    """A class's name as part of a figure's."""
    return name.replace("/", "_")[:40]
