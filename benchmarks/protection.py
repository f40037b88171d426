"""What protection costs: the time of a step with masks, label noise and ledger against the same step in the clear.

Four parties as real processes over mutual TLS, a batch of 256 rows, 10 classes, no model to train: what is left is
the wire and the protection. Every round of measurements visits every case, so that a noisy machine is noisy for all;
ratios are medians over rounds.
"""

import os
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from parley.benchmarks.rows import row_of
from parley.local import LocalFederation
from parley.privacy.accounting import RecordCounts
from parley.privacy.label_mechanisms import choose_mechanism
from parley.privacy.ledger import Budget, Charge, open_ledger
from parley.privacy.mask_stream import MaskStream, PairStream
from parley.privacy.receipts import ReleaseDigest
from parley.privacy.ring import Ring
from parley.privacy.transcript import Transcript, digest_of
from parley.protocols.tensor.codec import Blobs, encode_tensor
from parley.splitting import split_dataset

PARTIES = ("bank", "shop", "telco", "grocer")
STEPS, REPEATS, BATCH, CLASSES = 600, 5, 256, 10
LEDGER_STEPS = 2560
BINDING_STEPS = 2000

CASES = {
    "plain": ("plain", "off"),
    "pairwise": ("pairwise", "off"),
    "two_tree": ("two_tree", "off"),
    "label DP once": ("plain", "once"),
    "label DP per step": ("plain", "per_step"),
    "pairwise + label DP once": ("pairwise", "once"),
}


def run() -> list[dict[str, Any]]:
    """Time every case and return rows of case, metric, value, unit, baseline and ratio."""
    with tempfile.TemporaryDirectory() as scratch:
        seconds = _step_times(Path(scratch))
        ledger = _ledger_seconds(Path(scratch))
    base = seconds["plain"]
    rows = [
        row_of(
            case, "step time", 1e3 * statistics.median(times), "ms", "plain", statistics.median(_ratios(times, base))
        )
        for case, times in seconds.items()
    ]
    per_step = statistics.median(seconds["label DP per step"])
    rows.append(row_of("ledger", "share of a step", 1e3 * ledger, "ms", "plain", ledger / (per_step - ledger) + 1))
    binding, masked = _binding_seconds(), statistics.median(seconds["pairwise"])
    rows.append(row_of("binding", "share of a step", 1e3 * binding, "ms", "pairwise", binding / (masked - binding) + 1))
    return rows


def _ratios(times: list[float], base: list[float]) -> list[float]:
    return [one / other for one, other in zip(times, base, strict=True)]


def _step_times(scratch: Path) -> dict[str, list[float]]:
    split_dataset("digits", PARTIES, scratch / "data")
    federation = LocalFederation(
        scratch,
        {name: {"train": {"path": scratch / "data" / f"{name}.parquet"}} for name in PARTIES},
        {"train": {"path": scratch / "data" / "labels.parquet", "budget": {"epsilon": 1e9}}},
        policy={"aggregations": ["pairwise", "two_tree", "plain"]},
    )
    seconds: dict[str, list[float]] = {case: [] for case in CASES}
    with federation, federation.connect() as client:
        for repeat in range(REPEATS + 1):
            for case, (aggregation, mechanism) in CASES.items():
                metrics = client.start(_spec(aggregation, mechanism)).result()
                if repeat:  # the first round warms everything up
                    seconds[case].append(metrics["seconds"] / metrics["rounds"])
    return seconds


def _spec(aggregation: str, mechanism: str) -> str:
    content = {
        "name": "step",
        "parties": list(PARTIES),
        "split": {"lower": 0.9, "upper": 0.1, "test": 0},
        "train": {
            "algorithm": "bambi",
            "hypergradient": "zeroth_order",
            "model": {"kind": "identity"},
            "upper": {"steps": 0},
            "lower": {"solver": "sgd", "batch": BATCH, "warmup_steps": STEPS, "optimiser": {"step": 1e-3}},
        },
        "privacy": {"aggregation": {"kind": aggregation}, "labels": {"mechanism": mechanism, "epsilon": 1}},
        "checkpoint_every": 0,
    }
    return yaml.safe_dump(content)


def _ledger_seconds(scratch: Path) -> float:
    """The ledger's own time for each step: blocks reserved on disk, and a look-up for each release."""
    ledger, records = open_ledger(f"sqlite:///{scratch / 'ledger.db'}"), 1797
    ledger.open_run("step", records, Budget(float("inf")))
    event = choose_mechanism("per_step", CLASSES, 1.0).event
    batches = [np.random.default_rng(k).choice(records, BATCH, replace=False) for k in range(256)]
    started = time.perf_counter()
    for first in range(0, LEDGER_STEPS, len(batches)):
        counts = RecordCounts.of_batches(records, batches)
        ledger.reserve("step", first, len(batches), Charge(event, PARTIES, counts))
        for release in range(first, first + len(batches)):
            if not ledger.covers("step", release):
                raise RuntimeError(f"release {release} is not covered")
    return (time.perf_counter() - started) / LEDGER_STEPS


def _binding_seconds() -> float:
    """Processor time of a party in each step for masks that cancel only among those told the same, and for receipts.

    The transcript of the instruction, where each pair's mask starts (beyond what a mask that only its round starts
    takes), and the digest of what was released; by itself, so with everything in the processor's cache. The quickest of
    several measurements, which other processes have disturbed least.
    """
    blobs: Blobs = deque()
    instruction = encode_tensor(np.zeros((BATCH, CLASSES), np.float32), blobs)
    answer = encode_tensor(np.zeros(BATCH * CLASSES, np.uint64), blobs)
    transcript, released = Transcript(bytes(32), 0, len(PARTIES)), ReleaseDigest()
    pairs = {peer: PairStream(os.urandom(32)) for peer in range(1, len(PARTIES))}
    unbound = [MaskStream(os.urandom(32)) for _ in pairs]
    nothing = np.zeros(0, Ring.WIDE.dtype)

    def bound_step(step: int) -> None:
        told = transcript.read(step, digest_of(instruction.SerializeToString(deterministic=True), blobs), None)
        for peer, pair in pairs.items():
            pair.add(nothing, step, told.heads[peer], Ring.WIDE)
        transcript.keep()
        released.add(step, digest_of(answer.SerializeToString(deterministic=True), blobs))

    def unbound_step(step: int) -> None:
        for stream in unbound:
            stream.add(nothing, step, Ring.WIDE)

    return _quickest(bound_step) - _quickest(unbound_step)


def _quickest(step: Callable[[int], None]) -> float:
    """Processor seconds of one step."""
    found = []
    for _ in range(REPEATS):
        started = time.thread_time()
        for number in range(BINDING_STEPS):
            step(number)
        found.append((time.thread_time() - started) / BINDING_STEPS)
    return min(found)


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Bars of step time relative to plain."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 3.2), layout="constrained")
    names = [row["case"] for row in rows]
    bars = axes.barh(names, [row["ratio"] for row in rows], color="#4472a8")
    axes.bar_label(bars, fmt="%.2f", padding=3)
    axes.axvline(1, color="black", linewidth=1)
    axes.set(xlabel="step time relative to plain (median)", title=f"4 parties, batch {BATCH}, {CLASSES} classes")
    axes.invert_yaxis()
    figure.savefig(path, dpi=150)
    plt.close(figure)
