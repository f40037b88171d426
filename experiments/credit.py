"""credit: default of card holders, whose columns three organisations hold for overlapping sets of customers.

Each organisation lacks every seventh customer, another one each; models are of those whom all three have, 70 % of them
to train on and 30 % held out. The same rows serve pooled models: scikit-learn's logistic regression without a penalty;
the parties' networks side by side, as one network of one table that torch trains; and scikit-learn's network, every
unit of which sees all columns, its penalty and epochs chosen on a seventh of the training rows. Label privacy is one
draw (`once`). A seed draws the split, the networks and the noise of labels.

    UCI credit   I.-C. Yeh, "Default of Credit Card Clients", UCI Machine Learning Repository; 30000 rows, 23 columns.
                 `data` is a folder with uci_credit_card.csv, or the same packed by xz

    parley reproduce credit --data DIR [--quick] [--seeds N] [--json FILE] [--plot FILE]
"""

import warnings
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler

from parley.datasets import Dataset, load_dataset
from parley.numerics.streams import stream
from parley.protocols.bambi.settings import BambiSpec
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


def run(quick: bool, data: Path | None = None, seed: int = 0) -> list[Row]:
    """AUC on held-out rows, federated and pooled; `quick` takes 6000 customers and leaves the networks out."""
    credit = load_credit(data)
    rows = common_rows(credit)[: 6000 * 4 // 7 if quick else None]
    found = []
    for epsilon in (None, *EPSILONS):
        area = federated_area(spec_of({"algorithm": "glm"}, epsilon, seed), credit, rows)
        found.append(_row(f"logistic, {_labels(epsilon)}", area))
    features, classes, trained, test = divided(spec_of({"algorithm": "glm"}, None, seed), credit, rows)
    logistic = LogisticRegression(C=np.inf, tol=1e-9, max_iter=10_000).fit(features[trained], classes[trained])
    found.insert(1, _row("logistic, pooled", area_of(logistic.decision_function(features[test]), classes[test])))
    if quick:
        return found
    for epsilon in (None, *EPSILONS):
        area = federated_area(spec_of(NETWORK, epsilon, seed), credit, rows)
        found.append(_row(f"network, {_labels(epsilon)}", area))
    side_by_side = pooled_network(features, classes, trained, seed)
    found.insert(-3, _row("network, pooled", area_of(side_by_side[test], classes[test])))
    dense = chosen_network(features[trained], classes[trained], seed)
    scores = dense.predict_proba(features[test])[:, 1]
    found.insert(-3, _row("network, pooled, scikit-learn", area_of(scores, classes[test])))
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


def spec_of(train: dict[str, Any], epsilon: float | None, seed: int) -> RunSpec:
    """A run of all three."""
    labels = {"mechanism": "off"} if epsilon is None else {"mechanism": "once", "epsilon": epsilon}
    return RunSpec.model_validate(
        {
            "name": "credit",
            "seed": seed,
            "parties": list(PARTIES),
            "split": {"lower": 0.6, "upper": 0.1, "test": 0.3},
            "train": train,
            "privacy": {"labels": labels},
            "evaluate_every": 0,
        }
    )


def divided(spec: RunSpec, credit: Dataset, rows: Array) -> tuple[Array, Array, Array, Array]:
    """Standardised columns of all rows, by figures of the training rows; classes; training rows; held-out ones."""
    features, classes = np.asarray(credit.features, dtype=np.float64)[rows], np.asarray(credit.labels)[rows].astype(int)
    sets = divide(spec.split, len(rows), stream(spec.seed, "split"))
    return StandardScaler().fit(features[sets.trained]).transform(features), classes, sets.trained, sets.test


def federated_area(spec: RunSpec, credit: Dataset, rows: Array) -> float:
    """AUC of the run's model."""
    features, classes, _, _ = divided(spec, credit, rows)
    ids = credit.ids[rows]
    tables = [
        Table(ids, np.ascontiguousarray(features[:, held]), list(credit.columns[held]), name)
        for name, held in PARTIES.items()
    ]
    known = Labels(ids, classes, ("0", "1"))
    return train_tables(spec, tables, known, noise_key=spec.seed.to_bytes(32, "big")).metrics["test auc"]


def pooled_network(features: Array, classes: Array, trained: Array, seed: int) -> Array:
    """Scores of all rows by the parties' networks side by side, trained by torch on one table as long as they are."""
    settings = spec_of(NETWORK, None, seed).settings(BambiSpec)
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        width, out = settings.model.hidden[0] if settings.model.hidden else 32, settings.model.out
        blocks = torch.nn.ModuleList(
            torch.nn.Sequential(
                torch.nn.Linear(held.stop - held.start, width), torch.nn.ReLU(), torch.nn.Linear(width, out)
            )
            for held in PARTIES.values()
        )
        head = torch.nn.Linear(out * len(PARTIES), 1)
    table, labels = torch.tensor(features, dtype=torch.float32), torch.tensor(classes, dtype=torch.float32)

    def scores(rows: Any) -> torch.Tensor:
        parts = [block(table[rows][:, held]) for block, held in zip(blocks, PARTIES.values(), strict=True)]
        found: torch.Tensor = head(torch.cat(parts, dim=1))[:, 0]
        return found

    steps, upper, lower = settings.upper.steps, settings.upper.optimiser, settings.lower.optimiser
    adam = torch.optim.Adam(
        [{"params": blocks.parameters(), "lr": upper.step}, {"params": head.parameters(), "lr": lower.step}]
    )
    fall = torch.optim.lr_scheduler.LambdaLR(adam, lambda k: min(1.0, (1 - k / steps) / (1 - upper.decay_from)))
    order = torch.tensor(trained)
    for _ in range(steps):
        rows = order[torch.randperm(len(order), generator=generator)[: settings.upper.batch]]
        adam.zero_grad()
        torch.nn.functional.binary_cross_entropy_with_logits(scores(rows), labels[rows]).backward()
        adam.step()
        fall.step()
    with torch.no_grad():
        return np.asarray(scores(slice(None)))


def chosen_network(features: Array, classes: Array, seed: int) -> MLPClassifier:
    """scikit-learn's network with the penalty and the epochs that are best on a seventh of the rows."""
    held, rest = np.split(np.random.default_rng(seed).permutation(len(features)), [len(features) // 7])

    def fitted(rows: Array, alpha: float, epochs: int) -> MLPClassifier:
        model = MLPClassifier(
            (96,), alpha=alpha, batch_size=512, learning_rate_init=3e-3, max_iter=epochs, random_state=seed
        )
        with warnings.catch_warnings():  # that it ends before it has converged is the point
            warnings.simplefilter("ignore", ConvergenceWarning)
            return model.fit(features[rows], classes[rows])

    settings = list(product((0.1, 1.0, 3.0), (30, 60)))
    reached = [area_of(fitted(rest, *one).predict_proba(features[held])[:, 1], classes[held]) for one in settings]
    return fitted(np.arange(len(features)), *settings[int(np.argmax(reached))])


def area_of(scores: Array, classes: Array) -> float:
    """Area under the ROC curve."""
    return float(roc_auc_score(classes, scores))


def _labels(epsilon: float | None) -> str:
    return "exact labels" if epsilon is None else f"ε = {epsilon:g}"


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
