"""bambi-levels: what the second level brings beside plain split learning of the same model, and where nothing.

BAMBI (the paper), Eq. 1 and 2, on scikit-learn's digits at three parties, each with a third of every image; exact
labels, one process. `joint` is one level: the same messages, and the rows of both levels as one training set.

    same rows    both levels learn from the same rows: the indirect term vanishes at the lower solution
    own rows     the upper level has rows of its own; `implicit` has the steps of examples/digits-vfhrl.yaml
    old labels   an old system labelled the lower rows, and six in ten of its labels are drawn at random; its guess is
                 among the columns of one party, for every row. A tenth of the rows, the upper ones, were labelled anew
                 by hand. A model that is fitted to the lower rows repeats the old system; `hyper_parameters` tunes a
                 coefficient of γ‖y‖² for each column on the upper rows, and finds out. `joint` gets the best of five γ,
                 chosen on the held-out rows themselves
    shifted      45 % of the lower labels are those of the next digit; 60 rows, the upper ones, are right. `own` learns
                 a weight for each lower row (`SampleWeights`) on the upper rows. One level, and one level on the 60
                 rows alone, get the best of five γ, chosen on the held-out rows themselves

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
NOISY, RELABELLED = 0.6, 0.7
"""How often the old system draws a label at random, and where its rows end."""
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
    "coefficients": "feature",
    "regularisation": 0.05,
    "upper": {"steps": 10, "batch": None, "optimiser": {"kind": "adam", "step": 0.5, "decay_from": 0.5}},
    "lower": {"warmup_steps": 2},
    "implicit": {"rounds": 4, "newton_rounds": 4},
}
WEIGHTS = {
    "problem": "own",
    "own": {
        "label_side": {"path": "parley.numerics.problems.sample_weights:SampleWeights", "options": {"start": 0.5}},
        "optimiser": {"kind": "adam", "step": 0.5},
    },
    "regularisation": 0.03,
    "upper": {"steps": 30, "batch": None},
    "lower": {"solver": "newton", "steps": 2, "warmup_steps": 3},
}
SHIFTED, RIGHT, SHIFTED_END = 0.45, 60, 0.75
"""How many lower labels are those of the next digit, how many rows are known to be right, and where these end."""
GAMMAS = (1e-4, 0.01, 0.1, 1.0, 3.0)
"""What one level is tried with."""


def digits(seed: int, labels: str = "right") -> tuple[list[Array], Array]:
    """Every party's columns and the classes, in an order for each seed; `labels` are `right`, `old` or `shifted`."""
    generator, data = np.random.default_rng(seed), load_digits()
    order = generator.permutation(len(data.target))
    scaled = (data.data - data.data.mean(axis=0)) / np.maximum(data.data.std(axis=0), 1e-6)
    blocks = [part[order] for part in np.array_split(scaled, len(PARTIES), axis=1)]
    classes = data.target[order].astype(np.int64)
    if labels == "shifted":
        wrong = generator.random(len(classes)) < SHIFTED
        wrong[int(SHIFTED_END * len(classes)) - RIGHT :] = False
        classes = (classes + wrong) % 10
    if labels == "old":
        drawn = generator.random(len(classes)) < NOISY
        guesses = np.where(drawn, generator.integers(10, size=len(classes)), classes)
        blocks[-1] = np.hstack([blocks[-1], (np.eye(10)[guesses] - 0.1) / 0.3])
        relabelled = int(RELABELLED * len(classes))
        classes[:relabelled] = guesses[:relabelled]
    return [np.ascontiguousarray(part, dtype=np.float32) for part in blocks], classes


def divided(labels: str, upper: str | None, count: int) -> dict[str, str]:
    """The rows of each level; `upper: lower` leaves rows whose labels are not known to be right out."""
    right = {"right": 0, "old": int(RELABELLED * count), "shifted": int(SHIFTED_END * count) - RIGHT}[labels]
    first = right or int(LOWER * count)
    second = int((SHIFTED_END if labels == "shifted" else UPPER) * count)
    lower = f"{right}:{second}" if upper == "lower" else f"0:{first}"
    return {"lower": lower, "upper": upper or f"{first}:{second}", "test": f"{second}:{count}"}


def trained(train: Mapping[str, Any], seed: int, *, upper: str | None = None, labels: str = "right") -> PooledRun:
    """A run on the digits; `upper` are the rows of the upper level, left out for those between the two marks."""
    blocks, classes = digits(seed, labels)
    count = len(classes)
    spec = {
        "name": "levels",
        "seed": seed,
        "parties": list(PARTIES),
        "split": divided(labels, upper, count),
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
        "old labels, hyper_parameters": (TUNED, {"labels": "old"}),
        "shifted labels, own": (WEIGHTS, {"labels": "shifted"}),
        "old labels, upper rows alone": (PLAIN | {"regularisation": 0.01}, {"labels": "old", "upper": "lower"}),
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
    for case, changes in {
        "old labels, joint": {"labels": "old"},
        "shifted labels, joint": {"labels": "shifted"},
        "shifted labels, upper rows alone": {"labels": "shifted", "upper": "lower"},
    }.items():
        rows += _best_joint(case, changes, seeds)
    return rows


def _best_joint(case: str, changes: dict[str, Any], seeds: range) -> list[Row]:
    """One level, with the γ that does best on the held-out rows."""
    tried = [[trained(PLAIN | {"regularisation": gamma}, seed, **changes) for seed in seeds] for gamma in GAMMAS]
    accuracies = [[one.metrics["test accuracy"] for one in done] for done in tried]
    best = max(range(len(GAMMAS)), key=lambda place: sum(accuracies[place]))
    return _rows(f"{case}, γ = {GAMMAS[best]:g}", accuracies[best], tried[best][0].rounds)


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
