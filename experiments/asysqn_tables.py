"""Tables 3, 4 and 5 of the AsySQN paper, and what its figures 2 and 4 show, for the data sets that can be had.

Q. Zhang et al., "AsySQN" (KDD 2021), Section 6. Eight parties with consecutive columns, λ = 1e-4, b = 1024.

Table 3   CTI: seconds to get a vector of d_ℓ numbers from each of seven others over those to get a scalar, between real
          processes over gRPC with mutual TLS; no data are needed, so all eight data sets are there. A step of the
          algorithm gets b scalars, not one: that ratio is given too.
Table 4   test accuracy at the stop criterion, beside scikit-learn's minimum of the same objective (NonF).
Table 5   CRUI = CT₂ of SynSQN over CT₂ of AsySQN for the same number of updates, one party at 30 % speed.
          CT₂ is training time without communication time. On the simulated clock communication takes none, so CT₂
          is the time of the clock. `asysqn-straggler` has the ratio by processes, waiting included.
Figure 2  rounds to a sub-optimality: an aggregation by any party, a barrier round for SynSQN and for the quasi-Newton
          framework [23]; a dash means that the most rounds were made without it. Bytes to it count 8 bytes a number.
Figure 4  seconds to a sub-optimality on the clock with one party over those with q, on a9a (the paper's D7 is not
          here); an update takes 1/q seconds, as a party has 1/q of the columns, and the last party of several is at
          40 %.

The roles and the coordinator's program are those of the services (`parley.simulation`). The step of the first-order
methods is the best of five multiples of 1/L for pooled gradient descent.

    parley reproduce asysqn-tables --data DIR [--quick] [--json FILE] [--plot FILE]
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from parley.benchmarks.echo import Hub, Measurement
from parley.coordinator.asysqn.watch import Watch
from parley.coordinator.programs import Report
from parley.experiments.asysqn_data import READERS, Task, Vector, load_task
from parley.experiments.asysqn_simulation import simulate, split_columns
from parley.experiments.quasi_newton_baseline import NUMBER, QuasiNewton, run_quasi_newton
from parley.numerics.gradient_estimators import Estimator
from parley.services.wire.certificates import create_authority, issue

Row = dict[str, Any]

PARTIES = 8
BATCH = 1024
SLOW = 0.3
"""Speed of the slow party of table 5: the paper says 30 % to 60 %."""
TARGET, LAST_TARGET = 1e-3, 1e-4
BLOCKS = {"D1": 12, "D2": 12, "D3": 169_398, "D4": 37, "D5": 5904, "D6": 16, "D7": 250, "D8": 98}
"""d_ℓ as printed in table 3."""
CTI = {"D1": 1.057, "D2": 1.059, "D3": 89.265, "D4": 1.187, "D5": 5.688, "D6": 1.083, "D7": 1.771, "D8": 1.333}
ACCURACY = {"D1": 81.96, "D2": 93.56, "D3": 98.29, "D4": 90.21, "D5": 96.02, "D6": 85.03, "D7": 87.43, "D8": 87.01}
"""Table 4, in per cent; the paper's NonF and Ours are the same."""
CRUI = {
    "SGD": {"D1": 2.90, "D2": 2.77, "D3": 2.98, "D4": 2.84, "D5": 2.82, "D6": 2.80, "D7": 2.75, "D8": 2.86},
    "SVRG": {"D1": 2.96, "D2": 2.80, "D3": 3.01, "D4": 2.95, "D5": 2.86, "D6": 2.72, "D7": 2.84, "D8": 2.88},
    "SAGA": {"D1": 2.99, "D2": 2.92, "D3": 3.09, "D4": 2.96, "D5": 2.91, "D6": 2.79, "D7": 2.74, "D8": 2.92},
}
WORKERS = (1, 2, 4, 8)
MOST_ROUNDS, QUICK_ROUNDS = 2400, 800
"""Of a method that has not met its target; one that is still on its way shows by its sub-optimality at the end."""
MOST_BARRIERS, QUICK_BARRIERS = 400, 150
"""Of one behind a barrier, where all parties step in a round."""
BARRIER_STEP = 0.2
"""All blocks step at once behind a barrier: 0.35, the step without one, is not stable on D1."""
QUICK_ROWS = 4096
TRIALS = 10
MULTIPLES = (0.5, 1.0, 2.0, 4.0, 8.0)


@dataclass(frozen=True)
class Method:
    """One of the compared methods."""

    name: str
    settings: dict[str, Any]
    most_rounds: int
    targets: tuple[float, ...]


@dataclass
class Timeline:
    """Updates of all parties, and seconds of the clock, at each look."""

    updates: list[float] = field(default_factory=lambda: [0.0])
    seconds: list[float] = field(default_factory=lambda: [0.0])

    def look(self, report: Report, seconds: float) -> None:
        """Take note."""
        self.updates.append(report.metrics["updates"])
        self.seconds.append(seconds)

    def seconds_for(self, updates: float) -> float:
        """When so many updates had been made."""
        return float(np.interp(updates, self.updates, self.seconds))


@dataclass(frozen=True)
class Trained:
    """How one method did on one data set."""

    weights: Vector
    watch: Watch
    timeline: Timeline


def methods(first_step: float, *, quick: bool) -> Iterator[Method]:
    """Three schedules or directions, each with three estimators."""
    for estimator in Estimator:
        name = estimator.name
        second = {"estimator": estimator.value, "direction": "quasi_newton", "step_size": 0.35}
        first = {"estimator": estimator.value, "direction": "first_order", "step_size": first_step}
        if estimator is Estimator.SGD:
            second, first = second | {"step_decay": 100.0}, first | {"step_decay": 800.0}
        accurate = estimator is Estimator.SVRG and not quick
        targets = (TARGET, LAST_TARGET) if accurate else (TARGET,)
        rounds, barriers = (QUICK_ROUNDS, QUICK_BARRIERS) if quick else (MOST_ROUNDS, MOST_BARRIERS)
        barrier = second | {"schedule": "synchronous", "step_size": BARRIER_STEP}
        yield Method(f"AsySQN-{name}", second, rounds, targets)
        yield Method(f"SynSQN-{name}", barrier, barriers, targets)
        yield Method(f"AF{name}-VP", first, rounds, targets[:1])


def run(quick: bool, data: Path | None, seed: int = 0) -> list[Row]:
    """Every table; `quick` takes 4096 rows of D1 and D6."""
    rows = communication(TRIALS // 3 if quick else TRIALS)
    for name in ("D1", "D6") if quick else tuple(READERS):
        task = load_task(name, data, seed=seed, most_rows=QUICK_ROWS if quick else None)
        rows += _trained_rows(task, quick=quick, seed=seed)
    rows += _absent_rows([row["case"] for row in rows])
    return rows + speed_up(load_task("D6", data, seed=seed, most_rows=QUICK_ROWS if quick else None), seed=seed)


# Table 3.


def communication(trials: int) -> list[Row]:
    """CTI of each block size; of some trials the quickest counts, since a busy machine only adds to a time."""
    sizes = sorted({1, BATCH, *BLOCKS.values()})
    names = [f"party-{m}" for m in range(1, PARTIES)]
    with tempfile.TemporaryDirectory() as folder:
        authority = Path(folder) / "ca"
        create_authority(authority, "experiment")
        for name in names:
            issue(authority, name, "party", ["127.0.0.1"])
        issue(authority, "coordinator", "coordinator", ["127.0.0.1"])
        with Hub(names, Path(folder)) as hub:
            timed = [{numbers: _seconds(hub, numbers) for numbers in sizes} for _ in range(trials)]
    least = {numbers: min(each[numbers] for each in timed) for numbers in sizes}
    rows = []
    for name, block in BLOCKS.items():
        rows.append(_row(f"Table 3, CTI, {name}", "ratio", least[block] / least[1], CTI[name]))
        rows.append(_row(f"Table 3, CTI to b = {BATCH} scalars, {name}", "ratio", least[block] / least[BATCH]))
        rows.append(_row(f"Table 3, bytes to b = {BATCH} scalars, {name}", "ratio", block / BATCH))
    return rows


def _seconds(hub: Hub, numbers: int) -> float:
    """Seconds to ask seven others and to have their so many numbers each."""
    addresses = hub.addresses("grpc+mtls", PARTIES - 1)
    steps = 10 if numbers > 10 * BATCH else 100
    return hub.seconds(Measurement("grpc+mtls", addresses, NUMBER, NUMBER * numbers, steps))


# Tables 4 and 5, figure 2.


def _trained_rows(task: Task, *, quick: bool, seed: int) -> list[Row]:
    name, optimum = task.name, task.objective(task.pooled)
    rows = [_row(f"Table 4, NonF, {name}", "accuracy %", 100 * task.accuracy(task.pooled), ACCURACY[name])]
    found: dict[str, Trained] = {}
    for method in methods(first_order_step(task), quick=quick):
        found[method.name] = train(task, method, optimum=optimum, seed=seed)
        ended = found[method.name]
        gap = task.objective(ended.weights) - optimum
        print(f"{name} {method.name}: {dict(ended.watch.reached)} of {ended.watch.rounds}, gap {gap:.2g}", flush=True)
        rows += [
            _row(f"Table 4, {method.name}, {name}", "accuracy %", 100 * task.accuracy(ended.weights), ACCURACY[name]),
            *_reached_rows(method.name, name, method.targets, dict(ended.watch.reached)),
            _row(f"Figure 2, {method.name}, {name}", "sub-optimality at the end", gap),
        ]
    rows += _baseline_rows(task, optimum=optimum, seed=seed)
    for estimator in Estimator:
        ratio = utilisation(found[f"AsySQN-{estimator.name}"].timeline, found[f"SynSQN-{estimator.name}"].timeline)
        rows.append(_row(f"Table 5, {estimator.name}-based, {name}", "CRUI", ratio, CRUI[estimator.name][name]))
    return rows


def train(task: Task, method: Method, *, optimum: float, seed: int) -> Trained:
    """Until the targets are met, or the method's rounds are over; the last party is the slow one."""
    speeds = [1.0] * (PARTIES - 1) + [SLOW]
    timeline, watch = Timeline(), Watch(targets=method.targets, optimum=optimum)
    settings = {**method.settings, "batch": BATCH, "steps": method.most_rounds}
    columns = split_columns(task.features, task.labels, PARTIES)
    every = 5 if settings.get("schedule") == "synchronous" else 40
    outcome, watch = simulate(
        settings, columns, speeds, seed=seed, jitter=0.0, evaluate_every=every, watch=watch, look=timeline.look
    )
    return Trained(np.concatenate([state.state.weights for state in outcome.states]), watch, timeline)


def utilisation(free: Timeline, barrier: Timeline) -> float:
    """CRUI: CT₂ behind a barrier over CT₂ without, for the same number of updates."""
    updates = min(free.updates[-1], barrier.updates[-1])
    return barrier.seconds_for(updates) / free.seconds_for(updates)


def first_order_step(task: Task) -> float:
    """The multiple of 1/L with which 60 steps of pooled gradient descent come furthest."""

    def end(step: float) -> float:
        weights = np.zeros(task.features.shape[1])
        for _ in range(60):
            weights = weights - step * task.gradient(weights)
        return task.objective(weights)

    return min((multiple / task.smoothness for multiple in MULTIPLES), key=end)


def _baseline_rows(task: Task, *, optimum: float, seed: int) -> list[Row]:
    ended = run_quasi_newton(task, QuasiNewton(seed=seed), optimum=optimum, targets=(TARGET,))
    rows = _reached_rows("QN framework [23]", task.name, (TARGET,), dict(ended.reached), ended.numbers_per_round)
    return [
        _row(f"Table 4, QN framework [23], {task.name}", "accuracy %", 100 * task.accuracy(ended.weights)),
        *rows,
    ]


def _reached_rows(
    method: str, name: str, targets: tuple[float, ...], reached: dict[float, int], numbers: float | None = None
) -> Iterator[Row]:
    """Rounds to each target, and bytes to the first; a sum over two trees is 2q − 1 messages of b numbers."""
    case = f"Figure 2, {method}, {name}"
    for target in targets:
        yield _row(case, f"rounds to {target:.0e}".replace("e-0", "e-"), reached.get(target))
    per_round = (2 * PARTIES - 1) * BATCH if numbers is None else numbers
    first = reached.get(targets[0])
    yield _row(case, "MB to 1e-3", None if first is None else first * per_round * NUMBER / 1e6)


def _absent_rows(there: list[str]) -> list[Row]:
    """The paper's figures for the data sets that are not here."""
    rows = []
    for name in BLOCKS:
        if f"Table 4, NonF, {name}" not in there:
            rows.append(_row(f"Table 4, NonF, {name}", "accuracy %", None, ACCURACY[name]))
            rows += [_row(f"Table 5, {each}-based, {name}", "CRUI", None, CRUI[each][name]) for each in CRUI]
    return rows


# Figure 4.


def speed_up(task: Task, *, seed: int) -> list[Row]:
    """Seconds to the target with one party over those with q, without a barrier and behind one."""
    optimum = task.objective(task.pooled)
    seconds: dict[tuple[str, int], float | None] = {}
    for schedule in ("asynchronous", "synchronous"):
        for count in WORKERS:
            speeds = [1.0] * count if count == 1 else [1.0] * (count - 1) + [0.4]
            seconds[schedule, count] = _seconds_to_target(task, schedule, speeds, optimum=optimum, seed=seed)
    rows = []
    for (schedule, count), needed in seconds.items():
        alone = seconds[schedule, 1]
        ratio = None if needed is None or alone is None else alone / needed
        rows.append(_row(f"Figure 4, {schedule}, q = {count}", "speed-up", ratio))
    return rows


def _seconds_to_target(task: Task, schedule: str, speeds: list[float], *, optimum: float, seed: int) -> float | None:
    timeline, watch = Timeline(), Watch(targets=(TARGET,), optimum=optimum)
    settings = {
        "estimator": "svrg",
        "step_size": 0.35 if schedule == "asynchronous" else BARRIER_STEP,
        "schedule": schedule,
        "batch": BATCH,
        "turn_seconds": 1.0 / len(speeds),
        "steps": 1600 if schedule == "asynchronous" else 300,
    }
    every = 5 * (len(speeds) if schedule == "asynchronous" else 1)
    columns = split_columns(task.features, task.labels, len(speeds))
    _, watch = simulate(settings, columns, speeds, seed=seed, evaluate_every=every, watch=watch, look=timeline.look)
    return timeline.seconds[-1] if watch.met else None


def plot(rows: list[Row], path: Path) -> None:
    """Draw CRUI, rounds and speed-up in q."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    found = {(row["case"], row["metric"]): row["ours"] for row in rows}
    for estimator, values in CRUI.items():
        names = [name for name in values if found.get((f"Table 5, {estimator}-based, {name}", "CRUI"))]
        left.plot(names, [found[f"Table 5, {estimator}-based, {name}", "CRUI"] for name in names], "o", label=estimator)
        left.plot(names, [values[name] for name in names], "x", color="grey")
    left.set_title("CRUI (grey: the paper's)")
    left.set_ylim(0.0, 4.0)
    left.legend(fontsize=8)
    shown = [case for case, metric in found if metric == "rounds to 1e-3" and case.endswith("D6")]
    middle.barh(
        [case.split(", ")[1] for case in shown],
        [found[case, "rounds to 1e-3"] or 0.0 for case in shown],
        color="#4c78a8",
    )
    middle.set_title("D6 (a9a): rounds to 1e-3 (none: not reached)")
    middle.invert_yaxis()
    for schedule in ("asynchronous", "synchronous"):
        ratios = [found.get((f"Figure 4, {schedule}, q = {count}", "speed-up")) for count in WORKERS]
        known = [(count, ratio) for count, ratio in zip(WORKERS, ratios, strict=True) if ratio is not None]
        if known:
            right.plot(*zip(*known, strict=True), marker="o", label=schedule)
    right.plot(WORKERS, WORKERS, color="grey", linestyle=":", label="linear")
    right.set_title("a9a: speed-up to 1e-3")
    right.set_xlabel("parties")
    right.legend(fontsize=8)
    figure.savefig(path)


def _row(case: str, metric: str, ours: float | None, paper: float | None = None) -> Row:
    return {"case": case, "metric": metric, "ours": ours, "paper": paper}
