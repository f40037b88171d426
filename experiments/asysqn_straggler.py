"""What one slow party costs, by eight real processes on a9a: AsySQN against SynSQN.

AsySQN (Zhang et al., KDD 2021), Section 6.3 and Table 5. Every update takes a fixed time, asleep; the last party's
takes 1/s times as long. Its answers to others are not slowed. The throughput ratio is the paper's CRUI: updates per
second without a barrier over updates per second behind one. Its closed form here is (q − 1 + s)/(q·s), 2.31 at s = 0.4
and 3.04 at s = 0.3; the paper does not say how slow its slow party was, and has 2.79 for SAGA on a9a.

    parley reproduce asysqn-straggler --data DIR      DIR/libsvm has a9a.svm.xz and a9a.t.svm.xz
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from parley.client import Federation
from parley.experiments.asysqn_federation import A9a, Trace, federation, load, spec, train

SPEEDS = (0.4, 0.3)
TARGET = 1e-3
TURN_SECONDS = 0.4
"""Time of an update at full speed: long against the work of 8 parties' messages on 2 cores."""
PAPER = 2.79
"""Table 5, SAGA, a9a; the paper's slow party has an unstated speed."""
SETTINGS: dict[str, Any] = {"estimator": "saga", "step_size": 0.35, "turn_seconds": TURN_SECONDS, "target": TARGET}
QUICK: dict[str, Any] = {"batch": 512, "turn_seconds": 0.25}


def run(quick: bool, data: Path | None) -> list[dict[str, Any]]:
    """Time both schedules with one slow party, and return their ratios."""
    a9a = load(data, quick=quick)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, federation(a9a, Path(folder)) as client:
        for speed in SPEEDS[:1] if quick else SPEEDS:
            free = _time(client, a9a, "asynchronous", speed, quick)
            barrier = _time(client, a9a, "synchronous", speed, quick)
            rows += _rows(f"s={speed}", free, barrier)
    return rows


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw both ratios for each speed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    chosen = [row for row in rows if row["metric"].endswith("ratio") and row["ours"] is not None]
    figure, axes = pyplot.subplots(figsize=(6, 4))
    axes.bar([f"{row['case']}\n{row['metric']}" for row in chosen], [row["ours"] for row in chosen])
    axes.axhline(1.0, color="grey", linewidth=1)
    axes.set_ylabel("asynchronous over synchronous")
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


def _time(client: Federation, a9a: A9a, schedule: str, speed: float, quick: bool) -> Trace:
    barrier = schedule == "synchronous"
    settings = {**SETTINGS, "schedule": schedule, "steps": 600 if barrier else 6000, **(QUICK if quick else {})}
    trace = train(client, spec(a9a, settings, seed=0, look_every=5 if barrier else 40, straggler=speed))
    print(f"{schedule} s={speed}: {trace.first(TARGET, 'seconds')} s, {_throughput(trace):.1f} updates/s", flush=True)
    return trace


def _throughput(trace: Trace) -> float:
    return trace.metrics["updates"] / trace.seconds[-1]


def _rows(case: str, free: Trace, barrier: Trace) -> list[dict[str, Any]]:
    seconds = [trace.first(TARGET, "seconds") for trace in (free, barrier)]
    ratio = None if seconds[0] is None or seconds[1] is None else seconds[1] / seconds[0]
    slow = "utilisation party-7"
    others = [barrier.metrics[f"utilisation party-{m}"] for m in range(7)]
    alone = [free.metrics[f"utilisation party-{m}"] for m in range(7)]
    return [
        {"case": case, "metric": "throughput ratio", "ours": _throughput(free) / _throughput(barrier), "paper": PAPER},
        {"case": case, "metric": "time to 1e-3 ratio", "ours": ratio, "paper": None},
        {"case": case, "metric": "asynchronous seconds to 1e-3", "ours": seconds[0], "paper": None},
        {"case": case, "metric": "synchronous seconds to 1e-3", "ours": seconds[1], "paper": None},
        {"case": case, "metric": "asynchronous utilisation of fast parties", "ours": sum(alone) / 7, "paper": None},
        {"case": case, "metric": "synchronous utilisation of fast parties", "ours": sum(others) / 7, "paper": None},
        {
            "case": case,
            "metric": "synchronous utilisation of the slow party",
            "ours": barrier.metrics[slow],
            "paper": None,
        },
    ]
