"""What a prediction costs: the latency of one row, and rows per second in batches, on a trained federation.

Three parties as real processes over mutual TLS, digits, every sum under pairwise masks. Rows are in a table that the
parties hold beside their training table. A prediction opens a session with fresh keys at every party, and closes it
again; a call that does nothing (GetRun) shows what the wire alone takes, and the same model in one process what the
arithmetic takes.
"""

import functools
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from parley.benchmarks.rows import row_of
from parley.local import LocalFederation
from parley.services.coordinator.config import LabelConfig
from parley.services.coordinator.labels import LabelStore
from parley.services.party.config import TableConfig
from parley.services.party.tables import TableStore
from parley.simulation import train_pooled
from parley.spec.parsing import parse_spec
from parley.splitting import split_dataset

PARTIES = ("bank", "shop", "telco")
SINGLES, BATCHES, BATCH = 200, 20, 1000
SPEC = """
name: serving
parties: [bank, shop, telco]
split: {lower: 0.9, upper: lower, test: 0.1}
train: {algorithm: bambi, model: {kind: mlp, hidden: [64], out: 16}, upper: {steps: 5}}
privacy: {labels: {mechanism: "off"}}
"""


def run() -> list[dict[str, Any]]:
    """Time single rows and batches; rows of case, metric, value, unit, baseline and ratio."""
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        split_dataset("digits", PARTIES, directory / "data")
        files = {name: directory / "data" / f"{name}.parquet" for name in PARTIES}
        labels = {"train": {"path": directory / "data" / "labels.parquet"}}
        tables = {name: {"train": {"path": path}, "fresh": {"path": path}} for name, path in files.items()}
        alone = _alone(files, labels["train"]["path"])
        with LocalFederation(directory, tables, labels) as federation, federation.connect() as client:
            trained = client.start(SPEC)
            trained.result()
            ids = trained.predict("fresh").ids
            picks = np.random.default_rng(0).integers(len(ids), size=SINGLES)
            empty = _times([trained.refresh] * SINGLES)
            singles = _times([functools.partial(trained.predict, "fresh", [ids[row]]) for row in picks])
            batches = _times([lambda: trained.predict("fresh", ids[:BATCH])] * BATCHES)
            whole = _times([lambda: trained.predict("fresh")] * 5)
    base = 1e3 * statistics.median(empty)
    p50, p99 = (1e3 * float(np.percentile(singles, q)) for q in (50, 99))
    batch, table = BATCH / statistics.median(batches), len(ids) / statistics.median(whole)
    return [
        row_of("no prediction", "latency p50", base, "ms", "GetRun", 1.0),
        row_of("one row by id", "latency p50", p50, "ms", "GetRun", p50 / base),
        row_of("one row by id", "latency p99", p99, "ms", "GetRun", p99 / base),
        row_of(f"{BATCH} rows by id", "throughput", batch, "rows/s", "one process", batch / alone),
        row_of(f"all {len(ids)} rows", "throughput", table, "rows/s", "one process", table / alone),
    ]


def _alone(files: dict[str, Path], labels: Path) -> float:
    """Rows per second of the same model in one process."""
    stores = {name: TableStore({"train": TableConfig(path=str(path))}) for name, path in files.items()}
    trained = train_pooled(parse_spec(SPEC), stores, LabelStore({"train": LabelConfig(path=str(labels))}))
    tables = [store.load("train") for store in stores.values()]
    return len(tables[0]) / statistics.median(_times([lambda: trained.predict(tables)] * BATCHES))


def _times(calls: list[Callable[[], object]]) -> list[float]:
    seconds = []
    for call in calls:
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    return seconds


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Bars of latency and of throughput."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 1, figsize=(7, 4), layout="constrained")
    for axis, unit in zip(axes, ("ms", "rows/s"), strict=True):
        shown = [row for row in rows if row["unit"] == unit]
        names = [f"{row['case']}, {row['metric'].split()[-1]}" for row in shown]
        axis.bar_label(axis.barh(names, [row["value"] for row in shown], color="#4472a8"), fmt="%.3g", padding=3)
        axis.set(xlabel=unit)
        axis.invert_yaxis()
    axes[0].set(title="Prediction on a federation of three parties")
    figure.savefig(path, dpi=150)
    plt.close(figure)
