"""bambi-local: local rounds with the settings of a spec that says nothing, on three tasks, beside a single exchange.

docs/papers/bambi.md, "Local rounds". Real processes, mutual TLS, pairwise masks; both levels have the same rows.

    digits    scikit-learn's digits at three parties; a fifth of the rows is held out by each seed
    coupled   1500 rows, three columns at each of three parties, on which only the blocks together tell the class:
              a₁ = z + 2a₂ − 4a₃ + noise, class = argmax z
    MNIST     the federation, the rows and the model of `bambi-mnist` (with `--data`), without and with label privacy

One exchange is the control: parties train alone and their logits are added. Where it does as well, a task says
nothing about the rounds.

    parley reproduce bambi-local [--data DIR] [--quick] [--json FILE] [--plot FILE]
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
from parley.experiments.bambi_mnist import MODEL, PARTIES, mnist_federation
from parley.local import LocalFederation
from parley.splitting import split_dataset

Row = dict[str, Any]

THREE = ("bank", "shop", "telco")
SMALL = {"kind": "mlp", "hidden": [64], "out": 16}
COUPLED_ROWS, COUPLED_NOISE = 1500, 0.5
EXACT = {"mechanism": "off"}
DIGITS_SPLIT = {"lower": 0.8, "upper": "lower", "test": 0.2}
MNIST_SPLIT = {"lower": "0:50000", "upper": "lower", "test": "60000:70000"}
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


def run(quick: bool, data: Path | None = None) -> list[Row]:
    """Accuracy on held-out rows and what it cost, mean over seeds; `quick` takes one seed, no `data` no MNIST."""
    seeds = range(1) if quick else range(3)
    rows: list[Row] = []
    for task in ("digits", "coupled"):
        with three_parties(task) as client:
            for case, settings in ((task, {}), (f"{task}, one exchange", {"exchanges": 1, "epochs": 50})):
                sections = {
                    "split": DIGITS_SPLIT,
                    "train": local(SMALL, **settings),
                    "privacy": {"labels": EXACT},
                }
                rows += _rows(case, [trained(client, THREE, seed, **sections) for seed in seeds])
    return rows + (_mnist(data, seeds) if data is not None else [])


def _mnist(data: Path, seeds: range) -> list[Row]:
    rows: list[Row] = []
    labels: dict[str, dict[str, Any]] = {
        "MNIST": EXACT,
        "MNIST, once ε=1": {"mechanism": "once", "epsilon": 1.0},
        "MNIST, per_step ε₀=1": {"mechanism": "per_step", "epsilon": 1.0, "kind": "randomised_response"},
    }
    with mnist_federation(data) as client:
        for case, privacy in labels.items():
            sections = {"split": MNIST_SPLIT, "train": local(MODEL), "privacy": {"labels": privacy}}
            done = [trained(client, PARTIES, seed, **sections) for seed in seeds]
            rows += _rows(case, done)
            if privacy is not EXACT:
                totals = [run.ledger().report.pure_epsilon for run in done]
                rows.append(_row(case, "total epsilon", max(totals)))
        alone = local(MODEL, exchanges=1, rows=50000, epochs=10)
        sections = {"split": MNIST_SPLIT, "train": alone, "privacy": {"labels": EXACT}}
        rows += _rows("MNIST, one exchange", [trained(client, PARTIES, seed, **sections) for seed in seeds])
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


def _rows(case: str, done: list[Run]) -> list[Row]:
    accuracies = [run.metrics["test accuracy"] for run in done]
    return [
        _row(case, "accuracy", float(np.mean(accuracies))),
        _row(case, "lowest accuracy", min(accuracies)),
        *(_row(case, metric, max(run.metrics[metric] for run in done)) for metric in METRICS),
    ]


def _row(case: str, metric: str, ours: float) -> Row:
    return {"case": case, "metric": metric, "ours": ours, "paper": None}
