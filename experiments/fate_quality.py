"""fate-quality: FATE's benchmark of model quality, on the tables of it that are at hand.

FATE compares each of its vertical models with scikit-learn's on the pooled table and asks for metrics within 1 % of
each other (`fate_test benchmark-quality`, `relative_tol: 0.01`). Here the same comparison is made of glm, with 30 % of
the rows held out, where FATE's scripts score the rows that they train on: two parties for each task, a guest and a
host, as there.

    breast    breast cancer, Wisconsin (of scikit-learn): 10 columns at the guest, 20 at the host
    credit    UCI credit, see `credit`: 13 columns at the guest, 10 at the host; left out where `data` has it not
              (credit_1000: its first rows, as many as FATE trains on in minutes)
    diabetes  B. Efron et al., "Least angle regression", 2004 (of scikit-learn), for linear and Poisson regression: the
              tables of FATE's own tasks (motor, dvisits) are not at hand

Where FATE is installed (`make peers`), its own regression of the two logistic tasks is trained on the same rows, with
the settings of its scripts (`examples/benchmark_quality/lr`), and scores the same held-out ones.

The second part cuts columns as VertiBench does (`parley data split --cut`): whoever holds what, a model of all columns
is the same, and what the guest alone reaches is not.

    parley reproduce fate-quality [--data DIR] [--quick] [--json FILE] [--plot FILE]
"""

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.linear_model import LogisticRegression, PoissonRegressor, Ridge
from sklearn.metrics import mean_squared_error, r2_score, roc_auc_score, roc_curve
from sklearn.preprocessing import StandardScaler

from parley.benchmarks.peers import FATE, figures_of, installed
from parley.experiments.credit import load_credit
from parley.numerics.streams import stream
from parley.simulation.runs import train_tables
from parley.spec.rows import divide
from parley.spec.run import RunSpec
from parley.splitting import dealt_columns
from parley.tables.loading import Labels, Table

Row = dict[str, Any]
Array = np.ndarray[Any, np.dtype[Any]]
RELATIVE_TOLERANCE = 0.01
"""FATE's own."""
STRENGTH = 0.01
"""Of the ridge penalty."""
QUICK_ROWS, FATE_ROWS = 3000, 1000
MODELS = {"logistic": "lr", "linear": "linr", "poisson": "poisson"}
DIFFERENCE = "relative difference"
AT_FATE: dict[str, Any] = {
    "optimizer_param": {"method": "rmsprop", "penalty": "l2", "alpha": 0.1, "optimizer_params": {"lr": 0.12}},
    "early_stop": "diff",
    "tol": 1e-5,
}
"""Settings of FATE's own scripts."""
BREAST_AT_FATE = AT_FATE | {
    "epochs": 20,
    "batch_size": 240,
    "init_param": {"method": "random_uniform", "fit_intercept": True, "random_state": 42},
    "learning_rate_param": {"method": "constant", "scheduler_params": {"factor": 1.0, "total_iters": 5}},
}
CREDIT_AT_FATE = AT_FATE | {
    "epochs": 16,
    "batch_size": 10_000,
    "init_param": {"method": "zeros", "fit_intercept": True, "random_state": 42},
    "learning_rate_param": {"method": "linear", "scheduler_params": {"start_factor": 0.7, "total_iters": 1000}},
}
CUTS = (("importance", 0.1), ("importance", 1.0), ("importance", 10.0), ("correlation", 0.0), ("correlation", 1.0))


@dataclass(frozen=True)
class Task:
    """A model of one table."""

    name: str
    family: str
    features: Array
    target: Array
    guest: int
    """Columns of the guest: the first ones."""
    at_fate: dict[str, Any] | None = None
    """Settings that FATE's own scripts train this task with; None where FATE is not run."""

    @property
    def case(self) -> str:
        """FATE's word for the model after the table's."""
        return f"{self.name} {MODELS[self.family]}"


def run(quick: bool, data: Path | None = None) -> list[Row]:
    """Metrics of every task, federated, pooled, and their relative difference; then the cuts of VertiBench."""
    found: list[Row] = []
    is_fate_there = bool(installed(FATE))
    for task in tasks(quick, data):
        blocks = [np.arange(task.guest), np.arange(task.guest, task.features.shape[1])]
        ours, theirs = federated(task, blocks), pooled(task)
        for metric, value in ours.items():
            expected = theirs[metric]
            found += [
                _row(task.case, metric, value),
                _row(task.case, f"pooled {metric}", expected),
                _row(task.case, f"{metric}, {DIFFERENCE}", abs(value - expected) / abs(expected)),
            ]
        if is_fate_there and task.at_fate:
            found += beside(task, theirs)
    return [*found, *cuts()]


def beside(task: Task, expected: dict[str, float]) -> list[Row]:
    """Metrics of FATE's model on the same held-out rows, its difference from scikit-learn's, and how fast it was."""
    features, trained, test = divided(task)
    with tempfile.TemporaryDirectory() as folder:
        path, settings = Path(folder) / "task.npz", json.dumps(task.at_fate)
        tables = {"features": features, "labels": task.target, "trained": trained, "test": test}
        contents: dict[str, Any] = tables | {"guest": task.guest, "settings": settings}
        np.savez(path, **contents)
        figures = figures_of("FATE", FATE, ["--task", str(path)])
    found = []
    for metric, value in classified(task.target[test], np.array(figures["scores"])).items():
        found.append(_row(task.case, f"FATE's {metric}", value))
        difference = abs(value - expected[metric]) / abs(expected[metric])
        found.append(_row(task.case, f"FATE's {metric}, {DIFFERENCE}", difference))
    print(f"{task.case}, FATE: {found}", flush=True)
    found.append(_row(task.case, "FATE's steps", figures["steps"]))
    return [*found, _row(task.case, "FATE's steps per second", figures["rounds_per_second"])]


def tasks(quick: bool, data: Path | None) -> list[Task]:
    """Those whose tables are at hand."""
    breast, diabetes = load_breast_cancer(), load_diabetes()
    found = [
        Task("breast", "logistic", breast.data, breast.target, 10, BREAST_AT_FATE),
        Task("diabetes", "linear", diabetes.data, diabetes.target, 5),
        Task("diabetes", "poisson", diabetes.data, diabetes.target / 50, 5),
    ]
    try:
        credit = load_credit(data)
    except FileNotFoundError:
        return found
    features, classes = np.asarray(credit.features), np.asarray(credit.labels).astype(int)
    most, few = slice(QUICK_ROWS if quick else None), slice(FATE_ROWS)
    return [
        found[0],
        Task("credit", "logistic", features[most], classes[most], 13),
        Task(f"credit_{FATE_ROWS}", "logistic", features[few], classes[few], 13, CREDIT_AT_FATE),
        *found[1:],
    ]


def spec_of(family: str, parties: Sequence[str]) -> RunSpec:
    """A run of glm with a ridge penalty."""
    alone = {"aggregation": {"kind": "plain", "minimum_parties": 1}} if len(parties) == 1 else {}
    return RunSpec.model_validate(
        {
            "name": "fate-quality",
            "parties": list(parties),
            "split": {"lower": 0.6, "upper": 0.1, "test": 0.3},
            "train": {"algorithm": "glm", "family": family, "penalty": {"strength": STRENGTH}},
            "privacy": {"labels": {"mechanism": "off"}, **alone},
            "evaluate_every": 0,
        }
    )


def divided(task: Task) -> tuple[Array, Array, Array]:
    """Standardised columns, by figures of the training rows; training rows; held-out ones."""
    spec = spec_of(task.family, ("guest", "host"))
    sets = divide(spec.split, len(task.features), stream(spec.seed, "split"))
    scaled = StandardScaler().fit(task.features[sets.trained]).transform(task.features)
    return scaled, sets.trained, sets.test


def federated(task: Task, blocks: Sequence[Array]) -> dict[str, float]:
    """Metrics of held-out rows, of a model of these blocks of columns."""
    features, _, _ = divided(task)
    names = ("guest", "host", *(f"host-{number}" for number in range(2, len(blocks))))[: len(blocks)]
    ids = np.array([f"{row:06}" for row in range(len(features))])
    tables = [
        Table(ids, np.ascontiguousarray(features[:, block]), [f"x{column}" for column in block], name)
        for name, block in zip(names, blocks, strict=True)
    ]
    classes = ("0", "1") if task.family == "logistic" else ()
    model = train_tables(spec_of(task.family, names), tables, Labels(ids, task.target, classes), noise_key=bytes(32))
    told = {"auc": "AUC", "ks": "KS", "rmse": "RMSE", "r2": "R²"}
    return {name: model.metrics[f"test {key}"] for key, name in told.items() if f"test {key}" in model.metrics}


def pooled(task: Task) -> dict[str, float]:
    """The same metrics of scikit-learn's model of all columns."""
    features, trained, test = divided(task)
    rows = len(trained)
    models: dict[str, Callable[[], Any]] = {
        "logistic": lambda: LogisticRegression(C=1 / (STRENGTH * rows), tol=1e-9, max_iter=10_000),
        "linear": lambda: Ridge(alpha=STRENGTH * rows),
        "poisson": lambda: PoissonRegressor(alpha=STRENGTH, tol=1e-9, max_iter=10_000),
    }
    model = models[task.family]().fit(features[trained], task.target[trained])
    truth = task.target[test]
    if task.family == "logistic":
        return classified(truth, model.predict_proba(features[test])[:, 1])
    predicted = model.predict(features[test])
    return {"RMSE": float(np.sqrt(mean_squared_error(truth, predicted))), "R²": float(r2_score(truth, predicted))}


def classified(truth: Array, scores: Array) -> dict[str, float]:
    """Metrics of scores of two classes."""
    wrong, right, _ = roc_curve(truth, scores)
    return {"AUC": float(roc_auc_score(truth, scores)), "KS": float((right - wrong).max())}


def cuts() -> list[Row]:
    """AUC on breast cancer of three parties' model, and of the first one's columns alone, by how columns are dealt."""
    breast = load_breast_cancer()
    task = Task("breast", "logistic", breast.data, breast.target, 10)
    features, trained, _ = divided(task)
    found = []
    for kind, value in CUTS:
        blocks = dealt_columns(features[trained], task.target[trained], 3, kind, value, seed=1)
        case = f"breast, cut by {kind} {value:g}"
        found.append(_row(f"{case}, three parties", "AUC", federated(task, blocks)["AUC"]))
        found.append(_row(f"{case}, first party alone", "AUC", federated(task, blocks[:1])["AUC"]))
    return found


def plot(rows: list[Row], path: Path) -> None:
    """Relative differences, with FATE's tolerance."""
    from matplotlib.figure import Figure

    shown = [row for row in rows if row["metric"].endswith(DIFFERENCE)]
    names = [f"{row['case']}: {row['metric'].removesuffix(f', {DIFFERENCE}')}" for row in shown]
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.barh(names, [max(row["ours"], 1e-12) for row in shown])
    axes.axvline(RELATIVE_TOLERANCE, color="black", linestyle="--")
    axes.set_xscale("log")
    axes.set_xlabel("relative difference from scikit-learn (dashed: what FATE asks for)")
    figure.savefig(path)


def _row(case: str, metric: str, value: float) -> Row:
    return {"case": case, "metric": metric, "ours": value, "paper": None}
