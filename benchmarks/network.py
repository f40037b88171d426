"""Over real links: the time of a run to a target accuracy, by mode, against what the link alone takes.

Three parties hold thirds of scikit-learn's digits; four fifths of the rows train. Real processes, mutual TLS, pairwise
masks; between the coordinator and the parties a proxy makes round trips of 1, 20 and 100 ms, and all parties share a
line of 10, 100 or 1000 Mbit/s. A run is evaluated once, at its end, and must find 96 % of the other rows. The bound is
rounds × round trip + bytes / speed, with the rounds and the bytes that the run has counted in both directions. Where
both are busy at once, a run that is mostly bytes may take a little less. Nothing is computed in it, so the same run
through a proxy that delays nothing stands beside. Label privacy is off, so that all modes see the same
labels.

`implicit, as it was` is the demonstration of release 0.1: all rows in each of some 340 rounds, in 64 bits up and 32
down. It is measured over one link, to compare with. That link is measured several times, the others once.
"""

import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from parley.benchmarks.null_federation import machine_rows
from parley.benchmarks.rows import row_of
from parley.benchmarks.shaping_proxy import Link, ShapingProxy
from parley.client import Federation
from parley.local import LocalFederation
from parley.splitting import split_dataset

NAMES = ("bank", "shop", "telco")
TARGET, REPEATS = 0.96, 3
METRIC = "time to target"
NO_LINK = Link(0, 1e6)
USUAL = Link(20, 100)
LINKS = tuple(Link(rtt, speed) for rtt in (1, 20, 100) for speed in (10, 100, 1000))
BEFORE = "implicit, as it was"
BOUND = "rounds × round trip + bytes / speed"
WITH_WORK = "the bound and the same run without a link"
_ADAM = {"kind": "adam", "step": 0.01, "decay_from": 0.3}


@dataclass(frozen=True)
class Mode:
    """A way to train."""

    train: Mapping[str, Any]
    ring_bits: int | None = None
    """Of the masked sums; None leaves it to the run."""


MODES = {
    "local": Mode({"hypergradient": "local"}),
    "implicit": Mode(
        {
            "regularisation": 0.01,
            "upper": {"steps": 22, "batch": None, "optimiser": _ADAM | {"step": 0.03}},
            "lower": {"batch": 700, "warmup_steps": 2},
            "implicit": {"rounds": 1, "newton_rounds": 1},
        },
    ),
    "joint": Mode(
        {
            "problem": "joint",
            "regularisation": 0.01,
            "upper": {"steps": 110, "batch": 256, "optimiser": _ADAM},
        },
    ),
    BEFORE: Mode(
        {
            "regularisation": 0.003,
            "message": "full",
            "upper": {"steps": 30, "batch": None, "optimiser": _ADAM},
            "lower": {"batch": None, "warmup_steps": 2},
            "implicit": {"rounds": 4, "newton_rounds": 4},
        },
        64,
    ),
}


class TargetMissed(RuntimeError):
    """A run ended below the target accuracy."""


@dataclass(frozen=True)
class Reached:
    """What it took to reach the target."""

    seconds: float
    """By the run's own clock, from its first round on."""
    since_request: float
    """By the client's clock: opening the run at every party included."""
    rounds: float
    sent_bytes: float


def spec_of(mode: Mode) -> str:
    """The run of a mode."""
    ring = {} if mode.ring_bits is None else {"ring_bits": mode.ring_bits}
    return yaml.safe_dump(
        {
            "name": "network",
            "parties": list(NAMES),
            "split": {"lower": 0.8, "upper": "lower", "test": 0.2},
            "train": {"algorithm": "bambi", "model": {"kind": "mlp", "hidden": [64], "out": 16}, **mode.train},
            "privacy": {"labels": {"mechanism": "off"}, "aggregation": {"kind": "pairwise", **ring}},
            "evaluate_every": 0,
            "checkpoint_every": 0,
        }
    )


def run(links: Sequence[Link] = LINKS, repeats: int = REPEATS) -> list[dict[str, Any]]:
    """Measure every mode over every link; rows of case, metric, value, unit, baseline and ratio."""
    before = machine_rows()
    found: dict[tuple[str, Link], list[Reached]] = {}
    with tempfile.TemporaryDirectory() as folder, ShapingProxy(NAMES, lambda name: local.addresses[name], USUAL) as way:
        local = _federation(Path(folder), way)
        with local, local.connect() as client:
            for repeat in range(repeats + 1):
                for link in _visited(links, repeat):
                    way.link = link
                    for name, mode in MODES.items():
                        if name == BEFORE and link not in (NO_LINK, USUAL):
                            continue
                        reached = reach(client, name, mode)
                        if repeat:  # the first runs warm everything up
                            found.setdefault((name, link), []).append(reached)
    return [*before, *rows_of(found), *machine_rows()[1:]]


def _visited(links: Sequence[Link], repeat: int) -> tuple[Link, ...]:
    """The links of a round of measurements: all in the first, the usual one in all; none while things warm up."""
    again = [link for link in links if repeat == 1 or (repeat and link == USUAL)]
    return (NO_LINK, *again)


def _federation(scratch: Path, way: ShapingProxy) -> LocalFederation:
    data = scratch / "data"
    split_dataset("digits", NAMES, data)
    return LocalFederation(
        scratch,
        {name: {"train": {"path": data / f"{name}.parquet"}} for name in NAMES},
        {"train": {"path": data / "labels.parquet"}},
        coordinator_options={"parties": {name: {"address": address} for name, address in way.addresses.items()}},
    )


def reach(client: Federation, name: str, mode: Mode) -> Reached:
    """A run that ends above the target."""
    started = time.monotonic()
    metrics = client.start(spec_of(mode)).result()
    since_request = time.monotonic() - started
    if metrics["test accuracy"] < TARGET:
        raise TargetMissed(f"{name} ended at {metrics['test accuracy']:.3f}, below {TARGET}: give it more upper steps")
    return Reached(metrics["seconds"], since_request, metrics["rounds"], metrics["bytes"])


def case_of(link: Link, name: str) -> str:
    """How rows call a mode over a link."""
    return f"{'no link' if link == NO_LINK else link}, {name}"


def rows_of(found: Mapping[tuple[str, Link], Sequence[Reached]]) -> list[dict[str, Any]]:
    """The time of each mode over each link against the bound, and over the usual link against what was before."""
    rows: list[dict[str, Any]] = []
    for (name, link), measured in found.items():
        case = case_of(link, name)
        seconds = _median(measured)
        rows += [
            row_of(case, "time since the request", statistics.median(one.since_request for one in measured), "s"),
            row_of(case, "rounds", measured[0].rounds, "rounds"),
            row_of(case, "bytes", measured[0].sent_bytes, "B"),
        ]
        if link == NO_LINK:
            rows.append(row_of(case, METRIC, seconds, "s"))
            continue
        bound = link.bound(measured[0].rounds, measured[0].sent_bytes)
        rows.append(row_of(case, METRIC, seconds, "s", BOUND, seconds / bound))
        if (name, NO_LINK) in found:
            rows.append(
                row_of(
                    case,
                    f"{METRIC}, with work",
                    seconds,
                    "s",
                    WITH_WORK,
                    seconds / (bound + _median(found[name, NO_LINK])),
                )
            )
        if name != BEFORE and (BEFORE, link) in found:
            ratio = seconds / _median(found[BEFORE, link])
            rows.append(row_of(case, f"{METRIC}, against before", seconds, "s", BEFORE, ratio))
    return rows


def _median(measured: Sequence[Reached]) -> float:
    return statistics.median(one.seconds for one in measured)


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """The time to the target over each link, and the bound of each mode as a line."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 4), layout="constrained")
    shown = {row["case"]: row for row in rows if row["baseline"] == BOUND}
    for name in MODES:
        points = [(str(link), shown[case_of(link, name)]) for link in LINKS if case_of(link, name) in shown]
        (line,) = axes.plot([link for link, _ in points], [row["value"] for _, row in points], "o", label=name)
        bounds = [row["value"] / row["ratio"] for _, row in points]
        axes.plot([link for link, _ in points], bounds, "-", color=line.get_color(), linewidth=1)
    axes.set(ylabel="seconds to target (line: the bound)", yscale="log")
    axes.tick_params(axis="x", rotation=30)
    axes.legend()
    figure.savefig(path, dpi=150)
    plt.close(figure)
