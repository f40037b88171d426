"""Benchmarks, by name: `benchmarks.<name>` has `run()` and `plot(rows, path)`."""

from pathlib import Path

from parley.modules import Rows, load, module_name, names_in

PACKAGE = "parley.benchmarks"


def offered() -> list[str]:
    """The benchmarks that are there: modules of the package that can be run."""
    import importlib

    return [name for name in names_in(PACKAGE) if hasattr(importlib.import_module(module_name(PACKAGE, name)), "run")]


def measure(name: str) -> Rows:
    """Run a benchmark; its rows have case, metric, value, unit, baseline and ratio."""
    rows: Rows = load(PACKAGE, name, offered()).run()
    return [{key: row.get(key) for key in ("case", "metric", "value", "unit", "baseline", "ratio")} for row in rows]


def draw(name: str, rows: Rows, path: Path) -> None:
    """Draw a benchmark's rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    load(PACKAGE, name, offered()).plot(rows, path)
