"""credit: default of card holders, whose columns three organisations hold for overlapping sets of customers.

Each organisation lacks every seventh customer, another one each; models are of those whom all three have, 70 % of them
to train on and 30 % held out. The same rows serve pooled models: scikit-learn's logistic regression without a penalty,
its network with as many hidden units as the three parties have together, and such a network trained as the federated
one is, at one party that has all columns. Label privacy is one draw (`once`).

    UCI credit   I.-C. Yeh, "Default of Credit Card Clients", UCI Machine Learning Repository; 30000 rows, 23 columns.
                 `data` is a folder with uci_credit_card.csv, or the same packed by xz

    parley reproduce credit --data DIR [--quick] [--json FILE] [--plot FILE]
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler

from parley.datasets import Dataset, load_dataset
from parley.numerics.streams import stream
from parley.simulation.runs import train_tables
from parley.spec.rows import divide
from parley.spec.run import RunSpec
from parley.tables.loading import Labels, Table

Row = dict[str, Any]
Array = np.ndarray[Any, np.dtype[Any]]
PARTIES = {"bureau": slice(0, 5), "bank": slice(5, 11), "telco": slice(11, 23)}
EPSILONS = (1.0, 3.0, 8.0)
LABEL = "default.payment.next.month"
NETWORK = {
    "algorithm": "bambi",
    "problem": "joint",
    "loss": "logistic",
    "model": {"kind": "mlp", "hidden": [32], "out": 8},
    "upper": {"steps": 1000},
}


def run(quick: bool, data: Path | None = None) -> list[Row]:
    """AUC on held-out rows, federated and pooled; `quick` takes 6000 customers and leaves the networks out."""
    credit = load_credit(data)
    rows = common_rows(credit)[: 6000 * 4 // 7 if quick else None]
    spec = spec_of({"algorithm": "glm"}, None)
    pooled = pooled_area(spec, credit, rows, LogisticRegression(C=np.inf, tol=1e-9, max_iter=10_000))
    found = [_row("logistic, exact labels", federated_area(spec, credit, rows)), _row("logistic, pooled", pooled)]
    for epsilon in EPSILONS:
        area = federated_area(spec_of({"algorithm": "glm"}, epsilon), credit, rows)
        found.append(_row(f"logistic, ε = {epsilon:g}", area))
    if quick:
        return found
    network = MLPClassifier((96,), alpha=0.1, batch_size=512, learning_rate_init=3e-3, max_iter=30, random_state=0)
    found.append(_row("network, exact labels", federated_area(spec_of(NETWORK, None), credit, rows)))
    found.append(_row("network, pooled", federated_area(pooled_network(), credit, rows, {"all": slice(0, 23)})))
    found.append(_row("network, pooled, scikit-learn", pooled_area(spec, credit, rows, network)))
    for epsilon in EPSILONS:
        area = federated_area(spec_of(NETWORK, epsilon), credit, rows)
        found.append(_row(f"network, ε = {epsilon:g}", area))
    return found


def load_credit(data: Path | None) -> Dataset:
    """The table, from a folder."""
    folder = data or Path("data")
    names = ("uci_credit_card.csv", "uci_credit_card.csv.xz")
    files = [place / name for place in (folder, folder / "credit") for name in names if (place / name).is_file()]
    if not files:
        raise FileNotFoundError(f"{folder} has no {names[0]}: give the folder that has it as --data")
    return load_dataset(files[0], label_column=LABEL, id_column="ID")


def common_rows(credit: Dataset) -> Array:
    """Customers whom all three know."""
    numbers = np.array([int(one) for one in credit.ids])
    return np.flatnonzero(numbers % 7 > 2)


def spec_of(train: dict[str, Any], epsilon: float | None) -> RunSpec:
    """A run of all three."""
    labels = {"mechanism": "off"} if epsilon is None else {"mechanism": "once", "epsilon": epsilon}
    return RunSpec.model_validate(
        {
            "name": "credit",
            "parties": list(PARTIES),
            "split": {"lower": 0.6, "upper": 0.1, "test": 0.3},
            "train": train,
            "privacy": {"labels": labels},
            "evaluate_every": 0,
        }
    )


def pooled_network() -> RunSpec:
    """The same training at one party, whose network is as wide as three."""
    spec = spec_of(NETWORK | {"model": {"kind": "mlp", "hidden": [96], "out": 24}}, None).model_dump()
    return RunSpec.model_validate(
        spec
        | {
            "parties": ["all"],
            "privacy": {"aggregation": {"kind": "plain", "minimum_parties": 1}, "labels": {"mechanism": "off"}},
        }
    )


def divided(spec: RunSpec, credit: Dataset, rows: Array) -> tuple[Array, Array, Array, Array]:
    """Standardised columns of all rows, by figures of the training rows; classes; training rows; held-out ones."""
    features, classes = np.asarray(credit.features, dtype=np.float64)[rows], np.asarray(credit.labels)[rows].astype(int)
    sets = divide(spec.split, len(rows), stream(spec.seed, "split"))
    return StandardScaler().fit(features[sets.trained]).transform(features), classes, sets.trained, sets.test


def federated_area(
    spec: RunSpec, credit: Dataset, rows: Array, held_by: Mapping[str, slice] = MappingProxyType(PARTIES)
) -> float:
    """AUC of the run's model."""
    features, classes, _, _ = divided(spec, credit, rows)
    ids = credit.ids[rows]
    tables = [
        Table(ids, np.ascontiguousarray(features[:, held]), list(credit.columns[held]), name)
        for name, held in held_by.items()
    ]
    known = Labels(ids, classes, ("0", "1"))
    return train_tables(spec, tables, known, noise_key=bytes(32)).metrics["test auc"]


def pooled_area(spec: RunSpec, credit: Dataset, rows: Array, model: Any) -> float:
    """AUC of a model of one table."""
    features, classes, trained, test = divided(spec, credit, rows)
    fitted = model.fit(features[trained], classes[trained])
    return float(roc_auc_score(classes[test], fitted.predict_proba(features[test])[:, 1]))


def plot(rows: list[Row], path: Path) -> None:
    """AUC against ε, with what exact labels and pooled tables reach."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes, found = figure.subplots(), {row["case"]: row["ours"] for row in rows}
    for name in dict.fromkeys(case.partition(",")[0] for case in found):
        values = [found[f"{name}, ε = {epsilon:g}"] for epsilon in EPSILONS]
        (line,) = axes.plot(EPSILONS, values, marker="o", label=name)
        axes.axhline(found[f"{name}, exact labels"], color=line.get_color(), linestyle="--", linewidth=1)
        axes.axhline(found[f"{name}, pooled"], color=line.get_color(), linestyle=":", linewidth=1)
    axes.set_xscale("log")
    axes.set_xlabel("ε of each label (dashed: exact labels, dotted: pooled)")
    axes.set_ylabel("AUC on held-out rows")
    axes.legend()
    figure.savefig(path)


def _row(case: str, area: float) -> Row:
    return {"case": case, "metric": "AUC", "ours": area, "paper": None}
