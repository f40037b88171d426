"""How well a model does in detail, put together from a run's metrics: confusion matrix, classes, intervals, curves."""

from collections.abc import Mapping
from typing import Any

Points = list[tuple[float, float]]


def quality(metrics: Mapping[str, float], held_out: str = "test") -> dict[str, Any]:
    """What the details of a run's metrics say about held-out rows; empty where there are none."""
    parts = {
        tuple(n.removeprefix(f"{held_out} ").split("/")): v for n, v in metrics.items() if n.startswith(f"{held_out} ")
    }
    found: dict[str, Any] = {
        "intervals": _intervals(parts),
        "confusion": [(true, taken, count) for (true, taken), count in _under(parts, "confusion").items()],
        "classes": [(name, what, value) for (what, name), value in _under(parts, "classes").items()],
        "curves": curves(parts),
    }
    return {name: each for name, each in found.items() if each}


def curves(parts: Mapping[tuple[str, ...], float]) -> dict[str, Points]:
    """Points of the ROC, precision-recall and calibration curves, by the bands of scores."""
    bands: dict[float, dict[str, float]] = {}
    for (edge, what), value in _under(parts, "bands").items():
        bands.setdefault(float(edge), {})[what] = value
    rows, positives = (sum(band[what] for band in bands.values()) for what in ("rows", "positives"))
    if not 0 < positives < rows:
        return {}
    taken, hits, roc, precision = 0.0, 0.0, [(0.0, 0.0)], list[tuple[float, float]]()
    for up_to in sorted(bands, reverse=True):
        taken, hits = taken + bands[up_to]["rows"], hits + bands[up_to]["positives"]
        roc.append(((taken - hits) / (rows - positives), hits / positives))
        precision.append((hits / positives, hits / taken))
    told = [(bands[u]["mean"], bands[u]["positives"] / bands[u]["rows"]) for u in sorted(bands)]
    return {"ROC": roc, "precision and recall": precision, "calibration": told}


def _intervals(parts: Mapping[tuple[str, ...], float]) -> list[tuple[str, float, float]]:
    ends = {name[0]: value for name, value in parts.items() if len(name) == 2 and name[1] == "low"}
    return [(name, low, parts[name, "high"]) for name, low in ends.items()]


def _under(parts: Mapping[tuple[str, ...], float], first: str) -> dict[tuple[str, ...], float]:
    return {name[1:]: value for name, value in parts.items() if len(name) == 3 and name[0] == first}
