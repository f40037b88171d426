"""Influence of training rows, estimated by HGP and checked by retraining without them (Figure 1c and Table 4).

Each party's λ_i holds one weight per own training row, so that it learns the influence of its own rows on the total
validation loss of all parties, and of no one else's. The fifty rows with the largest estimates are then left out,
one at a time, and the pooled problem is solved again to rounding.

R² = 1 − SS_res/SS_tot of prediction against retraining, slope of retraining on prediction through a least-squares
line, F1 for "removal lowers the loss". F1 is blind to a wrong scale: R² and slope are not.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import f1_score

from parley.experiments.hgp_parties import Mixing, hyper_gradients, train
from parley.experiments.synthetic_clients import Client, synthetic_clients
from parley.numerics.bilevel_costs import weighted_samples
from parley.numerics.networks import NetworkKind, NetworkPlan
from parley.party.hgp.steps import Form, Hgp, Training

Row = dict[str, Any]
Vector = NDArray[np.floating]

WEIGHT_DECAY = 0.01
TOP = 50


@dataclass(frozen=True)
class Influence:
    """Predicted and actual change of the total validation loss, for the rows with the largest predictions."""

    predicted: Vector
    actual: Vector

    @property
    def r2(self) -> float:
        """1 − SS_res/SS_tot."""
        residual = ((self.actual - self.predicted) ** 2).sum()
        return float(1.0 - residual / ((self.actual - self.actual.mean()) ** 2).sum())

    @property
    def slope(self) -> float:
        """Slope of the least-squares line of actual on predicted."""
        return float(np.polyfit(self.predicted, self.actual, 1)[0])

    @property
    def f1(self) -> float:
        """F1 of "removing the row lowers the loss"."""
        return float(f1_score(self.actual < 0, self.predicted < 0))


def estimate_influence(seed: int, *, rounds: int, push_steps: int, form: Form, trained: bool) -> Influence:
    """Run SGP (or take the exact solution), then HGP, then retrain without each of the top rows."""
    clients = synthetic_clients(seed)
    costs = [
        weighted_samples(c.features, c.labels, c.validation_features, c.validation_labels, weight_decay=WEIGHT_DECAY)
        for c in clients
    ]
    hypers = [np.ones(cost.hyper_size) for cost in costs]
    mixing = Mixing(NetworkPlan(NetworkKind.RANDOM_DIRECTED, size=len(clients), seed=seed))
    solution = retrain(clients, hypers)
    points = [solution] * len(clients)
    if trained:
        schedule = Training(steps=5000, learning_rate=1.0, milestones=(1500, 2500, 3500), decay=0.1)
        points = train(costs, mixing, schedule, [np.zeros(5)] * len(clients), hypers)
    v = hyper_gradients(costs, mixing, Hgp(rounds, push_steps, 1.0, form), points, hypers)
    predicted = -np.concatenate(v)
    top = np.argsort(-np.abs(predicted))[:TOP]
    before = validation_loss(clients, solution)
    actual = []
    for index in top:
        without = [hyper.copy() for hyper in hypers]
        without[index // 100][index % 100] = 0.0
        actual.append(validation_loss(clients, retrain(clients, without)) - before)
    return Influence(predicted[top], np.array(actual))


def retrain(clients: list[Client], weights: Sequence[Vector]) -> Vector:
    """Solve the pooled inner problem by Newton's method, to rounding."""
    x = np.zeros(clients[0].features.shape[1])
    for _ in range(30):
        gradient = len(clients) * WEIGHT_DECAY * x
        hessian = len(clients) * WEIGHT_DECAY * np.eye(len(x))
        for client, weight in zip(clients, weights, strict=True):
            p = 1.0 / (1.0 + np.exp(-client.features @ x))
            rows = len(p)
            gradient = gradient + client.features.T @ (weight * (p - client.labels)) / rows
            hessian = hessian + (client.features.T * (weight * p * (1.0 - p))) @ client.features / rows
        step = np.linalg.solve(hessian, gradient)
        x = x - step
        if np.abs(step).max() < 1e-14:
            break
    return x


def validation_loss(clients: list[Client], x: Vector) -> float:
    """Return Σ_k f_k: the sum over parties of their mean validation losses."""
    total = 0.0
    for client in clients:
        margin = (2 * client.validation_labels - 1) * (client.validation_features @ x)
        total += float(np.logaddexp(0.0, -margin).mean())
    return total


def run(quick: bool, data: Path | None) -> list[Row]:  # noqa: ARG001 (the data are synthetic)
    """Return R², F1 and slope for each setting, the worst over seeds where there are several."""
    settings = {
        "logistic, M=500, S=100": (500, 100, Form.REINIT, False),
        "logistic, M=500, S=10, track": (500, 10, Form.TRACK, False),
        "logistic, SGP solution, M=500, S=10, track": (500, 10, Form.TRACK, True),
    }
    rows: list[Row] = []
    for case, (rounds, push_steps, form, trained) in settings.items():
        results = [
            estimate_influence(seed, rounds=rounds, push_steps=push_steps, form=form, trained=trained)
            for seed in range(1 if quick else 3)
        ]
        paper_r2, paper_f1 = (0.99, 1.00) if "S=100" in case else (None, None)
        rows += [
            {"case": case, "metric": "R2", "ours": min(r.r2 for r in results), "paper": paper_r2},
            {"case": case, "metric": "F1", "ours": min(r.f1 for r in results), "paper": paper_f1},
            {
                "case": case,
                "metric": "slope",
                "ours": max((r.slope for r in results), key=lambda s: abs(s - 1)),
                "paper": None,
            },
        ]
    return rows


def plot(rows: list[Row], path: Path) -> None:
    """Mark the three scores of each setting, and the paper's."""
    from matplotlib.figure import Figure

    cases = list(dict.fromkeys(row["case"] for row in rows))
    figure = Figure(figsize=(8, 0.6 * len(cases) + 1.6), layout="constrained")
    axes = figure.subplots()
    for marker, metric in zip("os^", ("R2", "F1", "slope"), strict=True):
        found = [row for row in rows if row["metric"] == metric]
        axes.plot([row["ours"] for row in found], [row["case"] for row in found], marker, label=metric, markersize=8)
    printed = [row for row in rows if row["paper"] is not None]
    axes.plot(
        [row["paper"] for row in printed],
        [row["case"] for row in printed],
        "k|",
        markersize=18,
        label="the paper's R2, F1",
    )
    axes.set_xlim(0.9, 1.1)
    axes.set_ylim(len(cases) - 0.5, -0.5)
    axes.grid(axis="x", alpha=0.3)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    figure.savefig(path)
