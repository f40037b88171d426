"""Load: many parties in one run, many runs at once, and memory over many steps.

Real processes over mutual TLS on one machine. Memory is the resident set of each process, sampled while a long run goes
on, with its label noise, ledger, checkpoints and evaluations; its slope over the steps is fitted to the second half of
the run, when every cache is warm. A run that fails ends the benchmark.
"""

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from sklearn.datasets import load_digits

from parley.benchmarks.rows import row_of
from parley.client import Federation
from parley.local import LocalFederation
from parley.splitting import split_dataset

PARTIES, RUNS, STEPS = 32, 8, 10_000
ROWS, SAMPLE_SECONDS = 300, 0.5


def run(parties: int = PARTIES, runs: int = RUNS, steps: int = STEPS) -> list[dict[str, Any]]:
    """Measure every case and return rows of case, metric, value, unit, baseline and ratio."""
    with tempfile.TemporaryDirectory() as scratch:
        rows = _many_parties(Path(scratch) / "many", parties)
        return rows + _many_runs_and_memory(Path(scratch) / "few", runs, steps)


def _many_parties(scratch: Path, parties: int) -> list[dict[str, Any]]:
    names = [f"party-{number}" for number in range(parties)]
    with _federation(scratch, names) as federation, federation.connect() as client:
        metrics = client.start(_spec(names, upper=0, lower=200)).result()
        memory = statistics.median(_resident(federation).values())
    case = f"{parties} parties"
    return [
        row_of(case, "round", 1e3 * metrics["seconds"] / metrics["rounds"], "ms"),
        row_of(case, "rounds", metrics["rounds"], "rounds"),
        row_of(case, "memory of a process", memory, "MB"),
    ]


def _many_runs_and_memory(scratch: Path, runs: int, steps: int) -> list[dict[str, Any]]:
    names = ["bank", "shop", "telco"]
    with _federation(scratch, names) as federation, federation.connect() as client:
        alone = _seconds(client, _spec(names, upper=20, lower=1), 1)
        together = _seconds(client, _spec(names, upper=20, lower=1), runs)
        samples = _sampled(federation, client, _spec(names, upper=steps, lower=0))
    rows = [row_of(f"{runs} runs at once", "seconds for all", together, "s", "one run alone", together / alone)]
    for name, series in samples.items():
        warm = np.array([sample for sample in series if sample[0] >= steps / 2] or series)
        slope = np.polyfit(warm[:, 0], warm[:, 1], 1)[0] * 1000 * 1024 if len(warm) > 1 else 0.0
        case = f"memory of {name} over {steps} steps"
        rows.append(row_of(case, "slope", slope, "kB per 1000 steps"))
        rows.append(row_of(case, "end", warm[-1, 1], "MB", "half-way", warm[-1, 1] / warm[0, 1]))
    return rows


def _federation(scratch: Path, names: list[str]) -> LocalFederation:
    scratch.mkdir(parents=True)
    table = scratch / "digits.npz"  # without its shape: columns go to parties two by two, not in strips of an image
    pixels, labels = load_digits(return_X_y=True)
    columns = [f"pixel-{column}" for column in range(pixels.shape[1])]
    np.savez(table, x=pixels / 16, label=labels, ids=[f"{row:05d}" for row in range(len(labels))], columns=columns)
    split_dataset(table, names, scratch / "data", limit=ROWS, label_column="label", format="parquet")
    return LocalFederation(
        scratch,
        {name: {"train": {"path": scratch / "data" / f"{name}.parquet"}} for name in names},
        {"train": {"path": scratch / "data" / "labels.parquet", "budget": {"epsilon": 1e9}}},
        ready_seconds=60.0 + 30.0 * len(names),  # they share a few cores to start on
    )


def _spec(names: list[str], *, upper: int, lower: int) -> str:
    content = {
        "name": "load",
        "parties": names,
        "train": {
            "algorithm": "bambi",
            "hypergradient": "zeroth_order",
            "model": {"kind": "linear", "out": 4},
            "upper": {"steps": upper, "batch": 32, "optimiser": {"step": 1e-4}},
            "lower": {"solver": "sgd", "steps": 1, "batch": 32, "warmup_steps": lower, "optimiser": {"step": 1e-3}},
            "zeroth_order": {"directions": 1},
        },
        "privacy": {"labels": {"mechanism": "per_step", "epsilon": 1}},
        "evaluate_every": 1000,
        "checkpoint_every": 100,
        "round_seconds": 300,
    }
    return yaml.safe_dump(content)


def _seconds(client: Federation, spec: str, runs: int) -> float:
    started = time.perf_counter()
    for one in [client.start(spec) for _ in range(runs)]:
        one.result()
    return time.perf_counter() - started


def _sampled(federation: LocalFederation, client: Federation, spec: str) -> dict[str, list[tuple[int, float]]]:
    """(step, MB) of every process, again and again until the run has ended."""
    samples: dict[str, list[tuple[int, float]]] = {name: [] for name in federation.processes}
    long_run = client.start(spec)
    while long_run.refresh().state not in ("COMPLETED", "FAILED", "CANCELLED", "BUDGET_EXHAUSTED"):
        for name, megabytes in _resident(federation).items():
            samples[name].append((long_run.step, megabytes))
        time.sleep(SAMPLE_SECONDS)
    long_run.result()
    return samples


def _resident(federation: LocalFederation) -> dict[str, float]:
    """Resident memory of every process in MB."""
    sizes = {}
    for name, process in federation.processes.items():
        fields = dict(line.split(":", 1) for line in Path(f"/proc/{process.pid}/status").read_text().splitlines())
        sizes[name] = int(fields["VmRSS"].split()[0]) / 1024
    return sizes


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Bars of the memory slopes."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 3), layout="constrained")
    slopes = [row for row in rows if row["metric"] == "slope"]
    bars = axes.barh([row["case"] for row in slopes], [row["value"] for row in slopes], color="#4472a8")
    axes.bar_label(bars, fmt="%.2f", padding=3)
    axes.axvline(0, color="black", linewidth=1)
    axes.set(xlabel="kB per 1000 steps", title="Resident memory over a long run")
    axes.invert_yaxis()
    figure.savefig(path, dpi=150)
    plt.close(figure)
