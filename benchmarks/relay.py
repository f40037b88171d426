"""What a relay costs: steps per second of parties that only dial out against the same run where all listen.

Three federations of real processes on one machine: all parties listen; all dial the coordinator; all dial a relay that
runs by itself. Every round of measurements visits every case in each, one after the other, so that a noisy machine is
noisy for all; ratios are medians over rounds. Parties without a model show the relay at its worst, since nothing but
the wire is left of a step: `relayed` is that under pairwise masks, the protection by default. `digits` is the run of
the demonstration.
"""

import contextlib
import statistics
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from parley.benchmarks.null_federation import Protection, federation, machine_rows, null_spec
from parley.benchmarks.rows import row_of
from parley.client import Federation
from parley.splitting import split_dataset

NAMES = ("bank", "shop", "telco")
BATCH, STEPS, WARM_UP_STEPS, REPEATS = 256, 200, 20, 3
WAYS: dict[str, dict[str, Any]] = {
    "direct": {},
    "relayed": {"outbound": NAMES, "relay_options": {}},
    "relayed by the coordinator": {"outbound": NAMES},
}
USUAL = "pairwise"
NULL = {USUAL: Protection("pairwise"), "plain": Protection(), "two_tree": Protection("two_tree")}
DIGITS = Path(__file__).parents[1] / "demo.yaml"


def specs(steps: int = STEPS) -> dict[str, str]:
    """Every run that is measured."""
    found = {name: null_spec(NAMES, protection, steps=steps, batch=BATCH) for name, protection in NULL.items()}
    digits = yaml.safe_load(DIGITS.read_text()) | {"table": "digits", "parties": list(NAMES)}
    return found | {"digits": yaml.safe_dump(digits)}


def run(repeats: int = REPEATS, steps: int = STEPS) -> list[dict[str, Any]]:
    """Measure every case and return rows of case, metric, value, unit, baseline and ratio."""
    before = machine_rows()
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        clients = {way: stack.enter_context(_federation(Path(scratch), way)) for way in WAYS}
        seconds: dict[str, dict[str, list[float]]] = {name: {way: [] for way in WAYS} for name in specs()}
        for repeat in range(repeats + 1):
            for name, spec in specs(steps if repeat else WARM_UP_STEPS).items():
                for way, client in clients.items():
                    metrics = client.start(spec).result()
                    if repeat:  # the first round warms everything up
                        seconds[name][way].append(metrics["seconds"] / metrics["rounds"])
    return [*before, *(row for name, found in seconds.items() for row in speed_rows(name, found)), *machine_rows()[1:]]


@contextlib.contextmanager
def _federation(scratch: Path, way: str) -> Iterator[Federation]:
    folder = scratch / way.replace(" ", "-")
    local, digits = federation(folder, NAMES, **WAYS[way]), folder / "digits"
    split_dataset("digits", NAMES, digits)
    tables = {name: {**own, "digits": {"path": digits / f"{name}.parquet"}} for name, own in local.tables.items()}
    labels = {**local.labels, "digits": {"path": digits / "labels.parquet", "budget": {"epsilon": 1e9}}}
    with replace(local, tables=tables, labels=labels) as started, started.connect() as client:
        yield client


def speed_rows(name: str, seconds: Mapping[str, list[float]]) -> list[dict[str, Any]]:
    """Steps per second of each way, against the direct one."""
    direct = seconds["direct"]
    return [
        row_of(
            way if name == USUAL else f"{way}, {name}",
            "steps",
            1 / statistics.median(found),
            "1/s",
            None if way == "direct" else "direct",
            None if way == "direct" else statistics.median(a / b for a, b in zip(direct, found, strict=True)),
        )
        for way, found in seconds.items()
    ]


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Speed relative to where all parties listen."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
    found = [row for row in rows if row["ratio"] is not None and row["metric"] == "steps"]
    axes.barh([row["case"] for row in found], [row["ratio"] for row in found])
    axes.axvline(1, color="black", linewidth=1)
    axes.set(xlabel="steps per second relative to direct")
    figure.savefig(path, dpi=150)
    plt.close(figure)
