"""Discrete-event simulation of AsySQN in one process: eight parties, one of them slow, on a9a.

AsySQN (Zhang et al., KDD 2021), Section 6. The party's own steps (`party.asysqn.steps`) run on a simulated clock, so
rounds to a target can be counted in seconds of real time and without a network. A round is one aggregation call
by any party, snapshots included. A party reads θ when its turn starts and steps when its turn ends; whatever the
others did in between is the staleness.

    python -m parley.experiments.asysqn_simulation --data DIR/libsvm/a9a.svm.xz --case AsySQN-SVRG
"""

from __future__ import annotations

import argparse
import heapq
import json
import lzma
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_svmlight_file

from parley.coordinator.asysqn.watch import Watch, objective, observe
from parley.numerics.gradient_estimators import Estimator, Features, Rows, as_features
from parley.numerics.linear_losses import LinearLoss, Logistic, Slopes, slopes_at
from parley.numerics.streams import stream
from parley.party.asysqn.steps import (
    Direction,
    PartyData,
    Schedule,
    Settings,
    State,
    partial_theta,
    propose_batch,
    snapshot_due,
    squared_norm,
    start,
    take_snapshot,
    update,
)

Vector = NDArray[np.float64]

A9A_OPTIMUM = 0.324506924713757
"""f* of l2-regularised logistic regression on a9a, λ = 1e-4."""

CASES: dict[str, Settings] = {
    f"{prefix}{estimator.name}{suffix}": Settings(
        estimator=estimator,
        direction=direction,
        schedule=schedule,
        step_size=size,
        step_decay=decay if estimator is Estimator.SGD else None,
    )
    for prefix, suffix, direction, schedule, size, decay in (
        ("AsySQN-", "", Direction.QUASI_NEWTON, Schedule.ASYNCHRONOUS, 0.2, 100.0),
        ("SynSQN-", "", Direction.QUASI_NEWTON, Schedule.SYNCHRONOUS, 0.2, 100.0),
        ("AF", "-VP", Direction.FIRST_ORDER, Schedule.ASYNCHRONOUS, 2.5, 800.0),
    )
    for estimator in Estimator
}
"""The methods that are compared, by the paper's names; each SGD has its best decay of 25, 50, … 1600."""


@dataclass(frozen=True)
class Federation:
    """The parties and the labels of one simulated run."""

    parties: tuple[PartyData, ...]
    labels: Vector
    loss: LinearLoss


def split_columns(features: Features, labels: Vector, count: int) -> Federation:
    """Give `count` parties consecutive columns, as equal in number as can be."""
    blocks = np.array_split(np.arange(features.shape[1]), count)
    parties = [PartyData(f"party-{m}", as_features(features[:, block])) for m, block in enumerate(blocks)]
    return Federation(tuple(parties), labels, Logistic())


def read_libsvm(path: Path, columns: int) -> tuple[Features, Vector]:
    """Read an svmlight file, .xz or plain."""
    with lzma.open(path) if path.suffix == ".xz" else path.open("rb") as file:
        features, labels = load_svmlight_file(file, n_features=columns)
    return features, np.asarray(labels, dtype=np.float64)


def aggregate(settings: Settings, federation: Federation, states: Sequence[State], rows: Rows | None = None) -> Vector:
    """Return Σ_ℓ θ_I^ℓ at this instant."""
    shares = [partial_theta(settings, d, s, rows) for d, s in zip(federation.parties, states, strict=True)]
    return np.asarray(np.sum(shares, axis=0))


def slopes(settings: Settings, federation: Federation, states: Sequence[State], rows: Rows) -> Slopes:
    """Return the slopes of the loss on one batch at this instant."""
    return slopes_at(federation.loss, aggregate(settings, federation, states, rows), federation.labels[rows])


def synchronous_rounds(settings: Settings, federation: Federation) -> Iterator[list[State]]:
    """Yield the states after each barrier round; a snapshot is a round too."""
    states = [start(data) for data in federation.parties]
    while True:
        if snapshot_due(settings, states[0]):
            derivatives = federation.loss.derivative(aggregate(settings, federation, states), federation.labels)
            states = [
                take_snapshot(settings, d, s, derivatives) for d, s in zip(federation.parties, states, strict=True)
            ]
            yield states
        rows = propose_batch(settings, federation.parties[0], states[0])
        at_batch = slopes(settings, federation, states, rows)
        states = [update(settings, d, s, rows, at_batch) for d, s in zip(federation.parties, states, strict=True)]
        yield states


def asynchronous_rounds(
    settings: Settings, federation: Federation, speeds: Sequence[float], *, jitter: float = 0.1
) -> Iterator[list[State]]:
    """Yield the states after each aggregation call, in the order in which turns end.

    A turn of party ℓ lasts 1/speed_ℓ, within ± jitter: equal parties would otherwise step in lockstep.
    """
    states = [start(data) for data in federation.parties]
    noise = stream(settings.seed, "asysqn/simulation")
    # (time at which the turn ends, party, its batch and the slopes it read when the turn began)
    turns: list[tuple[float, int, Rows | None, Slopes | None]] = [
        (noise.random() / speed, m, None, None) for m, speed in enumerate(speeds)
    ]
    heapq.heapify(turns)
    while True:
        now, m, rows, read = heapq.heappop(turns)
        data = federation.parties[m]
        if rows is not None and read is not None:
            states[m] = update(settings, data, states[m], rows, read)
            yield states
        if snapshot_due(settings, states[m]):
            derivatives = federation.loss.derivative(aggregate(settings, federation, states), federation.labels)
            states[m] = take_snapshot(settings, data, states[m], derivatives)
            yield states
        rows = propose_batch(settings, data, states[m])
        read = slopes(settings, federation, states, rows)
        duration = (1.0 + jitter * (2.0 * noise.random() - 1.0)) / speeds[m]
        heapq.heappush(turns, (now + duration, m, rows, read))


def rounds_to_targets(
    settings: Settings,
    federation: Federation,
    *,
    optimum: float,
    targets: tuple[float, ...] = (1e-3, 1e-4),
    straggler: float = 0.4,
    most_rounds: int = 20_000,
    watch_every: int = 40,
) -> Watch:
    """Run until every target is met or `most_rounds` are spent, looking at the objective now and then."""
    speeds = [1.0] * (len(federation.parties) - 1) + [straggler]
    if settings.schedule is Schedule.SYNCHRONOUS:
        steps, watch_every = synchronous_rounds(settings, federation), max(1, watch_every // len(speeds))
    else:
        steps = asynchronous_rounds(settings, federation, speeds)
    watch = Watch(targets=targets, optimum=optimum)
    for rounds, states in enumerate(steps, start=1):
        if rounds % watch_every == 0:
            theta = aggregate(settings, federation, states)
            value = objective(
                federation.loss,
                theta,
                federation.labels,
                settings.regularisation,
                sum(map(squared_norm, states)),
            )
            watch = observe(watch, rounds=rounds, value=value)
        if watch.met or rounds >= most_rounds:
            break
    return watch


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
    federation = split_columns(*read_libsvm(options.data, columns=123), count=8)
    rows: list[dict[str, object]] = []
    for case in options.case or ["AsySQN-SVRG", "AsySQN-SAGA", "SynSQN-SVRG"]:
        watches = [
            rounds_to_targets(
                replace(CASES[case], seed=seed),
                federation,
                optimum=A9A_OPTIMUM,
                straggler=options.straggler,
                most_rounds=options.most_rounds,
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
