"""scikit-learn estimators on a federation of local parties, for whoever wants to try before deploying.

>>> from sklearn.datasets import load_breast_cancer
>>> X, y = load_breast_cancer(return_X_y=True)
>>> with parley.FederatedClassifier(parties=3) as model:
...     print(model.fit(X[:400], y[:400]).score(X[400:], y[400:]))

The columns of X are dealt out to the parties, as if each organisation held some of them. `engine="processes"` starts a
real coordinator and real parties, which talk gRPC over mutual TLS under the default protection, and keeps them until
`close`; `engine="in_process"` runs the same code of the roles in one process, without wire and masks.
"""

import tempfile
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
import yaml
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from parley.client import Federation, Run
from parley.local import LocalFederation
from parley.services.party.preprocessing import training_rows
from parley.simulation import train_tables
from parley.spec.parsing import parse_spec
from parley.tables.loading import Labels, Table
from parley.tables.preprocessing import Declared, apply, fit

TRAIN, ROWS = "train", "rows"
"""Tables of a local party: what it learns from, and what it predicts."""
REACH = 2.0
"""Half the range of protected targets as parties see it: those of a usual spread then have a deviation of about 1."""
SCALE: Literal["standard"] = "standard"


class FederationClosed(RuntimeError):
    """The processes that hold the trained model have been stopped."""


class NotPortable(TypeError):
    """A model that lives in running processes cannot be pickled."""


class _FederatedEstimator(BaseEstimator):  # type: ignore[misc]
    """A model whose columns are spread over parties: BAMBI learns an embedding at each and one model on top.

    Parameters are those of scikit-learn's convention: set by `__init__`, read by `get_params`, used by `fit`.
    """

    parties: int
    hidden: int | Sequence[int]
    embedding: int
    steps: int
    regularisation: float
    engine: Literal["processes", "in_process"]
    random_state: Any
    _federation: LocalFederation | None = None
    _client: Federation | None = None
    _finaliser: Any = None
    _run: Run

    def _train(self, X: NDArray[np.float64], labels: Labels) -> None:
        """Deal X's columns out to the parties and train on labels under row numbers."""
        self._check_parameters(X)
        self.columns_ = np.array_split(np.arange(X.shape[1]), min(self.parties, X.shape[1]))
        spec = self._spec(int(check_random_state(self.random_state).randint(2**31 - 1)))
        if self.engine == "in_process":
            self._fit_here(spec, X, labels)
        else:
            self._fit_in_processes(spec, X, labels)

    def _scores(self, X: Any) -> NDArray[np.float64]:
        """What the trained federation answers: (rows, outputs)."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        if self.engine == "in_process":
            tables = [apply(t.fitted, _table(X[:, c])) for t, c in zip(self._tables, self.columns_, strict=True)]
            return np.asarray(self._predict(tables), dtype=np.float64)
        if self._federation is None:
            raise FederationClosed("the parties that hold the model have been stopped: fit again")
        self._deal(ROWS, X)
        return np.asarray(self._run.predict(ROWS).scores, dtype=np.float64)

    def close(self) -> None:
        """Stop the parties; what they have learnt is gone with them."""
        if self._client is not None:
            self._client.__exit__(None, None, None)
        if self._finaliser is not None:
            self._finaliser()
        self._federation = self._client = self._finaliser = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __getstate__(self) -> Any:
        if self._federation is not None:
            raise NotPortable("the parties hold the model, each its part: keep the estimator, or fit with in_process")
        return super().__getstate__()

    def _check_parameters(self, X: NDArray[np.float64]) -> None:
        if self.engine not in ("processes", "in_process"):
            raise ValueError(f"engine is 'processes' or 'in_process', not {self.engine!r}")
        if self.parties < 2:
            raise ValueError(f"parties={self.parties}: a federation has two or more")
        if X.shape[1] < 2:
            raise ValueError("X has 1 feature(s): a federation needs two parties with a column each")

    def _spec(self, seed: int) -> str:
        """The run: embeddings and classifier learn from all rows; whoever evaluates holds rows back themselves."""
        names, hidden = _names(len(self.columns_)), self.hidden
        loss, labels = self._objective()
        content = {
            "name": "estimator",
            "seed": seed,
            "dtype": "float64",
            "parties": names,
            "table": TRAIN,
            "split": {"lower": 1.0, "upper": "lower", "test": 0},
            "train": {
                "algorithm": "bambi",
                "loss": loss,
                "regularisation": self.regularisation,
                "model": {"kind": "mlp", "hidden": _widths(hidden), "out": self.embedding},
                "upper": {"steps": self.steps, "batch": None, "optimiser": {"kind": "adam", "step": 0.01}},
                "lower": {"warmup_steps": 2},
                "implicit": {"rounds": 4, "newton_rounds": 4},
            },
            "privacy": {"aggregation": {"minimum_parties": len(names)}, "labels": labels},
            "evaluate_every": 0,
            "checkpoint_every": 0,
        }
        return yaml.safe_dump(content)

    def _objective(self) -> tuple[str, dict[str, Any]]:
        """The loss, and how the labels are protected."""
        raise NotImplementedError

    def _fit_here(self, text: str, X: NDArray[np.float64], labels: Labels) -> None:
        spec = parse_spec(text)
        declared, tables = Declared(scale=SCALE), []
        for index, columns in enumerate(self.columns_):
            table = _table(X[:, columns])
            tables.append(apply(fit(declared, table, training_rows(spec, index, len(table))), table))
        run = train_tables(spec, tables, replace(labels, ids=tables[0].ids))
        self._tables = [_without_rows(table) for table in tables]
        self._predict, self.metrics_ = run.predict, run.metrics

    def _fit_in_processes(self, text: str, X: NDArray[np.float64], labels: Labels) -> None:
        if self._federation is not None and list(self._federation.tables) != _names(len(self.columns_)):
            self.close()
        if self._federation is None:
            self._directory = Path(tempfile.mkdtemp(prefix="parley-estimator-"))
        self._deal(TRAIN, X)
        _save(self._directory / "labels.npz", label=labels.values)
        client = self._client or self._open()
        self._run = client.start(text)
        self.metrics_ = self._run.result()

    def _open(self) -> Federation:
        names = _names(len(self.columns_))
        preprocess = {"scale": SCALE}
        tables: dict[str, dict[str, dict[str, Any]]] = {
            name: {
                TRAIN: {"path": self._directory / f"{name}-{TRAIN}.npz", "preprocess": preprocess},
                ROWS: {"path": self._directory / f"{name}-{ROWS}.npz"},
            }
            for name in names
        }
        labels = {TRAIN: {"path": self._directory / "labels.npz"}}
        federation = LocalFederation(self._directory, tables, labels)
        # Before it starts: whatever happens from here on, nothing is left running or lying about.
        self._finaliser = weakref.finalize(self, _take_down, federation, self._directory)
        try:
            federation.__enter__()
            client = federation.connect()
        except BaseException:
            self.close()
            raise
        self._federation, self._client = federation, client
        return client

    def _deal(self, table: str, X: NDArray[np.float64]) -> None:
        """Give each party its columns of X as a file of its own."""
        for name, columns in zip(_names(len(self.columns_)), self.columns_, strict=True):
            _save(self._directory / f"{name}-{table}.npz", x=X[:, columns])


class FederatedClassifier(ClassifierMixin, _FederatedEstimator):  # type: ignore[misc]
    """A classifier whose columns are spread over parties: BAMBI learns an embedding at each and one model on top."""

    def __init__(
        self,
        parties: int = 3,
        *,
        hidden: int | Sequence[int] = (32,),
        embedding: int = 8,
        steps: int = 20,
        regularisation: float = 0.003,
        epsilon: float | None = 3.0,
        engine: Literal["processes", "in_process"] = "processes",
        random_state: Any = None,
    ) -> None:
        """`epsilon` protects every label (None sends exact gradients); `steps` are upper iterations.

        With fewer columns than `parties`, each column has a party of its own. `random_state` seeds the split and the
        networks, never the noise: with `epsilon` set, two fits differ.
        """
        self.parties = parties
        self.hidden = hidden
        self.embedding = embedding
        self.steps = steps
        self.regularisation = regularisation
        self.epsilon = epsilon
        self.engine = engine
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Self:
        """Deal X's columns out to the parties and train."""
        X, y = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2)
        check_classification_targets(y)
        self._check_parameters(X)
        self.classes_, values = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y has one class, {self.classes_[0]!r}: a classifier needs two")
        names = tuple(str(index) for index in range(len(self.classes_)))
        self._train(X, Labels(_row_numbers(len(X)), values.astype(np.int64), names))
        return self

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Probability of each class, in the order of `classes_`."""
        return self._scores(X)

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class of each row."""
        scores = self.predict_proba(X)
        chosen: NDArray[Any] = self.classes_[scores.argmax(axis=1)]
        return chosen

    def _objective(self) -> tuple[str, dict[str, Any]]:
        if self.epsilon is None:
            return "softmax", {"mechanism": "off"}
        return "softmax", {"mechanism": "once", "epsilon": self.epsilon}


class FederatedRegressor(RegressorMixin, _FederatedEstimator):  # type: ignore[misc]
    """A regression whose columns are spread over parties: BAMBI learns an embedding at each and one model on top.

    Without `epsilon` the parties get exact gradients and can compute residuals from them: use it so where they may know
    the targets.
    """

    def __init__(
        self,
        parties: int = 3,
        *,
        hidden: int | Sequence[int] = (32,),
        embedding: int = 8,
        steps: int = 20,
        regularisation: float = 0.1,
        epsilon: float | None = None,
        target_range: tuple[float, float] | None = None,
        engine: Literal["processes", "in_process"] = "processes",
        random_state: Any = None,
    ) -> None:
        """As those of `FederatedClassifier`; numbers bear more `regularisation` than classes.

        `epsilon` protects every target by noise on bins of `target_range`, the smallest and the largest target that
        are told apart: what everybody may know of them, never read off `y`.
        """
        self.parties = parties
        self.hidden = hidden
        self.embedding = embedding
        self.steps = steps
        self.regularisation = regularisation
        self.epsilon = epsilon
        self.target_range = target_range
        self.engine = engine
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Self:
        """Deal X's columns out to the parties and train on targets of about mean 0 and deviation 1."""
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True, ensure_min_samples=2)
        y = np.asarray(y, dtype=np.float64)
        if self.epsilon is None:
            self.mean_, self.scale_ = float(y.mean()), float(y.std()) or 1.0
        else:  # figures of the targets would be known to whoever reads the range in the spec
            low, high = self._range()
            self.mean_, self.scale_ = (low + high) / 2, (high - low) / (2 * REACH)
        self._train(X, Labels(_row_numbers(len(X)), (y - self.mean_) / self.scale_, ()))
        return self

    def predict(self, X: Any) -> NDArray[np.float64]:
        """The expected target of each row."""
        scores = self._scores(X)
        return self.mean_ + self.scale_ * scores[:, 0]

    def _range(self) -> tuple[float, float]:
        if self.target_range is None:
            raise ValueError(
                "epsilon needs `target_range`: the smallest and the largest target that everybody may know"
            )
        low, high = map(float, self.target_range)
        if not -np.inf < low < high < np.inf:
            raise ValueError(f"target_range from {low:g} to {high:g} is no range: the first number must be smaller")
        return low, high

    def _objective(self) -> tuple[str, dict[str, Any]]:
        if self.epsilon is None:
            return "squared", {"mechanism": "off"}
        return "squared", {"mechanism": "once", "epsilon": self.epsilon, "bins": {"low": -REACH, "high": REACH}}


def _widths(hidden: int | Sequence[int]) -> list[int]:
    return [int(hidden)] if isinstance(hidden, (int, np.integer)) else [int(width) for width in hidden]


def _row_numbers(rows: int) -> NDArray[np.str_]:
    return np.array([str(row) for row in range(rows)])


def _names(count: int) -> list[str]:
    return [f"party-{index}" for index in range(count)]


def _table(features: NDArray[np.float64]) -> Table:
    """As a party loads it from its file."""
    rows, width = features.shape
    return Table(_row_numbers(rows), np.ascontiguousarray(features), [str(index) for index in range(width)], TRAIN)


def _without_rows(table: Table) -> Table:
    return Table(table.ids[:0], table.features[:0], table.columns, table.name, fitted=table.fitted)


def _save(path: Path, **arrays: NDArray[Any]) -> None:
    """Replace a file whole, so that a party never reads half of it."""
    scratch = path.with_suffix(".partial.npz")
    np.savez(scratch, **arrays)  # type: ignore[arg-type]
    scratch.replace(path)


def _take_down(federation: LocalFederation, directory: Path) -> None:
    import shutil

    federation.stop()
    shutil.rmtree(directory, ignore_errors=True)
