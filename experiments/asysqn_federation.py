"""AsySQN on a9a by real processes: eight parties and a coordinator over mutual TLS, each party with its own columns.

Columns are cut into consecutive blocks, training rows come first and a9a's own test rows after them. Every party and
the coordinator have the labels, as in the paper.
"""

from __future__ import annotations

import lzma
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml
from scipy.sparse import vstack
from sklearn.datasets import dump_svmlight_file, load_svmlight_file

from parley.client import Federation
from parley.local import LocalFederation

PARTIES = tuple(f"party-{m}" for m in range(8))
COLUMNS, TRAIN_ROWS, ALL_ROWS = 123, 32561, 48842
REGULARISATION = 1e-4
OPTIMUM = 0.324506924713757
"""f* of l2-regularised logistic regression on a9a, λ = 1e-4."""
QUICK_ROWS = 4096
"""Training rows of `--quick`; the optimum is then solved for anew."""


class DataMissing(FileNotFoundError):
    """The experiment's data set is not where it was looked for."""


@dataclass(frozen=True)
class A9a:
    """a9a, training rows first."""

    features: Any
    labels: np.ndarray[Any, np.dtype[np.float64]]
    train: int
    """How many rows are training rows."""

    @property
    def optimum(self) -> float:
        """f* on the training rows, λ = 1e-4."""
        if self.train == TRAIN_ROWS:
            return OPTIMUM
        return objective_of(self, pooled_weights(self))


@dataclass(frozen=True)
class Trace:
    """What the coordinator saw of one run."""

    rounds: list[int]
    seconds: list[float]
    gap: list[float]
    """f − f* at each look."""
    metrics: Mapping[str, float] = field(default_factory=dict)

    def first(self, target: float, what: Literal["rounds", "seconds"] = "rounds") -> float | None:
        """Rounds or seconds at the first look at which the gap was at most `target`; None if it never was."""
        values: Sequence[float] = self.rounds if what == "rounds" else self.seconds
        return next((float(value) for value, gap in zip(values, self.gap, strict=True) if gap <= target), None)


def load(data: Path | None, *, quick: bool) -> A9a:
    """a9a from `DIR/libsvm`; a quarter of its rows where it must be quick."""
    folder = (data or Path(os.environ.get("PARLEY_DATA", "../shared/data"))) / "libsvm"
    parts = []
    for name in ("a9a.svm.xz", "a9a.t.svm.xz"):
        if not (folder / name).exists():
            raise DataMissing(f"{folder / name} is not there: name the folder that has libsvm/{name} with --data")
        with lzma.open(folder / name) as file:
            parts.append(load_svmlight_file(file, n_features=COLUMNS))
    (train, train_labels), (test, test_labels) = parts
    if quick:
        chosen = np.random.default_rng(0).permutation(len(train_labels))[:QUICK_ROWS]
        train, train_labels = train[chosen], train_labels[chosen]
    labels = np.concatenate([train_labels, test_labels])
    return A9a(vstack([train, test]).tocsr(), labels, train.shape[0])


@contextmanager
def federation(a9a: A9a, folder: Path) -> Iterator[Federation]:
    """Eight parties and a coordinator as local processes."""
    folder.mkdir(parents=True, exist_ok=True)
    ids = np.array([str(row) for row in range(len(a9a.labels))])
    np.savez(folder / "labels.npz", label=a9a.labels, ids=ids)
    tables: dict[str, dict[str, dict[str, Any]]] = {}
    for party, block in zip(PARTIES, np.array_split(np.arange(COLUMNS), len(PARTIES)), strict=True):
        path = folder / f"{party}.svm"
        dump_svmlight_file(a9a.features[:, block], np.zeros(len(ids)), str(path), zero_based=False)
        table = {"path": str(path), "features": len(block), "label": "label", "label_path": str(folder / "labels.npz")}
        tables[party] = {"a9a": table}
    held = {"a9a": {"path": str(folder / "labels.npz")}}
    with LocalFederation(folder / "federation", tables, held, ready_seconds=300) as local, local.connect() as client:
        yield client


def spec(a9a: A9a, train: Mapping[str, Any], *, seed: int, look_every: int, straggler: float = 1.0) -> str:
    """A run on a9a; the last party is the slow one."""
    parties = [{"name": party} for party in PARTIES[:-1]] + [{"name": PARTIES[-1], "speed": straggler}]
    content = {
        "name": "a9a",
        "seed": seed,
        "table": "a9a",
        "parties": parties,
        "split": {"lower": f"0:{a9a.train}", "upper": "lower", "test": f"{a9a.train}:{len(a9a.labels)}"},
        "train": {"algorithm": "asysqn", "optimum": a9a.optimum, "regularisation": REGULARISATION, **train},
        "privacy": {"aggregation": {"kind": "two_tree"}},
        "evaluate_every": look_every,
        "checkpoint_every": 400,
        "round_seconds": 300,
    }
    return yaml.safe_dump(content)


def train(client: Federation, text: str) -> Trace:
    """Run a spec to its end; seconds count from the first look."""
    run = client.start(text)
    rounds, seconds, gap = [], [], []
    started = None
    for event in run.watch():
        values = {metric.name: metric.value for metric in event.metrics}
        if event.state_change.attempt:
            started = time.monotonic()
        if event.kind == "evaluation" and started is not None:
            rounds.append(event.step)
            seconds.append(time.monotonic() - started)
            gap.append(values["sub-optimality"])
    if run.state != "COMPLETED":
        raise RuntimeError(f"the run is {run.state}: {run.reason}")
    return Trace(rounds, seconds, gap, run.metrics)


def pooled_weights(a9a: A9a) -> Any:
    """scikit-learn's logistic regression on the pooled columns: the model that a federation should reach."""
    from sklearn.linear_model import LogisticRegression

    strength = 1.0 / (REGULARISATION * a9a.train)
    model = LogisticRegression(C=strength, fit_intercept=False, tol=1e-10, max_iter=10_000)
    return model.fit(a9a.features[: a9a.train], a9a.labels[: a9a.train]).coef_[0]


def pooled_accuracy(a9a: A9a) -> float:
    """Its accuracy on the test rows; a tie is −1."""
    theta = a9a.features[a9a.train :] @ pooled_weights(a9a)
    return float(np.mean(np.where(theta > 0, 1.0, -1.0) == a9a.labels[a9a.train :]))


def objective_of(a9a: A9a, weights: Any) -> float:
    """f on the training rows."""
    margins = a9a.labels[: a9a.train] * (a9a.features[: a9a.train] @ weights)
    return float(np.logaddexp(0.0, -margins).mean() + REGULARISATION / 2 * weights @ weights)
