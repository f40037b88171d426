"""AsySQN in one process on a simulated clock: eight parties, one of them slow, on a9a.

AsySQN (Zhang et al., KDD 2021), Section 6. The parties' roles and the coordinator's program are those of the services
(`parley.simulation`); an update takes a simulated second, divided by the party's speed. So rounds to a target can be
counted in seconds of real time. A round is one aggregation call by any party, snapshots included. A party reads θ when
its turn starts and steps when its turn ends; whatever the others did in between is the staleness.

    python -m parley.experiments.asysqn_simulation --data DIR/libsvm/a9a.svm.xz --case AsySQN-SVRG
"""

from __future__ import annotations

import argparse
import asyncio
import json
import lzma
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray
from sklearn.datasets import load_svmlight_file

from parley.coordinator.asysqn.watch import Watch, observe
from parley.coordinator.programs import Report
from parley.experiments.asysqn_federation import COLUMNS, OPTIMUM, REGULARISATION
from parley.numerics.gradient_estimators import Estimator, Features, as_features
from parley.numerics.streams import stream
from parley.simulation import Holding, Outcome, on_simulated_clock, simulation_of
from parley.spec.parsing import parse_spec
from parley.tables.loading import Labels, Table

Vector = NDArray[np.float64]

CASES: dict[str, dict[str, Any]] = {
    f"{prefix}{estimator.name}{suffix}": {
        "estimator": estimator.value,
        "direction": direction,
        "schedule": schedule,
        "step_size": size,
        "step_decay": decay if estimator is Estimator.SGD else None,
        "curvature": {"scale": "last"},
    }
    for prefix, suffix, direction, schedule, size, decay in (
        ("AsySQN-", "", "quasi_newton", "asynchronous", 0.2, 100.0),
        ("SynSQN-", "", "quasi_newton", "synchronous", 0.2, 100.0),
        ("AF", "-VP", "first_order", "asynchronous", 2.5, 800.0),
    )
    for estimator in Estimator
}
"""The methods that are compared, by the paper's names; each SGD has its best decay of 25, 50, … 1600."""


@dataclass(frozen=True)
class Columns:
    """The parties' tables, and the coordinator's labels."""

    tables: tuple[Table, ...]
    labels: Labels


def split_columns(features: Features, labels: Vector, count: int) -> Columns:
    """Give `count` parties consecutive columns, as equal in number as can be."""
    ids = np.array([f"{row:06d}" for row in range(len(labels))])
    blocks = np.array_split(np.arange(features.shape[1]), count)
    tables = [
        Table(ids, as_features(features[:, block]), [f"x{column}" for column in block], f"party-{m}")
        for m, block in enumerate(blocks)
    ]
    return Columns(tuple(tables), Labels(ids, (labels > 0).astype(np.int64), ("-1", "1")))


def read_libsvm(path: Path, columns: int) -> tuple[Features, Vector]:
    """Read an svmlight file, .xz or plain."""
    with lzma.open(path) if path.suffix == ".xz" else path.open("rb") as file:
        features, labels = load_svmlight_file(file, n_features=columns)
    return features, np.asarray(labels, dtype=np.float64)


def simulate(
    train: dict[str, Any],
    columns: Columns,
    speeds: Sequence[float],
    *,
    seed: int = 0,
    jitter: float = 0.1,
    evaluate_every: int = 40,
    watch: Watch | None = None,
    look: Callable[[Report, float], None] | None = None,
) -> tuple[Outcome, Watch]:
    """A run on a simulated clock; it ends early where the watch has met its targets.

    Every party is slower than its speed by up to `jitter`: equal ones would otherwise step in lockstep. `look` gets
    each report, and the simulated seconds so far.
    """
    paces = np.asarray(speeds) * stream(seed, "asysqn/simulation").uniform(1.0 - jitter, 1.0, len(speeds))
    spec = {
        "name": "asysqn-simulation",
        "seed": seed,
        "parties": [{"name": f"party-{m}", "speed": float(pace)} for m, pace in enumerate(paces)],
        "split": {"lower": 0.5, "upper": 0.5, "test": 0.0},
        "train": {
            "algorithm": "asysqn",
            "labels_at": "coordinator",
            "turn_seconds": 1.0,
            "regularisation": REGULARISATION,
            **train,
        },
        "privacy": {
            "aggregation": {"kind": "plain", "minimum_parties": min(2, len(speeds))},
            "labels": {"mechanism": "off"},
        },
        "evaluate_every": evaluate_every,
        "checkpoint_every": 0,
    }
    seen = [watch or Watch()]

    def met(report: Report) -> bool:
        seen.append(observe(seen[-1], rounds=report.k, value=report.metrics["objective"]))
        if look is not None:
            look(report, asyncio.get_running_loop().time())
        return seen[-1].met

    holdings = [Holding(table) for table in columns.tables]
    simulation = simulation_of(parse_spec(yaml.safe_dump(spec)), holdings, lambda _, __: columns.labels)
    outcome = on_simulated_clock(simulation.drive(until=met))
    return outcome, seen[-1]


def rounds_to_targets(
    train: dict[str, Any],
    columns: Columns,
    *,
    optimum: float,
    targets: tuple[float, ...] = (1e-3, 1e-4),
    straggler: float = 0.4,
    most_rounds: int = 20_000,
    seed: int = 0,
) -> Watch:
    """Run until every target is met or `most_rounds` are spent, looking at the objective now and then."""
    speeds = [1.0] * (len(columns.tables) - 1) + [straggler]
    every = max(1, 40 // len(speeds)) if train["schedule"] == "synchronous" else 40
    watch = Watch(targets=targets, optimum=optimum)
    settings = {**train, "steps": most_rounds}
    return simulate(settings, columns, speeds, seed=seed, evaluate_every=every, watch=watch)[1]


def main() -> None:
    """Print and optionally write rounds to 1e-3 and 1e-4, medians over seeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="a9a in svmlight format, .xz or plain")
    parser.add_argument("--case", action="append", choices=list(CASES), help="repeat for several")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--most-rounds", type=int, default=20_000)
    parser.add_argument("--straggler", type=float, default=0.4, help="speed of the slow party, 0 < s ≤ 1")
    parser.add_argument("--json", type=Path, help="write the rows here")
    options = parser.parse_args()
    columns = split_columns(*read_libsvm(options.data, columns=COLUMNS), count=8)
    rows: list[dict[str, object]] = []
    for case in options.case or ["AsySQN-SVRG", "AsySQN-SAGA", "SynSQN-SVRG"]:
        watches = [
            rounds_to_targets(
                CASES[case],
                columns,
                optimum=OPTIMUM,
                straggler=options.straggler,
                most_rounds=options.most_rounds,
                seed=seed,
            )
            for seed in range(options.seeds)
        ]
        for target in watches[0].targets:
            found = [watch.reached.get(target, float("inf")) for watch in watches]
            median = float(np.median(found))
            # JSON has no infinity: a target that was not reached is null
            ours = median if np.isfinite(median) else None
            rows.append({"case": case, "metric": f"rounds to {target:g}", "ours": ours, "paper": None})
            print(f"{case:14s} rounds to {target:g}: median {median:g} of {found}", flush=True)
    if options.json:
        options.json.write_text(json.dumps({"name": "asysqn-simulation", "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
