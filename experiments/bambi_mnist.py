"""bambi-mnist: hyper-representation on MNIST at four parties, by zeroth order and by implicit differentiation.

BAMBI (the paper), section 5 and appendix E.2; MNIST (LeCun, Cortes, Burges). Every party holds a horizontal strip of
seven pixel rows and a 4-layer perceptron, the coordinator the labels. Real processes, mutual TLS, pairwise masks.

Rows 0 … 49999 train (both levels), 50000 … 59999 chose the settings, 60000 … 69999 are the test that is reported.
Label privacy is off here: `bambi-dp-mnist` has it. A label release is one draw of one batch's labels; `implicit` makes
two for each upper iteration, however many Newton steps it takes on the lower batch.

differs from the paper: it prints α = β = 0.01, with which 400 upper steps reach 88 %; the zeroth-order steps here are
larger, and the Jacobian term, whose noise is √(p/Q) times its size, is clipped to 0.3 of the direct term.

    parley reproduce bambi-mnist --data DIR [--quick] [--json FILE] [--plot FILE]
"""

import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from parley.client import Federation, Run
from parley.local import LocalFederation
from parley.splitting import split_dataset

Row = dict[str, Any]

PARTIES = ("north", "upper-middle", "lower-middle", "south")
PAPER_ACCURACY = 0.9759
"""Table 1, without label privacy."""
MODEL = {"kind": "mlp", "hidden": [64, 64, 64], "out": 32}


class MnistMissing(FileNotFoundError):
    """The experiment was not told where MNIST is."""


def zeroth_order(steps: int = 2000, warmup: int = 200) -> dict[str, Any]:
    """One direction, five lower steps; both step sizes fall over the last 70 % of the run."""
    return {
        "algorithm": "bambi",
        "hypergradient": "zeroth_order",
        "model": MODEL,
        "regularisation": 1e-4,
        "upper": {"steps": steps, "batch": 256, "optimiser": {"step": 0.2, "decay_from": 0.3}},
        "lower": {
            "solver": "sgd",
            "steps": 5,
            "batch": 128,
            "warmup_steps": warmup,
            "optimiser": {"step": 0.5, "decay_from": 0.3},
        },
        "zeroth_order": {"directions": 1, "smoothing": 1e-3, "jacobian_clip": 0.3},
    }


def implicit(
    steps: int = 600,
    lower_batch: int = 160,
    upper_batch: int = 768,
    step: float = 5e-3,
    regularisation: float = 2e-2,
) -> dict[str, Any]:
    """One Newton step from a warm start and two adjoint rounds; Adam above.

    A lower batch has fewer rows than y has weights: a large γ and one conjugate-gradient round keep Newton from
    fitting the batch.
    """
    return {
        "algorithm": "bambi",
        "hypergradient": "implicit",
        "model": MODEL,
        "regularisation": regularisation,
        "upper": {
            "steps": steps,
            "batch": upper_batch,
            "optimiser": {"kind": "adam", "step": step, "decay_from": 0.2},
        },
        "lower": {"solver": "newton", "steps": 1, "batch": lower_batch, "warmup_steps": 3},
        "implicit": {"rounds": 2, "newton_rounds": 1},
    }


@contextmanager
def mnist_federation(data: Path | None) -> Iterator[Federation]:
    """A client of four parties, each a process with its own strip, and a coordinator with the labels."""
    folder = mnist_folder(data)
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        split_dataset(folder, PARTIES, directory / "data")
        tables = {name: {"train": {"path": directory / "data" / f"{name}.parquet"}} for name in PARTIES}
        # experiments compare many ε over one table; nobody's labels are at stake
        labels = {"train": {"path": directory / "data" / "labels.parquet", "budget": {"epsilon": 1e6}}}
        services = LocalFederation(directory, tables, labels)
        with services, services.connect() as client:
            yield client


def mnist_folder(data: Path | None) -> Path:
    """Where the IDX files are."""
    if data is None:
        raise MnistMissing("say where MNIST is: --data DIR, with the IDX files in DIR/mnist or in DIR")
    folder = data / "mnist" if (data / "mnist").is_dir() else data
    if not any(folder.glob("train-images-idx3-ubyte*")):
        raise MnistMissing(f"{folder} has no train-images-idx3-ubyte.gz: --data DIR must hold the four MNIST files")
    return folder


def trained(
    client: Federation, train: Mapping[str, Any], labels: Mapping[str, Any], name: str, seed: int = 0
) -> tuple[Run, float]:
    """A completed run, and how many seconds it took."""
    spec = {
        "name": name,
        "seed": seed,
        "parties": list(PARTIES),
        "split": {"lower": "0:50000", "upper": "lower", "test": "60000:70000"},
        "train": dict(train),
        "privacy": {"labels": dict(labels)},
        "evaluate_every": 0,
        "checkpoint_every": 0,
        "round_seconds": 600,
    }
    started = time.monotonic()
    run = client.start(yaml.safe_dump(spec))
    run.result()
    return run, time.monotonic() - started


def run(quick: bool, data: Path | None = None, seed: int = 0) -> list[Row]:
    """Accuracy on the test rows and what it cost, for both modes; `quick` takes a fifth of the upper steps."""
    modes = {
        "zeroth_order": zeroth_order(400, 50) if quick else zeroth_order(),
        "implicit": implicit(120) if quick else implicit(),
    }
    rows: list[Row] = []
    with mnist_federation(data) as client:
        for mode, train in modes.items():
            done, seconds = trained(client, train, {"mechanism": "off"}, f"mnist-{mode.replace('_', '-')}", seed)
            case = f"{mode}, {train['upper']['steps']} upper steps" if quick else mode
            rows.append(_row(case, "accuracy", done.metrics["test accuracy"], PAPER_ACCURACY))
            rows += [_row(case, metric, done.metrics[metric]) for metric in ("rounds", "bytes", "label releases")]
            rows.append(_row(case, "seconds", seconds))
    return rows


def plot(rows: list[Row], path: Path) -> None:
    """Accuracy of each mode, and its rounds, bytes and label releases relative to the dearest."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    cases = list(dict.fromkeys(row["case"] for row in rows))
    found = {(row["case"], row["metric"]): row for row in rows}
    for index, case in enumerate(cases):
        row = found[case, "accuracy"]
        left.errorbar(
            [case], [row["ours"]], [row.get("sd") or 0.0], fmt="o", markersize=8, capsize=5, color=f"C{index}"
        )
    left.axhline(PAPER_ACCURACY, linestyle="--", color="grey", label=f"the paper: {PAPER_ACCURACY}")
    left.set_xlim(-0.5, len(cases) - 0.5)
    left.set_ylabel("test accuracy")
    left.legend()
    metrics = ("rounds", "bytes", "label releases")
    for index, case in enumerate(cases):
        shares = [
            found[case, metric]["ours"] / max(found[other, metric]["ours"] for other in cases) for metric in metrics
        ]
        right.bar([place + 0.4 * index for place in range(len(metrics))], shares, width=0.4, label=case)
    right.set_xticks([place + 0.2 for place in range(len(metrics))], metrics)
    right.set_ylabel("share of the dearest mode")
    figure.legend(*right.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    figure.savefig(path)


def _row(case: str, metric: str, ours: float, paper: float | None = None) -> Row:
    return {"case": case, "metric": metric, "ours": ours, "paper": paper}
