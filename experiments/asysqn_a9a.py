"""Rounds to a given precision on a9a, by eight real processes: AsySQN against first-order methods and a barrier.

AsySQN (Zhang et al., KDD 2021), Figure 2 and Table 4. A round is one aggregation call by any party, snapshots included
(a barrier round for SynSQN); the objective is read every 40 rounds (5 behind a barrier), and medians of three seeds are
given. The paper prints curves over time and no rounds, so its column is empty but for the accuracy.

    parley reproduce asysqn-a9a --data DIR      DIR/libsvm has a9a.svm.xz and a9a.t.svm.xz
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from parley.client import Federation
from parley.experiments.asysqn_federation import A9a, Trace, federation, load, pooled_accuracy, spec, train

NAMES = {1e-3: "1e-3", 1e-4: "1e-4"}
TARGETS = tuple(NAMES)
PAPER_ACCURACY = 0.8503
SEEDS = (0, 1, 2)
QUASI_NEWTON = {"direction": "quasi_newton", "step_size": 0.35}
FIRST_ORDER = {"direction": "first_order", "step_size": 2.5}
CASES: dict[str, dict[str, Any]] = {
    "AsySQN-SVRG": {**QUASI_NEWTON, "estimator": "svrg", "steps": 6000},
    "AsySQN-SAGA": {**QUASI_NEWTON, "estimator": "saga", "steps": 6000},
    "AsySQN-SGD": {**QUASI_NEWTON, "estimator": "sgd", "step_decay": 100, "steps": 4000},
    "AFSVRG-VP": {**FIRST_ORDER, "estimator": "svrg", "steps": 20_000},
    "AFSAGA-VP": {**FIRST_ORDER, "estimator": "saga", "steps": 20_000},
    "AFSGD-VP": {**FIRST_ORDER, "estimator": "sgd", "step_decay": 800, "steps": 6000},
    "SynSQN-SVRG": {**QUASI_NEWTON, "estimator": "svrg", "schedule": "synchronous", "steps": 800},
    "SynSQN-SAGA": {**QUASI_NEWTON, "estimator": "saga", "schedule": "synchronous", "steps": 800},
}
"""The methods that are compared, by the paper's names; the first-order step is the best of a grid."""
QUICK_CASES = ("AsySQN-SVRG", "AsySQN-SAGA", "AFSVRG-VP", "SynSQN-SVRG")
"""`--quick`: the same runs with one seed, and only to 1e-3."""


def run(quick: bool, data: Path | None) -> list[dict[str, Any]]:
    """Train every case on every seed, and return medians beside the pooled model's accuracy."""
    a9a = load(data, quick=False)
    cases = QUICK_CASES if quick else tuple(CASES)
    targets = TARGETS[:1] if quick else TARGETS
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, federation(a9a, Path(folder)) as client:
        for case in cases:
            traces = [_train(client, a9a, case, seed, quick) for seed in (SEEDS[:1] if quick else SEEDS)]
            rows += _rows(case, traces, targets)
    rows.append({"case": "pooled", "metric": "accuracy", "ours": pooled_accuracy(a9a), "paper": None})
    return rows


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw rounds to each target as bars, one group for each method."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    metrics = sorted({row["metric"] for row in rows if row["metric"].startswith("rounds")}, reverse=True)
    cases = list(dict.fromkeys(row["case"] for row in rows if row["metric"] in metrics))
    found = {(row["case"], row["metric"]): row["ours"] for row in rows}
    figure, axes = pyplot.subplots(figsize=(8, 4))
    for offset, metric in enumerate(metrics):
        heights = [found.get((case, metric)) or 0.0 for case in cases]
        places = np.arange(len(cases)) + offset / (len(metrics) + 1)
        axes.bar(places, heights, 1 / (len(metrics) + 1), label=metric)
    axes.set_xticks(np.arange(len(cases)), cases, rotation=30, ha="right")
    axes.set_ylabel("aggregation rounds")
    axes.set_yscale("log")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


def _train(client: Federation, a9a: A9a, case: str, seed: int, quick: bool) -> Trace:
    settings = {**CASES[case], "target": TARGETS[0] if quick else TARGETS[-1]}
    barrier = settings.get("schedule") == "synchronous"
    trace = train(client, spec(a9a, settings, seed=seed, look_every=5 if barrier else 40))
    print(f"{case} seed {seed}: {[trace.first(target) for target in TARGETS]}, gap {trace.gap[-1]:.2g}", flush=True)
    return trace


def _rows(case: str, traces: list[Trace], targets: tuple[float, ...]) -> list[dict[str, Any]]:
    rows = []
    for target in targets:
        found = [trace.first(target) for trace in traces]
        median = float(np.median([np.inf if value is None else value for value in found]))
        ours = median if np.isfinite(median) else None
        rows.append({"case": case, "metric": f"rounds to {NAMES[target]}", "ours": ours, "paper": None})
    accuracy = float(np.median([trace.metrics["test accuracy"] for trace in traces]))
    rows.append({"case": case, "metric": "accuracy", "ours": accuracy, "paper": PAPER_ACCURACY})
    sent = [trace.metrics["bytes"] for trace in traces]
    rows.append({"case": case, "metric": "bytes", "ours": float(np.median(sent)), "paper": None})
    return rows
