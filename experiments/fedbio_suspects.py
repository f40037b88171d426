"""fedbio-suspects: data cleaning as a spec gets it by default, beside the simplest ways to find wrong labels.

The parties, rows and noise are those of `fedbio_cleaning`, on MNIST (LeCun, Cortes, Burges) and Fashion-MNIST (Xiao,
Rasul, Vollgraf); settings are those of a spec that says nothing but its task. An alternative fits a softmax regression
to the end, in one place, with the L2 coefficient that does best on the *test* rows (for the ranking, on the truth),
which no party could choose: it is what a tuned FedAvg tends to at best. Rows are ranked by their loss under it.

| case | learns from |
|---|---|
| default | checked and all other rows, by ten parties |
| all rows | the labels as they are, of ten parties |
| checked rows | the 500 checked rows of ten parties |
| one party | the rows of one party, checked ones too; the mean over three parties |
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from parley.experiments.fedbio_cleaning import (
    ROUNDS,
    SEED,
    Cleaned,
    Client,
    Digits,
    MissingData,
    clean,
    clients,
    load_digits,
)
from parley.experiments.fedbio_federation import spec
from parley.numerics.storm import Vector
from parley.party.fedbio.objectives import Rows
from parley.party.fedbio.role import settings_of
from parley.protocols.fedbio.settings import CleaningSpec, FedbioSpec
from parley.spec.parsing import parse_spec

SETS = {"MNIST": "mnist", "Fashion-MNIST": "fashion-mnist"}
NOISE = (0.1, 0.3, 0.6, 0.95)
RIDGES = (1e-1, 1e-2, 1e-3, 1e-4)
FIT_STEPS = 200
ALONE = 3
"""Parties that are judged by themselves."""


def run(quick: bool, data: Path | None = None, seed: int = SEED) -> list[dict[str, object]]:
    """Test error and AUC of the default and of each alternative, by data set and noise; `quick`: MNIST at two."""
    if data is None:
        raise MissingData("say where the IDX files are: --data DIR, with DIR/mnist and DIR/fashion-mnist")
    sets, noise = ({"MNIST": "mnist"}, (0.3, 0.95)) if quick else (SETS, NOISE)
    return [row for name, folder in sets.items() for rho in noise for row in compare(name, data / folder, rho, seed)]


def compare(name: str, folder: Path, rho: float, seed: int = SEED) -> list[dict[str, object]]:
    """The rows of one data set at one share of redrawn labels."""
    images = load_digits(folder)
    train = parse_spec(spec()).settings(FedbioSpec)
    settings, task = settings_of(train), train.task
    assert isinstance(task, CleaningSpec)  # noqa: S101 (`spec` says so)
    parts = [
        replace(part, objective=replace(part.objective, ridge=task.regularisation))
        for part in clients(images, rho, seed)
    ]
    found = {"default": clean(parts, images, settings, rounds=ROUNDS, seed=seed), **alternatives(parts, images)}
    return [
        {"case": f"{name}, {case}, rho={rho}", "metric": metric, "ours": value, "paper": None}
        for case, cleaned in found.items()
        for metric, value in (("test error", cleaned.test_error), ("AUC", cleaned.auc))
    ]


def alternatives(parts: Sequence[Client], images: Digits) -> dict[str, Cleaned]:
    """What needs no second level."""
    own = [part.objective for part in parts]
    everything = np.concatenate([o.features for o in own]), np.concatenate([o.labels for o in own])
    checked = np.concatenate([o.validation_features for o in own]), np.concatenate([o.validation_labels for o in own])
    alone = [
        fitted(
            np.concatenate([o.features, o.validation_features]),
            np.concatenate([o.labels, o.validation_labels]),
            images,
            [part],
        )
        for o, part in list(zip(own, parts, strict=True))[:ALONE]
    ]
    error, auc = (float(np.mean(found)) for found in zip(*[(c.test_error, c.auc) for c in alone], strict=True))
    return {
        "all rows": fitted(*everything, images, parts),
        "checked rows": fitted(*checked, images, parts),
        "one party": Cleaned(error, auc, float("nan")),
    }


def fitted(features: Vector, labels: Rows, images: Digits, judged: Sequence[Client]) -> Cleaned:
    """The best test error and the best AUC that any of the coefficients gives."""
    errors, aucs = [], []
    for ridge in RIDGES:
        model = LogisticRegression(C=1 / (ridge * len(labels)), max_iter=FIT_STEPS, tol=1e-3)
        model.fit(features.astype(np.float32), labels)
        errors.append(float(np.mean(model.predict(images.test) != images.test_labels)))
        aucs.append(float(np.mean([_ranking(model, part) for part in judged])))
    return Cleaned(min(errors), max(aucs), float("nan"))


def _ranking(model: LogisticRegression, part: Client) -> float:
    """AUC with which small likelihood points at wrong labels."""
    given: NDArray[np.float64] = model.predict_log_proba(part.objective.features)
    column = np.searchsorted(model.classes_, part.objective.labels)
    return float(roc_auc_score(part.corrupted, -given[np.arange(len(column)), column]))


def plot(rows: list[dict[str, object]], path: Path) -> None:
    """Test error and AUC against the noise, a line for each way, a row of panels for each data set."""
    from matplotlib.figure import Figure

    sets = list(dict.fromkeys(str(row["case"]).split(", ")[0] for row in rows))
    figure = Figure(figsize=(9, 3.5 * len(sets)), layout="constrained")
    panels = figure.subplots(len(sets), 2, squeeze=False)
    lines: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    for row in rows:
        name, case, rho = str(row["case"]).split(", ")
        point = float(rho.removeprefix("rho=")), float(str(row["ours"]))
        lines.setdefault((name, str(row["metric"]), case), []).append(point)
    for (name, metric, case), points in lines.items():
        axes = panels[sets.index(name)][("test error", "AUC").index(metric)]
        axes.plot(*zip(*sorted(points), strict=True), marker="o", label=case, linewidth=2.5 if case == "default" else 1)
        axes.set(title=name, xlabel="share of labels redrawn, ρ", ylabel=metric)
    panels[0][0].legend()
    figure.savefig(path)
