"""The wire's limit: steps of a federation without a model against a bare gRPC echo and raw TCP.

Real processes over mutual TLS on one machine; a batch of 256 rows and 10 classes, so 10 kB of gradients down and of
embeddings up for each trajectory and party (20 kB up where a ring of 64 bits masks them). The echo has the same
fan-out, processes and payload. Every round of measurements visits every case, each beside its own echo, so that a noisy
machine is noisy for all; ratios are medians over rounds. Processor time is that of all processes of a case together,
opening the run included. Bytes are those of TCP streams, counted by a proxy between the processes: the difference of a
long run and a short one, so that opening a session does not count.
"""

import math
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from parley.benchmarks.counting_proxy import CountingProxy
from parley.benchmarks.echo import WARM_UP, Hub, Measurement, Transport
from parley.benchmarks.null_federation import (
    CLASSES,
    Protection,
    federation,
    machine_rows,
    null_spec,
    processor_seconds,
)
from parley.benchmarks.rows import row_of
from parley.client import Federation

BATCH, REPEATS = 256, 5
PARTIES = (1, 2, 4, 8, 16)
DIRECTIONS = (0, 4)
STEPS = {1: 1200, 2: 900, 4: 600, 8: 300, 16: 150}
"""Steps of a measurement: a second or two each."""
WARM_UP_STEPS = 10
BYTE_PARTIES, BYTE_STEPS = 4, 100
PROTECTIONS = {
    "plain": Protection(),
    "pairwise": Protection("pairwise"),
    "two_tree": Protection("two_tree"),
    "pairwise + label DP once": Protection("pairwise", "once"),
    "pairwise + label DP per step": Protection("pairwise", "per_step"),
}
LEAST_PARTIES = {"plain": 1, "pairwise": 2, "two_tree": 3}
ECHOES: tuple[Transport, ...] = ("grpc+mtls", "tcp")
BASELINES = {"grpc+mtls": "bare gRPC echo, mTLS", "tcp": "raw TCP echo, no TLS"}
FLOAT, RING = 4, 8


@dataclass(frozen=True)
class Case:
    """One federation to measure."""

    parties: int
    directions: int
    protection: str

    @property
    def name(self) -> str:
        """How rows call it."""
        return f"{self.parties} parties, Q={self.directions}, {self.protection}"

    @property
    def down(self) -> int:
        """Bytes of the tensors that each party gets in a step."""
        return (self.directions + 1) * BATCH * CLASSES * FLOAT

    @property
    def up(self) -> int:
        """Bytes of the tensors that each party's answer to the coordinator (or its part in the trees) has."""
        masked = PROTECTIONS[self.protection].aggregation != "plain"
        return self.down // FLOAT * (RING if masked else FLOAT)


@dataclass
class Timings:
    """A step's seconds on the clock and on the processors, one for each round of measurements."""

    clock: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)


OURS = "ours"
Figures = dict[str, Timings]
"""Ours and each echo."""


def cases(parties: Sequence[int]) -> list[Case]:
    """Every combination that a run accepts."""
    return [
        Case(count, directions, name)
        for count in parties
        for directions in DIRECTIONS
        for name, protection in PROTECTIONS.items()
        if count >= LEAST_PARTIES[protection.aggregation]
    ]


def run(parties: Sequence[int] = PARTIES, repeats: int = REPEATS) -> list[dict[str, Any]]:
    """Measure every case and return rows of case, metric, value, unit, baseline and ratio."""
    before = machine_rows()
    with tempfile.TemporaryDirectory() as scratch:
        figures = _time(Path(scratch) / "speed", parties, repeats)
        sizes = _count(Path(scratch) / "bytes")
    rows = [row for case, found in figures.items() for row in speed_rows(case, found)]
    return [*before, *rows, *sizes, *machine_rows()[1:]]


def _names(count: int) -> list[str]:
    return [f"party-{number}" for number in range(count)]


def _time(scratch: Path, parties: Sequence[int], repeats: int) -> dict[Case, Figures]:
    names = _names(max(parties))
    figures = {case: {name: Timings() for name in (OURS, *ECHOES)} for case in cases(parties)}
    with (
        federation(scratch, names) as local,
        local.connect() as client,
        Hub(names, local.identity("coordinator").parent) as hub,
    ):
        services = [process.pid for process in local.processes.values()]
        for repeat in range(repeats + 1):
            for case, found in figures.items():
                steps = STEPS[case.parties] if repeat else WARM_UP_STEPS
                measured: dict[str, tuple[float, float]] = {}
                for transport in ECHOES:
                    echo = partial(hub.seconds, _echo(hub, transport, case, steps))
                    measured[transport] = _watched(hub.pids, steps + WARM_UP, echo)
                measured[OURS] = _watched(services, steps, partial(_step_seconds, client, case, steps))
                for name, (clock, processor) in measured.items():
                    if repeat:  # the first round warms everything up
                        found[name].clock.append(clock)
                        found[name].processor.append(processor)
    return figures


def _watched(pids: Sequence[int], steps: int, measure: Callable[[], float]) -> tuple[float, float]:
    """A step's seconds, and what all processes together spent on it."""
    before = processor_seconds(pids)
    clock = measure()
    return clock, (processor_seconds(pids) - before) / steps


def _echo(hub: Hub, transport: Transport, case: Case, steps: int) -> Measurement:
    return Measurement(transport, hub.addresses(transport, case.parties), case.down, case.up, steps)


def _step_seconds(client: Federation, case: Case, steps: int) -> float:
    metrics = client.start(_spec(case, steps)).result()
    return metrics["seconds"] / metrics["rounds"]


def _spec(case: Case, steps: int) -> str:
    protection = PROTECTIONS[case.protection]
    return null_spec(_names(case.parties), protection, steps=steps, batch=BATCH, directions=case.directions)


def speed_rows(case: Case, figures: Figures) -> list[dict[str, Any]]:
    """Steps per second of a case, and processor time of a step, against each echo; and each echo's own."""
    ours, rows = figures[OURS], []
    speed, cost = 1 / statistics.median(ours.clock), 1e3 * statistics.median(ours.processor)
    for transport in ECHOES:
        echo, baseline = figures[transport], BASELINES[transport]
        rows.append(row_of(case.name, "steps", speed, "1/s", baseline, _ratio(echo.clock, ours.clock)))
        if transport == "grpc+mtls":
            ratio = _ratio(ours.processor, echo.processor)
            rows.append(row_of(case.name, "processor time of a step", cost, "ms", baseline, ratio))
        if case.protection in ("plain", "pairwise"):  # the other cases have the payload of one of these
            title = f"{case.parties} parties, Q={case.directions}, {baseline}, payload of {case.protection}"
            rows.append(row_of(title, "steps", 1 / statistics.median(echo.clock), "1/s"))
    return rows


def _ratio(ones: Sequence[float], others: Sequence[float]) -> float:
    return statistics.median(one / other if other else math.inf for one, other in zip(ones, others, strict=True))


def _count(scratch: Path) -> list[dict[str, Any]]:
    names, rows = _names(BYTE_PARTIES), []
    with CountingProxy(names, lambda name: local.addresses[name]) as proxy:
        local = federation(scratch, names, addresses=proxy.addresses)
        with local, local.connect() as client:
            client.start(_spec(Case(len(names), 0, "plain"), WARM_UP_STEPS)).result()  # dials the control channels
            for case in cases([len(names)]):
                counted = []
                for steps in (BYTE_STEPS, 2 * BYTE_STEPS):
                    before = proxy.counted
                    client.start(_spec(case, steps)).result()
                    counted.append(proxy.counted - before)
                rows += byte_rows(case, (counted[1] - counted[0]) / BYTE_STEPS)
            rows += _count_echo(names, local.identity("coordinator").parent)
    return rows


def _count_echo(names: list[str], certificates: Path) -> list[dict[str, Any]]:
    case, counted = Case(len(names), 0, "plain"), []
    with Hub(names, certificates) as hub:
        targets = dict(zip(names, hub.addresses("grpc+mtls", len(names)), strict=True))
        with CountingProxy(names, targets.__getitem__) as proxy:
            for steps in (BYTE_STEPS, 2 * BYTE_STEPS):
                before = proxy.counted
                hub.seconds(Measurement("grpc+mtls", tuple(proxy.addresses.values()), case.down, case.up, steps))
                counted.append(proxy.counted - before)
    title = f"{case.parties} parties, Q=0, {BASELINES['grpc+mtls']}"
    return byte_rows(case, (counted[1] - counted[0]) / BYTE_STEPS, title)


def byte_rows(case: Case, wire: float, title: str = "") -> list[dict[str, Any]]:
    """Bytes of a step against the tensors in it, and, where a ring masks them, against the floats that they stand for.

    Up the two trees every party sends twice, once masked values and once masks; the payload counts both.
    """
    up = case.up * (2 if case.protection == "two_tree" else 1)
    payload, floats = case.parties * (case.down + up), 2 * case.parties * case.down
    rows = [row_of(title or case.name, "bytes of a step", wire, "B", "tensors as sent", wire / payload)]
    if case.up != case.down:
        rows.append(
            row_of(title or case.name, "bytes of a step", wire, "B", "the same values as float32", wire / floats)
        )
    return rows


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Speed relative to the bare gRPC echo, against the number of parties."""
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(DIRECTIONS), figsize=(10, 4), layout="constrained", sharey=True)
    found = {
        row["case"]: row["ratio"]
        for row in rows
        if (row["metric"], row["baseline"]) == ("steps", BASELINES["grpc+mtls"])
    }
    for axes, directions in zip(panels, DIRECTIONS, strict=True):
        for name in PROTECTIONS:
            points = [(n, found.get(Case(n, directions, name).name)) for n in PARTIES]
            known = [(n, ratio) for n, ratio in points if ratio is not None]
            axes.plot([n for n, _ in known], [ratio for _, ratio in known], "o-", label=name)
        axes.set(xlabel="parties", title=f"Q = {directions}", xticks=PARTIES, ylim=(0, 1.1))
        axes.axhline(1, color="black", linewidth=1)
    panels[0].set_ylabel("steps per second relative to a bare gRPC echo")
    panels[0].legend()
    figure.savefig(path, dpi=150)
    plt.close(figure)
