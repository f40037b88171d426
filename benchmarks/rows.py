"""A row of a benchmark's table: what was measured, and against what."""

from typing import Any


def row_of(
    case: str, metric: str, value: float, unit: str, baseline: str | None = None, ratio: float | None = None
) -> dict[str, Any]:
    """What `parley bench` prints and writes."""
    against = None if ratio is None else float(ratio)
    return {"case": case, "metric": metric, "value": float(value), "unit": unit, "baseline": baseline, "ratio": against}
