"""bambi-levels: what the second level brings beside plain split learning of the same model, and where nothing.

BAMBI (the paper), Eq. 1 and 2, on scikit-learn's digits at three parties, each with a third of every image; exact
labels, one process. `joint` is one level: the same messages, and the rows of both levels as one training set.

    same rows    both levels learn from the same rows: the indirect term vanishes at the lower solution
    own rows     the upper level has rows of its own; `implicit` is examples/digits-two-levels.yaml with exact labels
    noisy rows   two fifths of the lower rows have a random label and every party has 60 columns of noise; the upper
                 rows are clean. `hyper_parameters` tunes one coefficient of γ‖y‖² for each party on them, from the
                 default γ, which `joint` keeps

    parley reproduce bambi-levels [--quick] [--json FILE] [--plot FILE]
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from parley.simulation import PooledRun, train_tables
from parley.spec.parsing import parse_spec
from parley.tables.loading import Labels, Table

Array = NDArray[Any]
Row = dict[str, Any]

PARTIES = ("bank", "shop", "telco")
LOWER, UPPER = 0.6, 0.8
"""Where the rows of the lower level end, and those of the upper level."""
NOISY, IRRELEVANT = 0.4, 60
MLP = {"kind": "mlp", "hidden": [64], "out": 16}
TWO_LEVELS = {
    "regularisation": 0.01,
    "model": MLP,
    "upper": {"steps": 22, "batch": None, "optimiser": {"kind": "adam", "step": 0.03, "decay_from": 0.3}},
    "lower": {"solver": "newton", "batch": 700, "warmup_steps": 2},
    "implicit": {"rounds": 1, "newton_rounds": 1},
}
JOINT = {
    "problem": "joint",
    "regularisation": 0.01,
    "model": MLP,
    "upper": {"steps": 110, "batch": 256, "optimiser": {"kind": "adam", "step": 0.01, "decay_from": 0.3}},
}
PLAIN = {
    "problem": "joint",
    "model": {"kind": "identity"},
    "upper": {"steps": 300, "batch": 256},
}
TUNED = {
    "problem": "hyper_parameters",
    "upper": {"steps": 20, "batch": None, "optimiser": {"kind": "adam", "step": 0.5, "decay_from": 0.5}},
    "lower": {"warmup_steps": 3},
    "implicit": {"rounds": 6, "newton_rounds": 6},
}
GAMMA, FAIR_GAMMA = 1e-4, 3e-2
"""The γ of a spec that says nothing, and one that somebody found by hand."""


def digits(seed: int, noisy: bool) -> tuple[list[Array], Array]:
    """Every party's columns and the classes, in an order of its own for each seed."""
    generator, data = np.random.default_rng(seed), load_digits()
    order = generator.permutation(len(data.target))
    scaled = (data.data - data.data.mean(axis=0)) / np.maximum(data.data.std(axis=0), 1e-6)
    blocks = [part[order] for part in np.array_split(scaled, len(PARTIES), axis=1)]
    classes = data.target[order].astype(np.int64)
    if noisy:
        blocks = [np.hstack([part, generator.standard_normal((len(part), IRRELEVANT))]) for part in blocks]
        wrong = np.flatnonzero(generator.random(int(LOWER * len(classes))) < NOISY)
        classes[wrong] = generator.integers(10, size=len(wrong))
    return [np.ascontiguousarray(part, dtype=np.float32) for part in blocks], classes


def trained(train: Mapping[str, Any], seed: int, *, upper: str | None = None, noisy: bool = False) -> PooledRun:
    """A run on the digits; `upper` are the rows of the upper level, left out for those between the two marks."""
    blocks, classes = digits(seed, noisy)
    count = len(classes)
    first, second = int(LOWER * count), int(UPPER * count)
    lower = f"0:{second}" if upper == "lower" else f"0:{first}"
    spec = {
        "name": "levels",
        "seed": seed,
        "parties": list(PARTIES),
        "split": {"lower": lower, "upper": upper or f"{first}:{second}", "test": f"{second}:{count}"},
        "train": {"algorithm": "bambi", **train},
        "privacy": {"labels": {"mechanism": "off"}},
        "evaluate_every": 0,
    }
    ids = np.array([f"{row:04d}" for row in range(count)])
    tables = [
        Table(ids, part, [f"c{n}" for n in range(part.shape[1])], name)
        for name, part in zip(PARTIES, blocks, strict=True)
    ]
    return train_tables(parse_spec(yaml.safe_dump(spec)), tables, Labels(ids, classes, tuple("0123456789")))


def run(quick: bool, data: Path | None = None) -> list[Row]:  # noqa: ARG001 (the digits come with scikit-learn)
    """Accuracy on held-out rows, mean over seeds, and rounds; `quick` takes one seed and leaves out the same rows."""
    seeds = range(1) if quick else range(3)
    cases: dict[str, tuple[Mapping[str, Any], dict[str, Any]]] = {
        "own rows, implicit": (TWO_LEVELS, {}),
        "own rows, joint": (JOINT, {}),
        "noisy rows, hyper_parameters": (TUNED | {"regularisation": GAMMA}, {"noisy": True}),
        "noisy rows, joint": (PLAIN | {"regularisation": GAMMA}, {"noisy": True}),
        "noisy rows, joint with another γ": (PLAIN | {"regularisation": FAIR_GAMMA}, {"noisy": True}),
    }
    if not quick:
        cases |= {
            "same rows, implicit": ({"model": MLP}, {"upper": "lower"}),
            "same rows, joint": (JOINT, {"upper": "lower"}),
        }
    rows: list[Row] = []
    for case, (train, changes) in cases.items():
        done = [trained(train, seed, **changes) for seed in seeds]
        rows += _rows(case, [one.metrics["test accuracy"] for one in done], done[0].rounds)
    return rows


def plot(rows: list[Row], path: Path) -> None:
    """Accuracy of each case."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    shown = [row for row in rows if row["metric"] == "accuracy"]
    axes.barh([row["case"] for row in shown], [row["ours"] for row in shown])
    axes.set_xlim(min(row["ours"] for row in shown) - 0.05, 1)
    axes.set_xlabel("accuracy on held-out rows")
    figure.savefig(path)


def _rows(case: str, accuracies: Sequence[float], rounds: int) -> list[Row]:
    found = {
        "accuracy": float(np.mean(accuracies)),
        "lowest accuracy": min(accuracies),
        "rounds": float(rounds),
    }
    return [{"case": case, "metric": metric, "ours": value, "paper": None} for metric, value in found.items()]
