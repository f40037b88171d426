"""Training to a target: BAMBI in a federation against the same computation in one process, and where the time goes.

Three parties hold thirds of scikit-learn's digits. Each mode trains until 96 % of held-out digits are read; processes,
mutual TLS and pairwise masks are real, label privacy is off so that all modes see the same labels. The same computation
in one process (`parley.simulation`) sends and masks nothing, and what its codec takes is not counted.

Where a round's time goes: computing at the coordinator and at the parties (timed in one process, where the parties take
turns, so it is the sum over parties), codec (each of the run's messages encoded and decoded, in that process),
waiting for the slowest party (its own metrics: decoding, computing, masking, encoding), and what is left of the round:
the wire, TLS, and the operating system's turns.
"""

import functools
import json
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

import parley.party.bambi.steps as party
from parley.benchmarks.null_federation import machine_rows
from parley.benchmarks.rows import row_of
from parley.client import Federation
from parley.local import LocalFederation
from parley.simulation import train_tables
from parley.simulation.crossing import Crossing
from parley.spec.parsing import parse_spec
from parley.splitting import split_dataset
from parley.tables.loading import Labels, Table, TableRequest, load_labels, load_table

NAMES = ("bank", "shop", "telco")
TARGET, REPEATS = 0.96, 3
IN_ONE_PROCESS, ZEROTH = "one process", "zeroth_order"


def modes() -> dict[str, dict[str, Any]]:
    """BAMBI's three ways to its hyper-gradient, with settings that were chosen by hand for this data."""
    sgd = {"solver": "sgd", "steps": 5, "batch": 128, "warmup_steps": 100, "optimiser": {"step": 0.5}}
    upper = {"steps": 80, "batch": 256, "optimiser": {"step": 0.5}}
    return {
        "implicit": {
            "hypergradient": "implicit",
            "upper": {"steps": 10, "batch": None, "optimiser": {"kind": "adam", "step": 0.01}},
            "lower": {"solver": "newton", "steps": 1, "warmup_steps": 2},
            "implicit": {"rounds": 4, "newton_rounds": 4},
        },
        ZEROTH: {"hypergradient": ZEROTH, "upper": upper, "lower": sgd},
        "zeroth_order_local": {"hypergradient": "zeroth_order_local", "upper": upper, "lower": sgd},
    }


def spec_of(mode: str) -> str:
    """The run of a mode."""
    content = {
        "name": "train",
        "parties": list(NAMES),
        "split": {"lower": 0.8, "upper": "lower", "test": 0.2},
        "train": {
            "algorithm": "bambi",
            "regularisation": 0.003,
            "model": {"kind": "mlp", "hidden": [64], "out": 16},
            **modes()[mode],
        },
        "privacy": {"labels": {"mechanism": "off"}},
        "evaluate_every": 2,
        "checkpoint_every": 0,
    }
    return yaml.safe_dump(content)


@dataclass(frozen=True)
class Reached:
    """What it took to reach the target."""

    seconds: float
    rounds: float
    sent_bytes: float
    releases: float


@dataclass
class Phases:
    """Seconds of a whole run, by what they were spent on."""

    coordinator: float = 0.0
    parties: float = 0.0
    codec: float = 0.0
    slowest_party: float = 0.0
    round_trips: float = 0.0
    rounds: float = 0.0


@dataclass
class Figures:
    """A mode's measurements, one for each round of them."""

    federated: list[Reached] = field(default_factory=list)
    pooled: list[float] = field(default_factory=list)
    phases: list[Phases] = field(default_factory=list)


class TargetMissed(RuntimeError):
    """A run ended below the target accuracy."""


def run(repeats: int = REPEATS) -> list[dict[str, Any]]:
    """Train every mode and return rows of case, metric, value, unit, baseline and ratio."""
    before = machine_rows()
    figures = {mode: Figures() for mode in modes()}
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        split_dataset("digits", NAMES, scratch / "data", standardise=True)
        paths = {name: scratch / "data" / f"{name}.parquet" for name in NAMES}
        tables = [load_table(TableRequest(path)) for path in paths.values()]
        labels = load_labels(scratch / "data" / "labels.parquet")
        with _federation(scratch, paths) as local, local.connect() as client:
            for _ in range(repeats):
                for mode, found in figures.items():
                    _measure(mode, found, local, client, tables, labels)
    return [*before, *speed_rows(figures), *phase_rows(figures), *machine_rows()[1:]]


def _federation(scratch: Path, paths: dict[str, Path]) -> LocalFederation:
    return LocalFederation(
        scratch,
        {name: {"train": {"path": path}} for name, path in paths.items()},
        {"train": {"path": scratch / "data" / "labels.parquet"}},
        party_options={"metrics_listen": "127.0.0.1:0"},
    )


def _measure(
    mode: str, found: Figures, local: LocalFederation, client: Federation, tables: list[Table], labels: Labels
) -> None:
    busy = {name: _busy_seconds(local, name) for name in NAMES}
    reached, total = _federated(client, mode)
    slowest = max(_busy_seconds(local, name) - before for name, before in busy.items())
    phases = Phases(slowest_party=slowest, rounds=total["rounds"])
    spec = parse_spec(spec_of(mode))
    with _timed(phases):
        pooled = train_tables(spec, tables, labels)
    # It makes the same rounds with the same numbers, so it reaches the target in the same one.
    found.pooled.append((pooled.seconds - phases.codec) * reached.rounds / total["rounds"])
    phases.coordinator = max(0.0, pooled.seconds - phases.parties - phases.codec)
    phases.round_trips = max(0.0, total["seconds"] - phases.coordinator)
    found.federated.append(reached)
    found.phases.append(phases)


def _federated(client: Federation, mode: str) -> tuple[Reached, dict[str, float]]:
    reached, one = None, client.start(spec_of(mode))
    for event in one.watch():
        metrics = {metric.name: metric.value for metric in event.metrics}
        if reached is None and metrics.get("test accuracy", 0.0) >= TARGET:
            reached = Reached(metrics["seconds"], metrics["rounds"], metrics["bytes"], metrics["label releases"])
    total = one.result()
    if reached is None:
        raise TargetMissed(f"{mode} ended at {total['test accuracy']:.3f}, below {TARGET}: give it more upper steps")
    return reached, total


def _busy_seconds(local: LocalFederation, name: str) -> float:
    """What a party's own metrics say of the time from an instruction to its answer, so far."""
    lines = (json.loads(line) for line in (local.directory / f"{name}.log").read_text().splitlines() if line[:1] == "{")
    port = next(line["message"].split()[-1] for line in lines if line["message"].startswith("metrics at port"))
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        families = text_string_to_metric_families(answer.read().decode())
    samples = [sample for family in families for sample in family.samples]
    return sum(sample.value for sample in samples if sample.name == "parley_step_seconds_sum")


@contextmanager
def _timed(phases: Phases) -> Iterator[None]:
    """While it lasts, note what a party's functions take, and what encoding and decoding takes."""
    timed: list[tuple[Any, str, str]] = [(party, "apply", "parties"), (party, "contribute", "parties")]
    timed += [(Crossing, "instructions", "codec"), (Crossing, "answer", "codec")]
    before = [getattr(holder, name) for holder, name, _ in timed]
    for (holder, name, phase), function in zip(timed, before, strict=True):
        setattr(holder, name, _timing(phases, phase, function))
    try:
        yield
    finally:
        for (holder, name, _), function in zip(timed, before, strict=True):
            setattr(holder, name, function)


def _timing(phases: Phases, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def timed(*arguments: Any) -> Any:
        with _clock(phases, phase):
            return function(*arguments)

    return timed


@contextmanager
def _clock(phases: Phases, phase: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    setattr(phases, phase, getattr(phases, phase) + time.perf_counter() - started)


def speed_rows(figures: dict[str, Figures]) -> list[dict[str, Any]]:
    """Time, rounds, bytes and label releases to the target."""
    rows, zeroth = [], figures[ZEROTH].federated
    for mode, found in figures.items():
        seconds = [one.seconds for one in found.federated]
        case = f"{mode}, to {TARGET:.0%}"
        rows.append(_row(case, "seconds", seconds, "s", IN_ONE_PROCESS, found.pooled))
        rows.append(_row(f"{case}, {IN_ONE_PROCESS}", "seconds", found.pooled, "s"))
        quantities: dict[str, Callable[[Reached], float]] = {
            "rounds": lambda one: one.rounds,
            "bytes": lambda one: one.sent_bytes,
            "label releases": lambda one: one.releases,
        }
        for metric, of in quantities.items():
            ours, theirs = [of(one) for one in found.federated], [of(one) for one in zeroth]
            rows.append(_row(case, metric, ours, "B" if metric == "bytes" else metric, ZEROTH, theirs))
    return rows


def phase_rows(figures: dict[str, Figures]) -> list[dict[str, Any]]:
    """Milliseconds of a round by what they were spent on, against the round's whole time."""
    parts: dict[str, Callable[[Phases], float]] = {
        "computing at the coordinator": lambda one: one.coordinator,
        "computing at all parties": lambda one: one.parties,
        "codec, all messages": lambda one: one.codec,
        "waiting for the slowest party": lambda one: one.slowest_party,
        "wire and turns of the system": lambda one: max(0.0, one.round_trips - one.slowest_party),
    }
    rows = []
    for mode, found in figures.items():
        whole = [1e3 * (one.coordinator + one.round_trips) / one.rounds for one in found.phases]
        for part, of in parts.items():
            spent = [1e3 * of(one) / one.rounds for one in found.phases]
            rows.append(_row(mode, part, spent, "ms of a round", "a whole round", whole))
    return rows


def _row(
    case: str,
    metric: str,
    values: list[float],
    unit: str,
    baseline: str | None = None,
    others: list[float] | None = None,
) -> dict[str, Any]:
    pairs = zip(values, others or (), strict=False)
    ratios = [one / other for one, other in pairs if other]
    return row_of(
        case, metric, statistics.median(values), unit, baseline, statistics.median(ratios) if ratios else None
    )


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Seconds to the target, and where a round's time goes."""
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    seconds = [row for row in rows if row["metric"] == "seconds"]
    bars = left.barh([row["case"] for row in seconds], [row["value"] for row in seconds], color="#4472a8")
    left.bar_label(bars, fmt="%.2g", padding=3)
    left.set(xlabel="seconds to the target")
    left.invert_yaxis()
    parts = [row for row in rows if row["unit"] == "ms of a round"]
    for part in dict.fromkeys(row["metric"] for row in parts):
        chosen = [row for row in parts if row["metric"] == part]
        right.plot([row["case"] for row in chosen], [row["value"] for row in chosen], "o", label=part)
    right.set(ylabel="ms of a round")
    right.legend(fontsize=8)
    figure.savefig(path, dpi=150)
    plt.close(figure)
