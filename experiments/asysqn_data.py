"""The AsySQN paper's data sets (Table 2) that can be had: UCI credit (D1), w8a (D4), a9a (D6), MNIST 0–4 / 5–9 (D8).

As in the paper: no intercept, one-hot categories, a9a's and MNIST's own test rows, and a tenth of w8a's rows for
testing. D1 has 24 000 training rows, as in Table 2, and the other 6 000 for testing; its amounts are z-scored and
clipped at ±5, since heavy tails make any quasi-Newton method rebound. GiveMeSomeCredit (D2), LIBSVM's news20 (D3),
rcv1 (D5) and epsilon (D7) are not read here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from sklearn.linear_model import LogisticRegression

from parley.datasets import load_dataset
from parley.experiments.asysqn_federation import COLUMNS, REGULARISATION, DataMissing
from parley.experiments.asysqn_simulation import read_libsvm
from parley.experiments.credit import load_credit
from parley.numerics.gradient_estimators import Features, as_features
from parley.numerics.streams import stream

Vector = NDArray[np.float64]
CREDIT_TRAIN = 24_000
W8A_COLUMNS = 300
CATEGORIES = ("SEX", "EDUCATION", "MARRIAGE", "PAY_0", "PAY_2", "PAY_3", "PAY_4", "PAY_5", "PAY_6")


@dataclass(frozen=True)
class Task:
    """Logistic regression on one data set; labels are −1 and 1."""

    name: str
    """D1 … D8."""
    features: Features
    labels: Vector
    test_features: Features
    test_labels: Vector
    regularisation: float = field(default=REGULARISATION)

    def objective(self, weights: Vector) -> float:
        """The paper's Eq. 17 on the training rows."""
        margins = self.labels * (self.features @ weights)
        return float(np.logaddexp(0.0, -margins).mean() + self.regularisation / 2 * weights @ weights)

    def gradient(self, weights: Vector) -> Vector:
        """Its gradient."""
        slopes = -self.labels * expit(-self.labels * (self.features @ weights)) / len(self.labels)
        return np.asarray(self.features.T @ slopes).ravel() + self.regularisation * weights

    def accuracy(self, weights: Vector) -> float:
        """On the test rows; a tie is −1."""
        return float(np.mean(np.where(self.test_features @ weights > 0, 1.0, -1.0) == self.test_labels))

    @cached_property
    def pooled(self) -> Vector:
        """The weights of the pooled columns' minimum (the paper's NonF)."""
        strength = 1.0 / (self.regularisation * len(self.labels))
        model = LogisticRegression(C=strength, fit_intercept=False, tol=1e-8, max_iter=5000)
        return np.asarray(model.fit(self.features, self.labels).coef_[0])

    @cached_property
    def smoothness(self) -> float:
        """An upper bound of the objective's curvature."""
        v = np.ones(self.features.shape[1])
        for _ in range(30):
            v = np.asarray(self.features.T @ (self.features @ v)).ravel()
            v /= np.linalg.norm(v)
        largest = float(np.linalg.norm(self.features @ v) ** 2) / len(self.labels)
        return 0.25 * largest + self.regularisation


def expit(margins: Vector) -> Vector:
    """1/(1 + e^−m), without overflow."""
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * margins)))


def load_task(name: str, data: Path | None, *, seed: int = 0, most_rows: int | None = None) -> Task:
    """A data set by its name in the paper; `most_rows` takes the first training and test rows of a seeded order."""
    task = READERS[name](data or Path("data"), seed)
    if most_rows is None:
        return task
    train, test = (
        stream(seed, f"asysqn/rows/{kind}").permutation(len(labels))[:most_rows]
        for kind, labels in (("train", task.labels), ("test", task.test_labels))
    )
    return Task(name, task.features[train], task.labels[train], task.test_features[test], task.test_labels[test])


def _credit(data: Path, seed: int) -> Task:
    table = load_credit(data)
    classes = np.asarray(table.labels)
    columns: list[Vector] = []
    for place, column in enumerate(table.columns):
        values = np.asarray(table.features[:, place], dtype=np.float64)
        if column in CATEGORIES:
            columns += [np.asarray(values == value, dtype=np.float64) for value in np.unique(values)]
        else:
            columns.append(np.clip((values - values.mean()) / values.std(), -5.0, 5.0))
    features, labels = np.column_stack(columns), _signs(classes == classes.max())
    return _cut("D1", features, labels, stream(seed, "asysqn/credit"), CREDIT_TRAIN)


def _w8a(data: Path, seed: int) -> Task:
    features, labels = read_libsvm(_there(data / "libsvm" / "w8a.svm.xz"), W8A_COLUMNS)
    return _cut("D4", features, labels, stream(seed, "asysqn/w8a"), len(labels) - len(labels) // 10)


def _a9a(data: Path, seed: int) -> Task:  # noqa: ARG001 (it has test rows of its own)
    train = read_libsvm(_there(data / "libsvm" / "a9a.svm.xz"), COLUMNS)
    test = read_libsvm(_there(data / "libsvm" / "a9a.t.svm.xz"), COLUMNS)
    return Task("D6", *train, *test)


def _mnist(data: Path, seed: int) -> Task:  # noqa: ARG001 (it has test rows of its own)
    table = load_dataset(_there(data / "mnist"))
    features, labels = csr_matrix(table.features.astype(np.float64)), _signs(np.asarray(table.labels) >= 5)
    return Task("D8", features[:60_000], labels[:60_000], features[60_000:], labels[60_000:])


READERS: dict[str, Callable[[Path, int], Task]] = {"D1": _credit, "D4": _w8a, "D6": _a9a, "D8": _mnist}


def _cut(name: str, features: Any, labels: Vector, draws: np.random.Generator, train: int) -> Task:
    order = draws.permutation(len(labels))
    first, rest = order[:train], order[train:]
    return Task(name, as_features(features[first]), labels[first], as_features(features[rest]), labels[rest])


def _signs(positive: NDArray[np.bool_]) -> Vector:
    return np.where(positive, 1.0, -1.0)


def _there(path: Path) -> Path:
    if not path.exists():
        raise DataMissing(f"{path} is not there: name the folder that has {path.parent.name}/{path.name} with --data")
    return path
