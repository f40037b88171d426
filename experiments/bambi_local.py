"""bambi-local: local rounds with the settings of a spec that says nothing, on two small tasks, beside one exchange.

docs/papers/bambi.md, "Local rounds". Real processes, mutual TLS, pairwise masks; both levels have the same rows.

    digits    scikit-learn's digits at three parties; a fifth of the rows is held out by each seed
    coupled   1500 rows, three columns at each of three parties, on which only the blocks together tell the class:
              a₁ = z + 2a₂ − 4a₃ + noise, class = argmax z; who adds the blocks up exactly reads 0.91 of the classes

One exchange is the control: parties train alone and their logits are added. Where it does as well, a task says
nothing about the rounds. MNIST is in `bambi-local-mnist`, with the same settings.

    parley reproduce bambi-local [--quick] [--json FILE] [--plot FILE]
"""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import yaml

from parley.client import Federation, Run
from parley.local import LocalFederation
from parley.splitting import split_dataset

Row = dict[str, Any]

THREE = ("bank", "shop", "telco")
SMALL = {"kind": "mlp", "hidden": [64], "out": 16}
COUPLED_ROWS, COUPLED_NOISE = 1500, 0.2
EXACT = {"mechanism": "off"}
DIGITS_SPLIT = {"lower": 0.8, "upper": "lower", "test": 0.2}
METRICS = ("rounds", "bytes", "label releases")


def local(model: Mapping[str, Any], **settings: Any) -> dict[str, Any]:
    """The `train` section: a network, and whatever `settings` say of local rounds."""
    return {"algorithm": "bambi", "hypergradient": "local", "model": dict(model), "local": settings}


@contextmanager
def three_parties(task: str) -> Iterator[Federation]:
    """A client of three parties with the digits, or with the coupled columns."""
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        if task == "digits":
            split_dataset("digits", THREE, directory / "data")
        else:
            write_coupled(directory / "data")
        tables = {name: {"train": {"path": directory / "data" / f"{name}.parquet"}} for name in THREE}
        services = LocalFederation(directory, tables, {"train": {"path": directory / "data" / "labels.parquet"}})
        with services, services.connect() as client:
            yield client


def write_coupled(folder: Path) -> None:
    """Three files of columns and one of classes."""
    draw = np.random.default_rng(0)
    score, second, third = draw.standard_normal((3, COUPLED_ROWS, 3))
    first = score + 2 * second - 4 * third + COUPLED_NOISE * draw.standard_normal(score.shape)
    folder.mkdir(parents=True)
    ids = [f"{row:04d}" for row in range(COUPLED_ROWS)]
    for name, block in zip(THREE, (first, second, third), strict=True):
        columns = {f"{name}{n}": column / column.std() for n, column in enumerate(block.T)}
        pa.parquet.write_table(pa.table({"id": ids, **columns}), folder / f"{name}.parquet")
    classes = [str(number) for number in score.argmax(axis=1)]
    pa.parquet.write_table(pa.table({"id": ids, "label": classes}), folder / "labels.parquet")


def trained(client: Federation, parties: tuple[str, ...], seed: int, **sections: Any) -> Run:
    """A completed run."""
    spec = {
        "name": "local",
        "seed": seed,
        "parties": list(parties),
        "evaluate_every": 0,
        "checkpoint_every": 0,
        "round_seconds": 600,
        **sections,
    }
    run = client.start(yaml.safe_dump(spec))
    run.result()
    return run


def run(quick: bool, data: Path | None = None, seed: int = 0) -> list[Row]:  # noqa: ARG001 (small either way, and made)
    """Accuracy on held-out rows and what it cost."""
    rows: list[Row] = []
    for task in ("digits", "coupled"):
        with three_parties(task) as client:
            for case, settings in ((task, {}), (f"{task}, one exchange", {"exchanges": 1, "epochs": 50})):
                sections = {
                    "split": DIGITS_SPLIT,
                    "train": local(SMALL, **settings),
                    "privacy": {"labels": EXACT},
                }
                rows += rows_of(case, trained(client, THREE, seed, **sections))
    return rows


def plot(rows: list[Row], path: Path) -> None:
    """Accuracy of each case, and the rounds that it took."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for axes, metric, label in ((left, "accuracy", "accuracy on held-out rows"), (right, "rounds", "rounds")):
        shown = [row for row in rows if row["metric"] == metric]
        axes.barh([row["case"] for row in shown], [row["ours"] for row in shown])
        axes.set_xlabel(label)
    figure.savefig(path)


def rows_of(case: str, done: Run) -> list[Row]:
    """What a run reached, and what it cost."""
    found = {"accuracy": done.metrics["test accuracy"]} | {metric: done.metrics[metric] for metric in METRICS}
    return [{"case": case, "metric": metric, "ours": value, "paper": None} for metric, value in found.items()]
