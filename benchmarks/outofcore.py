"""A vertical run over tables that are larger than a party's memory, beside one over tables that are held in it.

Three parties with tables of twenty columns of float32 in random order of ids, as folders of Parquet; the coordinator
has the labels. A run of one step reads and sorts the tables; a second one, over the same files, draws as many rows as
there are in batches of 8192, each through a small network (BAMBI, both levels at once). Time and memory are a party's:
`time per row` its processor's in the second run, divided by the rows, with the ratio to rows in memory.

| variable | meaning | default |
|---|---|---|
| `PARLEY_HELD_ROWS` | rows of each table in memory | 40 000 |
| `PARLEY_MAPPED_ROWS` | rows of each table on disk | 120 000 |
| `PARLEY_LIMIT_MB` | megabytes that a party with a table on disk may use | 600 |
| `PARLEY_SCRATCH` | folder for the tables; 400 bytes for each row on disk | the system's |

Where this process may make control groups (as root, with the memory controller of version 1 or 2), each party gets no
more than `PARLEY_LIMIT_MB` megabytes, page cache included; elsewhere there is no limit, and the table says so.
"""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from parley.benchmarks.rows import row_of
from parley.local import LocalFederation

PARTIES = ("bank", "shop", "telco")
COLUMNS, FILE_ROWS, BATCH = 20, 500_000, 8192
HELD_ROWS = int(os.environ.get("PARLEY_HELD_ROWS", "40000"))
MAPPED_ROWS = int(os.environ.get("PARLEY_MAPPED_ROWS", "120000"))
LIMIT_MB = int(os.environ.get("PARLEY_LIMIT_MB", "600"))
MEMORY_SHARE = 0.5
"""Of the limit, what `memory` in a party's configuration says: the rest is for the process and the page cache."""
GROUPS = Path("/sys/fs/cgroup")


def run() -> list[dict[str, Any]]:
    """Time per row with tables in memory and with tables on disk; rows of case, metric, value, unit, ratio."""
    held = _measure(HELD_ROWS, None)
    mapped = _measure(MAPPED_ROWS, LIMIT_MB)
    rows = []
    for found, baseline in ((held, None), (mapped, held)):
        ratio = None if baseline is None else found.per_row / baseline.per_row
        against = None if baseline is None else f"in memory, {HELD_ROWS} rows"
        rows.append(row_of(found.case, "time per row", 1e6 * found.per_row, "µs", against, ratio))
        rows.append(row_of(found.case, "reading and sorting", found.reading, "s"))
        rows.append(row_of(found.case, "most memory", found.most_megabytes, "MB"))
    return rows


@dataclass(frozen=True)
class _Measured:
    case: str
    reading: float
    """Processor seconds of a party, on average."""
    per_row: float
    """Processor seconds of a party in one epoch, divided by its rows."""
    most_megabytes: float


def _measure(count: int, limit_mb: int | None) -> _Measured:
    with tempfile.TemporaryDirectory(dir=os.environ.get("PARLEY_SCRATCH")) as scratch, contextlib.ExitStack() as stack:
        directory = Path(scratch)
        _write(directory, count)
        groups = {party: stack.enter_context(_limited(party, limit_mb)) for party in PARTIES}
        federation = LocalFederation(
            directory / "federation",
            {party: {"train": {"path": directory / party}} for party in PARTIES},
            {"train": {"path": directory / "labels.parquet"}},
            party_options={} if limit_mb is None else {"memory": f"{int(MEMORY_SHARE * limit_mb)}MB"},
            wrappers={party: group.wrapper for party, group in groups.items() if group is not None},
            ready_seconds=600,
        )
        with federation, federation.connect() as client:
            used = []
            for steps in (1, -(-count // BATCH)):
                before = _cpu_seconds(federation)
                client.start(yaml.safe_dump(_spec(steps))).result()
                used.append((_cpu_seconds(federation) - before) / len(PARTIES))
            most = max(_peak_megabytes(federation.processes[party].pid, groups[party]) for party in PARTIES)
        limited = "no limit" if None in groups.values() else f"{limit_mb} MB each, page cache included"
        kind = "in memory" if limit_mb is None else f"mapped ({limited})"
        return _Measured(f"{kind}, {count} rows", used[0], used[1] / count, most)


def _spec(steps: int) -> dict[str, Any]:
    return {
        "name": f"{steps}-steps",
        "seed": 1,
        "dtype": "float32",
        "parties": list(PARTIES),
        "table": "train",
        "split": {"lower": 0.5, "upper": 0.49, "test": 0.01},
        "evaluate_every": 0,
        "train": {
            "algorithm": "bambi",
            "problem": "joint",
            "model": {"kind": "mlp", "hidden": [64], "out": 8, "activation": "tanh"},
            "regularisation": 0.001,
            "upper": {"steps": steps, "batch": BATCH},
        },
    }


def _write(directory: Path, count: int) -> None:
    """The tables, a file at a time."""
    truth = np.empty(count, dtype=np.int64)
    for index, party in enumerate(PARTIES):
        (directory / party).mkdir()
        order = np.random.default_rng(index).permutation(count)
        for number, first in enumerate(range(0, count, FILE_ROWS)):
            ids = order[first : first + FILE_ROWS]
            values = np.random.default_rng((index, number)).standard_normal((len(ids), COLUMNS), dtype=np.float32)
            if index == 0:
                truth[ids] = values[:, 0] > 0
            columns = {"id": ids} | {f"c{column}": values[:, column] for column in range(COLUMNS)}
            pq.write_table(pa.table(columns), directory / party / f"{number:04}.parquet", compression=None)
    pq.write_table(pa.table({"id": np.arange(count), "label": truth}), directory / "labels.parquet")


@dataclass(frozen=True)
class _Group:
    """A control group of one service."""

    directory: Path

    @property
    def wrapper(self) -> list[str]:
        """A command that starts another one inside."""
        return ["/bin/sh", "-c", f'echo $$ > {self.directory}/cgroup.procs && exec "$@"', "sh"]

    @property
    def peak_bytes(self) -> int:
        """The most memory that was used, page cache included."""
        for name in ("memory.peak", "memory.max_usage_in_bytes"):
            with contextlib.suppress(FileNotFoundError):
                return int((self.directory / name).read_text())
        raise FileNotFoundError(f"{self.directory} does not say how much memory was used")


@contextlib.contextmanager
def _limited(name: str, megabytes: int | None) -> Iterator[_Group | None]:
    """A group below this process's own, with a limit; None where there cannot be one."""
    parent = None if megabytes is None else _own_group()
    if parent is None or megabytes is None:
        yield None
        return
    directory = parent / f"parley-{os.getpid()}-{name}"
    try:
        directory.mkdir()
        limit = "memory.max" if (directory / "memory.max").exists() else "memory.limit_in_bytes"
        (directory / limit).write_text(str(megabytes * 10**6))
    except OSError:
        with contextlib.suppress(OSError):
            directory.rmdir()
        yield None
        return
    try:
        yield _Group(directory)
    finally:
        directory.rmdir()


def _own_group() -> Path | None:
    """Where groups with a limit of memory can be made."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers in ("memory", ""):
            root = GROUPS / controllers if (GROUPS / "memory").is_dir() or controllers else GROUPS
            group = root / path.lstrip("/")
            if controllers == "memory" or "memory" in _text(group / "cgroup.subtree_control").split():
                return group
    return None


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _cpu_seconds(federation: LocalFederation) -> float:
    """Processor time of all parties."""
    total = 0.0
    for party in PARTIES:
        fields = Path(f"/proc/{federation.processes[party].pid}/stat").read_text().rpartition(")")[2].split()
        total += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return total


def _peak_megabytes(pid: int, group: _Group | None) -> float:
    if group is not None:
        return group.peak_bytes / 1e6
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024 / 1e6


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Time per row, held and mapped."""
    import matplotlib.pyplot as plt

    shown = [row for row in rows if row["unit"] == "µs"]
    figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
    axes.bar([row["case"].replace(", ", "\n", 1) for row in shown], [row["value"] for row in shown], color="#4472a8")
    axes.set(ylabel="µs of a party for each row")
    figure.savefig(path, dpi=150)
    plt.close(figure)
