"""Vertical federations of real services for experiments: parties with a block of columns each, and runs on them."""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from parley.client import Federation, Run
from parley.local import LocalFederation

Row = dict[str, Any]

EXACT = {"mechanism": "off"}


@contextmanager
def vertical_services(parties: Sequence[str], write: Callable[[Path], Any]) -> Iterator[Federation]:
    """A client of services whose tables `write` puts into a folder: one file for each party, and labels.parquet."""
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        write(directory / "data")
        tables = {name: {"train": {"path": directory / "data" / f"{name}.parquet"}} for name in parties}
        # experiments compare many ε over one table; nobody's labels are at stake
        labels = {"train": {"path": directory / "data" / "labels.parquet", "budget": {"epsilon": 1e6}}}
        services = LocalFederation(directory, tables, labels)
        with services, services.connect() as client:
            yield client


def trained(
    client: Federation,
    parties: Sequence[str],
    train: Mapping[str, Any],
    *,
    seed: int,
    split: Mapping[str, Any],
    labels: Mapping[str, Any] = EXACT,
) -> Run:
    """A completed run, scored at its end."""
    spec = {
        "name": "experiment",
        "seed": seed,
        "parties": list(parties),
        "split": dict(split),
        "train": {"algorithm": "bambi", **train},
        "privacy": {"labels": dict(labels)},
        "evaluate_every": 0,
        "checkpoint_every": 0,
        "round_seconds": 600,
    }
    run = client.start(yaml.safe_dump(spec))
    run.result()
    return run


def figures(case: str, done: Run, *metrics: str) -> list[Row]:
    """Rows of a run: `accuracy` on the test rows, `MB` that crossed, `total epsilon`, or any metric by its name."""
    known = {"accuracy": lambda: done.metrics["test accuracy"], "MB": lambda: done.metrics["bytes"] / 1e6}
    known["total epsilon"] = lambda: done.ledger().report.pure_epsilon
    return [
        {"case": case, "metric": metric, "ours": known[metric]() if metric in known else done.metrics[metric]}
        | {"paper": None}
        for metric in metrics
    ]


def images_in(data: Path | None, name: str) -> Path | None:
    """The folder of IDX files of that name below `data`, or None."""
    found = None if data is None else data / name
    return found if found is not None and any(found.glob("train-images-idx3-ubyte*")) else None


def left_out(cases: str, data: Path | None, name: str) -> None:
    """Say which cases are not made, and why."""
    place = "no --data DIR was given" if data is None else f"{data / name} has no train-images-idx3-ubyte.gz"
    print(f"left out: {cases}, since {place}", flush=True)


def plot_accuracy(rows: list[Row], path: Path, beside: str) -> None:
    """Accuracy of each case with its deviation over seeds, and what it cost in `beside`, in powers of ten."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 5), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for axes, metric, digits in ((left, "accuracy", ".3f"), (right, beside, ".4g")):
        shown = [row for row in rows if row["metric"] == metric]
        bars = axes.barh(
            [row["case"] for row in shown],
            [row["ours"] for row in shown],
            xerr=[row.get("sd") or 0 for row in shown] if metric == "accuracy" else None,
            color="#7f9cbf",
        )
        axes.bar_label(bars, [f"{row['ours']:{digits}}" for row in shown], padding=3, fontsize=8)
        axes.margins(x=0.2)
    left.set_xlabel("accuracy on held-out rows")
    left.invert_yaxis()
    right.set_xlabel(beside)
    right.set_xscale("log")
    figure.savefig(path)
