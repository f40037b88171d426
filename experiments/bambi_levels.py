"""bambi-levels: what the second level brings beside plain split learning of the same model, and where nothing.

BAMBI (the paper), Eq. 1 and 2, on scikit-learn's digits at three parties, each with a third of every image; exact
labels, one process. `joint` is one level: the same messages, and the rows of both levels as one training set.

    same rows    both levels learn from the same rows: the indirect term vanishes at the lower solution
    own rows     the upper level has rows of its own; `implicit` is examples/digits-vfhrl.yaml with exact labels
    old labels   an old system labelled the lower rows, and six in ten of its labels are drawn at random; its guess is
                 among the columns of one party, for every row. A tenth of the rows, the upper ones, were labelled anew
                 by hand. A model that is fitted to the lower rows repeats the old system; `hyper_parameters` tunes a
                 coefficient of γ‖y‖² for each column on the upper rows, and finds out. `joint` gets the best of five γ,
                 chosen on the held-out rows themselves

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
GAMMAS = (1e-4, 0.01, 0.1, 1.0, 3.0)
"""What one level is tried with."""


def digits(seed: int, noisy: bool) -> tuple[list[Array], Array]:
    """Every party's columns and the classes, in an order of its own for each seed."""
    generator, data = np.random.default_rng(seed), load_digits()
    order = generator.permutation(len(data.target))
    scaled = (data.data - data.data.mean(axis=0)) / np.maximum(data.data.std(axis=0), 1e-6)
    blocks = [part[order] for part in np.array_split(scaled, len(PARTIES), axis=1)]
    classes = data.target[order].astype(np.int64)
    if noisy:
        drawn = generator.random(len(classes)) < NOISY
        guesses = np.where(drawn, generator.integers(10, size=len(classes)), classes)
        blocks[-1] = np.hstack([blocks[-1], (np.eye(10)[guesses] - 0.1) / 0.3])
        relabelled = int(RELABELLED * len(classes))
        classes[:relabelled] = guesses[:relabelled]
    return [np.ascontiguousarray(part, dtype=np.float32) for part in blocks], classes


def trained(train: Mapping[str, Any], seed: int, *, upper: str | None = None, noisy: bool = False) -> PooledRun:
    """A run on the digits; `upper` are the rows of the upper level, left out for those between the two marks.

    With `noisy`, `upper: lower` leaves the rows of the old system out.
    """
    blocks, classes = digits(seed, noisy)
    count = len(classes)
    first, second = int((RELABELLED if noisy else LOWER) * count), int(UPPER * count)
    lower = f"{first if noisy else 0}:{second}" if upper == "lower" else f"0:{first}"
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
        "old labels, hyper_parameters": (TUNED, {"noisy": True}),
        "old labels, upper rows alone": (PLAIN | {"regularisation": 0.01}, {"noisy": True, "upper": "lower"}),
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
    return rows + _best_joint(seeds)


def _best_joint(seeds: range) -> list[Row]:
    """One level on the old labels and the new ones, with the γ that does best on the held-out rows."""
    tried = [[trained(PLAIN | {"regularisation": gamma}, seed, noisy=True) for seed in seeds] for gamma in GAMMAS]
    accuracies = [[one.metrics["test accuracy"] for one in done] for done in tried]
    best = max(range(len(GAMMAS)), key=lambda place: sum(accuracies[place]))
    return _rows(f"old labels, joint, γ = {GAMMAS[best]:g}", accuracies[best], tried[best][0].rounds)


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
