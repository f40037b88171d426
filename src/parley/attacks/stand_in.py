"""Tables that stand in for a spec's own, so that a spec can be attacked before it runs.

Features and labels are drawn at random and know nothing of each other: whatever an attack finds, it found in what
crosses. Everything else is the product's own: table stores, preprocessing, roles, programs, gates.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
from numpy.typing import NDArray

from parley.services.coordinator.config import LabelConfig
from parley.services.coordinator.labels import LabelStore
from parley.services.party.config import TableConfig
from parley.services.party.tables import TableStore
from parley.spec.run import PartySpec, RunSpec, SplitSpec

ROWS, COLUMNS, CLASSES = 160, 3, 4
HORIZONTAL_COLUMNS = 24
"""Columns of a party whose rows are its own: more than a few rows can span."""
MOST_STEPS = 6
"""Upper iterations or rounds that a rehearsal makes of a longer run."""


class NoStandIn(ValueError):
    """No tables can be made up for a spec."""


@dataclass(frozen=True)
class StandIn:
    """A spec that runs in a moment, with tables made up for it."""

    spec: RunSpec
    folder: Path
    rows: int
    classes: int
    features: dict[str, NDArray[np.float64]]
    """Values of each party, (rows, columns), by name."""
    truth: NDArray[np.int64]
    """Labels of the coordinator, by row."""
    columns: dict[str, list[str]] = field(default_factory=dict)

    @property
    def stores(self) -> dict[str, TableStore]:
        """Every party's tables."""
        return {
            entry.name: TableStore(
                {
                    table: TableConfig(path=str(self.folder / f"{entry.name}-{table}.parquet"), label=self._label)
                    for table in self.spec.tables_of(index)
                }
            )
            for index, entry in enumerate(self.spec.parties)
        }

    @property
    def labels(self) -> LabelStore:
        """The coordinator's labels."""
        return LabelStore({self.spec.label_table: LabelConfig(path=str(self.folder / "labels.parquet"))})

    @property
    def _label(self) -> str | None:
        return "label" if self.spec.train.layout == "horizontal" else None


def stand_in(spec: RunSpec, folder: Path, rows: int = ROWS, seed: int = 0) -> StandIn:
    """Make up tables for a spec, and shorten it.

    Raises:
        NoStandIn: if the spec needs data that cannot be made up.
    """
    classes = _classes(spec)
    rng = np.random.default_rng([seed, 7])
    short = shortened(spec, rows)
    truth = rng.integers(0, classes, rows)
    features: dict[str, NDArray[np.float64]] = {}
    columns: dict[str, list[str]] = {}
    for index, entry in enumerate(short.parties):
        columns[entry.name] = [f"{entry.name}-{number}" for number in range(COLUMNS)]
        if short.train.layout == "horizontal":
            columns[entry.name] = [f"c{number}" for number in range(HORIZONTAL_COLUMNS)]
        for table in short.tables_of(index):
            values = rng.standard_normal((rows, len(columns[entry.name])))
            features.setdefault(entry.name, values)
            own: dict[str, Any] = {"id": _ids(rows)}
            own |= {name: values[:, number] for number, name in enumerate(columns[entry.name])}
            if short.train.layout == "horizontal":
                own["label"] = [_class_names(spec, classes)[code] for code in rng.integers(0, classes, rows)]
            _write(folder / f"{entry.name}-{table}.parquet", own)
    names = _class_names(spec, classes)
    real = getattr(spec.train, "loss", "") in ("squared", "ridge")
    least = 1.0 if getattr(spec.train, "family", "") == "gamma" else 0.0  # which has positive numbers only
    _write(
        folder / "labels.parquet",
        {"id": _ids(rows), "label": truth + least if real else [names[code] for code in truth]},
    )
    return StandIn(short, folder, rows, classes, features, truth, columns)


def shortened(spec: RunSpec, rows: int) -> RunSpec:
    """The same protection and the same steps, but few of them, on few rows, of columns that are made up."""
    kind = getattr(getattr(spec.train, "model", None), "kind", "")
    if kind in ("cnn", "import"):
        raise NoStandIn(f"tables for a model of kind {kind} cannot be made up: attack a spec with kind mlp")
    if getattr(getattr(spec.train, "task", None), "kind", "") == "hyper_representation":
        raise NoStandIn("images cannot be made up: attack a spec with `kind: data_cleaning`")
    parties = tuple(PartySpec(name=entry.name, table=entry.table) for entry in spec.parties)
    train: Any = spec.train
    changes: dict[str, Any] = {}
    if hasattr(train, "upper") and hasattr(train.upper, "steps"):
        changes["upper"] = train.upper.model_copy(update={"steps": min(train.upper.steps, MOST_STEPS)})
    for name in ("steps", "rounds"):
        if hasattr(train, name):
            changes[name] = min(getattr(train, name), 10 * MOST_STEPS)
    if getattr(train, "warm_rounds", None) is not None:
        changes["warm_rounds"] = min(train.warm_rounds, changes["rounds"])
    return spec.model_copy(
        update={
            "parties": parties,
            "alignment": None,
            "split": scaled(spec.split, rows),
            "train": train.model_copy(update=changes),
            "checkpoint_every": 0,
        }
    )


def scaled(split: SplitSpec, rows: int) -> SplitSpec:
    """A split whose ranges fit so many rows."""
    ranges = {
        name: tuple(map(int, value.split(":")))
        for name in ("lower", "upper", "test")
        if isinstance(value := getattr(split, name), str) and ":" in value
    }
    if not ranges:
        return split
    total = max(last for _, last in ranges.values())
    found = {}
    for name, (first, last) in ranges.items():
        start = first * rows // total
        found[name] = f"{start}:{max(start + 1, last * rows // total)}"
    return split.model_copy(update=found)


def _classes(spec: RunSpec) -> int:
    named = getattr(getattr(spec.train, "task", None), "classes", None)
    if named is not None:
        return len(named)
    return CLASSES if getattr(spec.train, "loss", "softmax") == "softmax" else 2


def _class_names(spec: RunSpec, classes: int) -> Sequence[str]:
    named = getattr(getattr(spec.train, "task", None), "classes", None)
    return list(named) if named is not None else [str(code) for code in range(classes)]


def _ids(rows: int) -> list[str]:
    return [f"{row:06}" for row in range(rows)]


def _write(path: Path, columns: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
