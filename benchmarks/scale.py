"""How cost grows: a step against rows, features, parties, parameters and trajectories; memory against steps.

Real processes over mutual TLS. Each axis is varied alone; every round of measurements visits every point, and medians
are told. An exponent is the slope of a line through the logarithms, by least squares: over all points, which the fixed
cost of a round makes small, and over the two largest, which shows where growth goes. Processor time is that of
coordinator and parties together and does not feel other programs; time on the clock does.

Memory is the peak of a process during a run, taken anew for each run, after a run that fills every cache.
"""

import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from parley.benchmarks.null_federation import Protection, federation, machine_rows, null_spec, processor_seconds
from parley.benchmarks.rows import row_of
from parley.client import Federation
from parley.local import LocalFederation

NAMES = tuple(f"party-{number}" for number in range(8))
FEW = NAMES[:2]
REPEATS, BATCH = 3, 256
TALL, WIDE = "tall", "wide-{}"
ROWS, FEATURES = (1024, 4096, 16384, 65536), (64, 256, 1024, 4096)
PARTIES, TRAJECTORIES, WIDTHS = (1, 2, 4, 8), (2, 8, 32, 128), (64, 256, 1024, 4096)
INPUTS, OUTPUTS = 256, 8
MEMORY_STEPS = (250, 1000, 4000)
CLOCK, PROCESSOR = "step", "processor time of a step"

Spec = Callable[[int], str]


@dataclass(frozen=True)
class Axis:
    """One quantity to vary."""

    name: str
    values: tuple[int, ...]
    spec: Spec
    """The run at a value."""
    size: Callable[[int], int] = lambda value: value
    """What the axis counts at a value."""


@dataclass
class Cost:
    """Milliseconds of a step at one point, one for each round of measurements."""

    clock: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)


def axes() -> list[Axis]:
    """Every axis; what is not varied is small."""
    plain, pairwise = Protection(), Protection("pairwise")
    few = partial(null_spec, FEW, pairwise)
    return [
        Axis("rows of a batch", ROWS, lambda rows: few(steps=30, batch=rows, table=TALL)),
        Axis("features of a party", FEATURES, lambda wide: few(steps=60, batch=BATCH, table=WIDE.format(wide))),
        Axis("parties", PARTIES, lambda count: null_spec(NAMES[:count], plain, steps=100, batch=BATCH)),
        Axis(
            "parties, pairwise", PARTIES[1:], lambda count: null_spec(NAMES[:count], pairwise, steps=100, batch=BATCH)
        ),
        Axis("trajectories", TRAJECTORIES, lambda stack: few(steps=40, batch=BATCH, directions=stack - 1)),
        Axis("upper parameters of a party", WIDTHS, _network, lambda width: (INPUTS + 1) * width + width * OUTPUTS),
    ]


def _network(width: int) -> str:
    """Upper iterations by zeroth order, three rounds each, on one hidden layer of `width`."""
    train = {
        "model": {"kind": "mlp", "hidden": [width], "out": OUTPUTS},
        "upper": {"steps": 15, "batch": BATCH, "optimiser": {"step": 1e-4}},
        "lower": {"solver": "sgd", "steps": 1, "batch": BATCH, "optimiser": {"step": 1e-3}},
        "zeroth_order": {"directions": 1, "kind": "gaussian"},
    }
    return null_spec(FEW, Protection("pairwise"), steps=1, batch=BATCH, table=WIDE.format(INPUTS), train=train)


def run(repeats: int = REPEATS, memory_steps: Sequence[int] = MEMORY_STEPS) -> list[dict[str, Any]]:
    """Measure every axis and return rows of case, metric, value, unit, baseline and ratio."""
    before, tables = machine_rows(), {TALL: (ROWS[-1] * 5 // 4 + 1, 4)}
    tables |= {WIDE.format(width): (2 * BATCH, width) for width in FEATURES}
    with (
        tempfile.TemporaryDirectory() as scratch,
        federation(Path(scratch), NAMES, tables=tables) as local,
        local.connect() as client,
    ):
        # First, while no process holds memory of larger runs that it gives back when it likes.
        peaks = _peaks(local, client, memory_steps)
        costs = _costs(local, client, repeats)
    rows = [row for axis in axes() for row in axis_rows(axis, costs[axis.name])]
    return [*before, *rows, *memory_rows(peaks), *machine_rows()[1:]]


def _costs(local: LocalFederation, client: Federation, repeats: int) -> dict[str, dict[int, Cost]]:
    costs = {axis.name: {value: Cost() for value in axis.values} for axis in axes()}
    pids = [process.pid for process in local.processes.values()]
    for repeat in range(repeats + 1):
        for axis in axes():
            for value, cost in costs[axis.name].items():
                before = processor_seconds(pids)
                metrics = client.start(axis.spec(value)).result()
                spent = processor_seconds(pids) - before
                if repeat:  # the first round loads tables and warms everything up
                    cost.clock.append(1e3 * metrics["seconds"] / metrics["rounds"])
                    cost.processor.append(1e3 * spent / metrics["rounds"])
    return costs


def axis_rows(axis: Axis, costs: dict[int, Cost]) -> list[dict[str, Any]]:
    """The cost at each point, and the exponents."""
    rows = []
    for metric, kind in ((CLOCK, "clock"), (PROCESSOR, "processor")):
        medians = {axis.size(value): statistics.median(getattr(cost, kind)) for value, cost in costs.items()}
        first = next(iter(medians))
        for size, value in medians.items():
            ratio = value / medians[first] if medians[first] else None
            rows.append(row_of(f"{size} {axis.name}", metric, value, "ms", f"{first} {axis.name}", ratio))
        rows.append(row_of(axis.name, f"exponent of {metric}", exponent(medians), "1"))
        largest = dict(list(medians.items())[-2:])
        rows.append(row_of(axis.name, f"exponent of {metric} at the large end", exponent(largest), "1"))
    return rows


def exponent(costs: dict[int, float]) -> float:
    """b of cost ≈ a·size^b, by least squares on the logarithms."""
    return float(np.polyfit(np.log(list(costs)), np.log([max(cost, 1e-9) for cost in costs.values()]), 1)[0])


def _peaks(local: LocalFederation, client: Federation, steps: Sequence[int]) -> dict[str, dict[int, float]]:
    """Peak memory in MB of coordinator and parties during runs of so many steps."""
    watched = {name: local.processes[name].pid for name in ("coordinator", *FEW)}
    peaks: dict[str, dict[int, float]] = {name: {} for name in watched}
    for count in (steps[0], *steps):
        for pid in watched.values():
            Path(f"/proc/{pid}/clear_refs").write_text("5")  # the kernel's word for a new peak
        client.start(null_spec(FEW, Protection("pairwise", "per_step"), steps=count, batch=BATCH)).result()
        for name, pid in watched.items():
            peaks[name][count] = _peak_megabytes(pid)  # the first run's, which fills caches, is overwritten
    return peaks


def _peak_megabytes(pid: int) -> float:
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["VmHWM"].split()[0]) / 1024


def memory_rows(peaks: dict[str, dict[int, float]]) -> list[dict[str, Any]]:
    """Peak memory of each process for each number of steps, and its growth."""
    rows = []
    for name, found in peaks.items():
        first = next(iter(found))
        for steps, megabytes in found.items():
            case = f"{name}, {steps} steps"
            rows.append(row_of(case, "peak memory", megabytes, "MB", f"{first} steps", megabytes / found[first]))
        slope = np.polyfit(list(found), list(found.values()), 1)[0]
        rows.append(row_of(name, "memory over steps", 1e4 * float(slope), "MB per 10000 steps"))
    return rows


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Time of a step against each axis, both logarithmic, with the exponents."""
    import matplotlib.pyplot as plt
    from matplotlib.ticker import NullLocator

    found = axes()
    figure, grid = plt.subplots(2, 3, figsize=(12, 7), layout="constrained")
    for panel, axis in zip(grid.flat, found, strict=True):
        for metric, marker in ((CLOCK, "o-"), (PROCESSOR, "s--")):
            known = {row["case"]: row["value"] for row in rows if row["metric"] == metric}
            sizes = [axis.size(value) for value in axis.values]
            values = [known.get(f"{size} {axis.name}", float("nan")) for size in sizes]
            slopes = [
                row["value"]
                for row in rows
                if (row["case"], row["metric"]) == (axis.name, f"exponent of {metric} at the large end")
            ]
            label = f"{metric}, exponent {slopes[0]:.2f}" if slopes else metric
            panel.plot(sizes, values, marker, label=label)
        panel.set(xscale="log", yscale="log", xlabel=axis.name, ylabel="ms")
        panel.set_xticks([axis.size(value) for value in axis.values], minor=False)
        panel.xaxis.set_minor_locator(NullLocator())
        panel.xaxis.set_major_formatter("{x:,.0f}")
        panel.yaxis.set_major_formatter("{x:g}")
        panel.yaxis.set_minor_formatter("{x:g}")
        panel.legend(fontsize=8)
    figure.savefig(path, dpi=150)
    plt.close(figure)
