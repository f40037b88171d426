"""Federations whose parties have nothing to learn: what is left of a step is the wire and the protection.

Tables are random numbers. A run makes gradient steps on the classifier alone, over features that serve as embeddings:
one small matrix product at each party.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import yaml

from parley.benchmarks.rows import row_of
from parley.local import LocalFederation

ROWS, CLASSES, FEATURES = 2048, 10, 4


@dataclass(frozen=True)
class Protection:
    """How a run is protected."""

    aggregation: str = "plain"
    labels: str = "off"


def federation(
    scratch: Path,
    names: Sequence[str],
    *,
    rows: int = ROWS,
    tables: Mapping[str, tuple[int, int]] | None = None,
    addresses: Mapping[str, str] | None = None,
    **options: Any,
) -> LocalFederation:
    """A federation of random tables, each of so many rows and columns; `train` is always there.

    `addresses` are dialled in place of the parties' own; `options` are further fields of the federation.
    """
    sizes = {"train": (rows, FEATURES), **(tables or {})}
    data = scratch / "data"
    for table, (height, width) in sizes.items():
        write_tables(data / table, names, height, width)
    parties = {name: {"address": address} for name, address in (addresses or {}).items()}
    return LocalFederation(
        scratch,
        {name: {table: {"path": data / table / f"{name}.parquet"} for table in sizes} for name in names},
        {table: {"path": data / table / "labels.parquet", "budget": {"epsilon": 1e9}} for table in sizes},
        policy={"aggregations": ["pairwise", "two_tree", "plain"], "minimum_parties": 1},
        coordinator_options={"parties": parties} if parties else {},
        ready_seconds=60.0 + 30.0 * len(names),  # they share a few cores to start on
        **options,
    )


def write_tables(directory: Path, names: Sequence[str], rows: int, features: int) -> None:
    """One table for each party, and the labels."""
    directory.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    ids = [f"{row:08d}" for row in range(rows)]
    for name in names:
        columns = {f"{name}-{c}": generator.standard_normal(rows, np.float32) for c in range(features)}
        pa.parquet.write_table(pa.table({"id": ids, **columns}), directory / f"{name}.parquet")
    labels = np.arange(rows) % CLASSES
    pa.parquet.write_table(pa.table({"id": ids, "label": labels}), directory / "labels.parquet")


def null_spec(
    names: Sequence[str],
    protection: Protection,
    *,
    steps: int,
    batch: int,
    directions: int = 0,
    table: str = "train",
    train: Mapping[str, Any] | None = None,
) -> str:
    """Gradient steps on one trajectory (warm-up steps), or on 1 + `directions` of them (those of one upper iteration).

    Perturbed trajectories exist only within an upper iteration, so there the upper variable is one regularisation
    coefficient for each party; its own three rounds are few beside `steps`. `train` replaces settings of the algorithm.
    """
    lower: dict[str, Any] = {"solver": "sgd", "batch": batch, "optimiser": {"step": 1e-3}}
    settings: dict[str, Any] = {"algorithm": "bambi", "hypergradient": "zeroth_order", "model": {"kind": "identity"}}
    if directions:
        settings |= {
            "problem": "hyper_parameters",
            "zeroth_order": {"directions": directions, "kind": "gaussian"},
            "upper": {"steps": 1, "batch": batch},
            "lower": lower | {"steps": steps},
        }
    else:
        settings |= {"upper": {"steps": 0}, "lower": lower | {"warmup_steps": steps}}
    content = {
        "name": "null",
        "parties": list(names),
        "table": table,
        "split": {"lower": 0.8, "upper": 0.2, "test": 0},
        "train": settings | dict(train or {}),
        "privacy": {
            "aggregation": {"kind": protection.aggregation, "minimum_parties": min(2, len(names))},
            "labels": {"mechanism": protection.labels, "epsilon": 1},
        },
        "evaluate_every": 0,
        "checkpoint_every": 0,
        "round_seconds": 300,
    }
    return yaml.safe_dump(content)


def processor_seconds(pids: Sequence[int]) -> float:
    """What processes have spent on processors since they began, in user and in kernel mode."""
    ticks = 0
    for pid in pids:
        # The name, in brackets, may hold spaces; utime and stime are the 12th and 13th fields after it.
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(after_name[11]) + int(after_name[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def machine_rows() -> list[dict[str, Any]]:
    """What the figures were measured on: cores, and processes that wanted one in the last minute."""
    cores, load = os.cpu_count() or 1, os.getloadavg()[0]
    return [
        row_of("machine", "cores", cores, "cores"),
        row_of("machine", "load average", load, "processes", "cores", load / cores),
    ]
