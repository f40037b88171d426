"""bambi-sweep: `implicit` and local rounds beside one level, by a spec that names the task, the model and the mode.

docs/papers/bambi.md, "One level". Every other setting is the default; exact labels, both levels on the same rows, a
fifth of the rows held out by each seed (the images have test rows of their own). One process: the roles, gates and
codecs are those of the services, sums are in the clear.

    digits, breast-cancer, wine    scikit-learn's
    classes, rare, few, wide       drawn: 30 classes; 3 % of one of two classes; 80 rows; 200 rows of 1000 columns
    coupled                        drawn: 24 columns that are mixtures of five, of which the label is no linear function
    credit, a9a, w8a               UCI and LIBSVM; left out where `data` lacks credit/ or libsvm/
    mnist, fashion-mnist           the networks of `bambi-mnist`, and fewer seeds; left out where `data` lacks them

`beside one level` is the difference from `problem: joint` at the same seed, and `lowest` the least of all seeds.

    parley reproduce bambi-sweep [--data DIR] [--quick] [--json FILE] [--plot FILE]
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from sklearn.datasets import make_classification

from parley.datasets import load_dataset
from parley.experiments.asysqn_simulation import read_libsvm
from parley.experiments.bambi_mnist import MODEL
from parley.experiments.credit import load_credit
from parley.experiments.vertical_services import Row, left_out, plot_accuracy
from parley.numerics.streams import stream
from parley.simulation.runs import train_tables
from parley.spec.rows import divide
from parley.spec.run import RunSpec
from parley.tables.loading import Labels, Table

Array = NDArray[Any]
MODES: dict[str, dict[str, Any]] = {
    "joint": {"problem": "joint"},
    "implicit": {"hypergradient": "implicit"},
    "local": {"hypergradient": "local"},
}
SEEDS, IMAGE_SEEDS, QUICK_SEEDS = 10, 3, 2
SHARES = {"lower": 0.8, "upper": "lower", "test": 0.2}
IMAGES = {"lower": "0:60000", "upper": "lower", "test": "60000:70000"}
CLASSES = {"n_classes": 30, "n_clusters_per_class": 1, "class_sep": 2.0}
LIBSVM = {"a9a": 123, "w8a": 300}
"""Columns of each table."""


class Task(NamedTuple):
    """What a sweep is about."""

    load: Callable[[int], tuple[Array, Array]]
    """Columns and classes; drawn ones by the seed."""
    parties: tuple[int, ...] = (3,)
    seeds: int = SEEDS
    split: dict[str, Any] = SHARES
    model: dict[str, Any] | None = None
    """The network, where it is not the default."""


def run(quick: bool, data: Path | None = None) -> list[Row]:
    """Mean and lowest accuracy, beside one level; `quick` takes bundled and drawn tables, two seeds."""
    rows: list[Row] = []
    for name, task in (bundled() if quick else bundled() | found(data)).items():
        for parties in task.parties:
            rows += _swept(f"{name} l={parties}", task, parties, QUICK_SEEDS if quick else task.seeds)
    return rows


def bundled() -> dict[str, Task]:
    """Tables that are always there."""
    names = {"digits": "digits", "breast-cancer": "breast_cancer", "wine": "wine"}
    return {name: Task(_reader(load_dataset, known)) for name, known in names.items()} | {
        "classes": Task(lambda seed: _drawn(seed, 3000, 40, n_informative=25, n_redundant=10, **CLASSES), (2, 5)),
        "rare": Task(lambda seed: _drawn(seed, 3000, 20, n_informative=6, weights=[0.97], class_sep=1.2), (2, 5)),
        "few": Task(lambda seed: _drawn(seed, 80, 12, n_informative=5, n_classes=3), (2, 5)),
        "wide": Task(lambda seed: _drawn(seed, 200, 1000, n_informative=30, n_redundant=100, n_classes=3), (2, 5)),
        "coupled": Task(coupled, (2, 5)),
    }


def found(data: Path | None) -> dict[str, Task]:
    """Tables below `data`."""
    folder = data or Path("data")
    tasks: dict[str, Task] = {}
    if (folder / "credit").is_dir():
        tasks["credit"] = Task(_reader(load_credit, folder))
    for name, columns in LIBSVM.items():
        for path in (folder / "libsvm").glob(f"{name}.svm*"):
            tasks[name] = Task(_sparse(path, columns))
    for name in ("mnist", "fashion-mnist"):
        if (folder / name).is_dir():
            read = _reader(load_dataset, folder / name)
            tasks[name] = Task(read, (3, 5), IMAGE_SEEDS, IMAGES, dict(MODEL))
    for name in {"credit", *LIBSVM, "mnist", "fashion-mnist"} - set(tasks):
        left_out(name, data, "libsvm" if name in LIBSVM else name)
    return tasks


def coupled(seed: int) -> tuple[Array, Array]:
    """24 columns mixed from five; the class is sin(2 z₀) + z₁ z₂ > 0."""
    draw = np.random.default_rng(seed)
    z, mixture = draw.standard_normal((2000, 5)), draw.standard_normal((5, 24))
    columns = z @ mixture + 0.05 * draw.standard_normal((2000, 24))
    return columns, (np.sin(2 * z[:, 0]) + z[:, 1] * z[:, 2] > 0).astype(np.int64)


def _drawn(seed: int, rows: int, columns: int, **shape: Any) -> tuple[Array, Array]:
    features, classes = make_classification(rows, columns, random_state=seed, **shape)
    return features, classes


def _reader(load: Callable[[Any], Any], source: Any) -> Callable[[int], tuple[Array, Array]]:
    def read(_: int) -> tuple[Array, Array]:
        dataset = load(source)
        return np.asarray(dataset.features), np.asarray(dataset.labels)

    return read


def _sparse(path: Path, columns: int) -> Callable[[int], tuple[Array, Array]]:
    def read(_: int) -> tuple[Array, Array]:
        features, labels = read_libsvm(path, columns)
        return csr_matrix(features).toarray(), (labels > 0).astype(np.int64)

    return read


def spec_of(task: Task, mode: str, parties: int, seed: int) -> RunSpec:
    """A spec that says nothing else."""
    model = {} if task.model is None else {"model": task.model}
    content = {
        "name": "sweep",
        "seed": seed,
        "parties": [f"party-{number}" for number in range(1, parties + 1)],
        "split": task.split,
        "train": {"algorithm": "bambi", **MODES[mode], **model},
        "privacy": {"labels": {"mechanism": "off"}},
        "evaluate_every": 0,
    }
    return RunSpec.model_validate(content)


def accuracy(task: Task, mode: str, parties: int, seed: int) -> dict[str, float]:
    """What a run ends with on its test rows, and how many rounds it took."""
    spec, (features, classes) = spec_of(task, mode, parties, seed), task.load(seed)
    features = np.asarray(features, np.float32)
    if task.model is None:  # images keep their grey values
        trained = divide(spec.split, len(features), stream(seed, "split")).trained
        centre, scale = features[trained].mean(0), features[trained].std(0)
        features = (features - centre) / np.where(scale > 0, scale, 1)
    ids = np.array([f"{row:06d}" for row in range(len(features))])
    names, values = np.unique(classes, return_inverse=True)
    tables = [
        Table(ids, np.ascontiguousarray(block), [f"c{n}" for n in range(block.shape[1])], entry.name)
        for entry, block in zip(spec.parties, np.array_split(features, parties, axis=1), strict=True)
    ]
    done = train_tables(spec, tables, Labels(ids, values.astype(np.int64), tuple(map(str, names))))
    return {"accuracy": done.metrics["test accuracy"], "rounds": float(done.rounds)}


def _swept(case: str, task: Task, parties: int, seeds: int) -> list[Row]:
    rows: list[Row] = []
    plain = np.empty(0)
    for mode in MODES:
        made = [accuracy(task, mode, parties, seed) for seed in range(seeds)]
        reached = np.array([one["accuracy"] for one in made])
        plain = reached if mode == "joint" else plain
        figures = {"accuracy": reached.mean(), "lowest": reached.min(), "rounds": np.mean([o["rounds"] for o in made])}
        if mode != "joint":
            figures["beside one level"] = (reached - plain).mean()
            figures["lowest beside one level"] = (reached - plain).min()
        figures["seeds"] = seeds
        name = f"{case} {mode}"
        rows += [{"case": name, "metric": key, "ours": float(one), "paper": None} for key, one in figures.items()]
        print(f"{name}: {reached.mean():.4f}, lowest {reached.min():.4f}", flush=True)
    return rows


def plot(rows: list[Row], path: Path) -> None:
    """Accuracy of each case, and the rounds that it took."""
    plot_accuracy(rows, path, "rounds")
