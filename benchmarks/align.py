"""How long it takes to find the rows that all organisations have: three parties and the coordinator's labels.

Real processes over mutual TLS on one machine, so all four organisations share its cores. Each holds so many ids,
nine tenths of them common to all. What dominates is powers of points, ten for each id (see `privacy.psi`), so time is
linear in ids: the rate is the figure to plan with. The baseline is the same number of bare X25519 operations, spread
over the same cores; where the extra `align` is installed both take eight at once, and other work is more than half.
CPU time is what all four organisations used together, which other load on the machine hardly moves.
"""

import os
import random
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from parley.benchmarks.rows import row_of
from parley.local import LocalFederation
from parley.privacy.psi_curve import fresh_scalar, hashed, power

PARTIES = ("bank", "shop", "telco")
SIZES = tuple(int(size) for size in os.environ.get("PARLEY_ALIGN_IDS", "10000,100000").split(","))
"""Ids of each organisation; the environment may name others, such as 1000000."""
POWERS_PER_ID = 1 + 3 * len(PARTIES)
"""The leader's blinding; and for each party its own ids, the leader's, and taking the blinding off."""
SAMPLE = 4000
REAPING_SECONDS = 2.0
"""Time for services to reap their workers, whose time counts from then on."""


def run() -> list[dict[str, Any]]:
    """Align tables of every size and return rows of case, metric, value, unit, baseline and ratio."""
    bare = _seconds_per_power()
    rows = []
    for size in SIZES:
        seconds, used, matched = _align(size)
        if matched != size - size // 10:
            raise RuntimeError(f"{matched} ids were matched, {size - size // 10} are common")
        least = bare * POWERS_PER_ID * size
        case = f"{size} ids, {len(PARTIES)} parties"
        rows.append(row_of(case, "time", seconds, "s", "bare X25519 on the same cores", seconds / least))
        rows.append(row_of(case, "CPU time", used, "s"))
        rows.append(row_of(case, "ids per second", size / seconds, "1/s"))
    return rows


def _align(size: int) -> tuple[float, float, int]:
    """Seconds on the clock, seconds of processor time of all services, and common ids."""
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        for index, holder in enumerate((*PARTIES, "labels")):
            _write(directory / f"{holder}.parquet", size, index)
        federation = LocalFederation(
            directory / "federation",
            {party: {"train": {"path": directory / f"{party}.parquet"}} for party in PARTIES},
            {"train": {"path": directory / "labels.parquet"}},
        )
        with federation, federation.connect() as client:
            client.parties()  # everyone is up before the clock starts
            before, started = _cpu_seconds(federation), time.perf_counter()
            matched = client.align("bench", PARTIES).matched
            seconds = time.perf_counter() - started
            time.sleep(REAPING_SECONDS)
            return seconds, _cpu_seconds(federation) - before, matched


def _cpu_seconds(federation: LocalFederation) -> float:
    """Processor time of the services and of their workers that have ended."""
    total = 0.0
    for process in federation.processes.values():
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        total += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")  # utime, stime, cutime, cstime
    return total


def _write(path: Path, size: int, holder: int) -> None:
    """A table in which one id of ten is this holder's alone."""
    own = size // 10
    ids = [f"person {number}" for number in range(size - own)]
    ids += [f"person {number} of {holder}" for number in range(own)]
    random.Random(holder).shuffle(ids)
    pq.write_table(pa.table({"id": ids, "a": np.zeros(size), "label": np.arange(size) % 2}), path)


def _seconds_per_power() -> float:
    """Wall time of one power when all cores raise points."""
    cores = len(os.sched_getaffinity(0))
    points, scalar = hashed([str(number) for number in range(SAMPLE)], b"bench"), fresh_scalar()
    with ProcessPoolExecutor(cores) as pool:
        list(pool.map(power, [points[:32]] * cores, [scalar] * cores))
        started = time.perf_counter()
        list(pool.map(power, [points] * cores, [scalar] * cores))
        return (time.perf_counter() - started) / (SAMPLE * cores)


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Time over ids, on logarithmic axes."""
    import matplotlib.pyplot as plt

    times = [row for row in rows if row["metric"] == "time"]
    sizes = [int(row["case"].split()[0]) for row in times]
    figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
    axes.loglog(sizes, [row["value"] for row in times], "o-", color="#4472a8", label="parley align")
    least = [row["value"] / row["ratio"] for row in times]
    axes.loglog(sizes, least, "--", color="grey", label="bare X25519 on the same cores")
    axes.set(xlabel="ids of each organisation", ylabel="seconds", title=f"{len(PARTIES)} parties and the coordinator")
    axes.legend()
    figure.savefig(path, dpi=150)
    plt.close(figure)
