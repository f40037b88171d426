"""The tables that a party offers: loaded once, and again when the file changes."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from services.party.config import TableConfig
from tables.loading import Labels, Table, load_labels, load_table


class TableUnknown(LookupError):
    """The party has no such table."""


class RowsDiffer(ValueError):
    """Rows that were asked for are not in the table."""


class TooManySessions(RuntimeError):
    """The party serves as many sessions as its policy allows."""


class VersionMismatch(RuntimeError):
    """Coordinator and party run different versions."""


class TableShelf:
    """Tables by name, read from their files when first asked for."""

    def __init__(self, tables: dict[str, TableConfig]) -> None:
        self._tables = tables
        self._loaded: dict[tuple[str, tuple[str, ...] | None, bool], tuple[int, Table]] = {}

    @property
    def names(self) -> list[str]:
        """Every table's name."""
        return sorted(self._tables)

    def load(self, name: str, columns: tuple[str, ...] | None = None, *, dense: bool = True) -> Table:
        """A table, or some of its columns; a sparse file stays sparse unless `dense` is asked for."""
        config = self._config(name)
        stamp = Path(config.path).stat().st_mtime_ns if Path(config.path).exists() else 0
        key = (name, columns, dense)
        known = self._loaded.get(key)
        if known is None or known[0] != stamp:
            table = load_table(
                config.path,
                config.format,
                config.id,
                columns,
                config.label,
                dtype=np.float64,
                standardise=config.standardise,
                n_features=config.features,
                dense=dense,
                name=name,
            )
            known = (stamp, table)
            self._loaded[key] = known
        return known[1]

    def load_like(self, name: str, other: Table) -> Table:
        """A table with the columns of another, and under its scaling: what was learnt on one fits the other."""
        config = self._config(name)
        return load_table(
            config.path,
            config.format,
            config.id,
            other.columns,
            config.label,
            dtype=np.float64,
            standardise=other.scaling is not None,
            scaling=other.scaling,
            n_features=config.features,
            dense=True,
            name=name,
        )

    def labels(
        self, name: str, classes: Sequence[str] | None = None, kind: Literal["classes", "real"] = "classes"
    ) -> Labels:
        """The labels of a table, numbered as `classes` has them where it is given."""
        config = self._config(name)
        if config.label is None:
            raise TableUnknown(f"table {name!r} has no labels here: name their column as `label` in the party's table")
        path = config.label_path or config.path
        format_ = None if config.label_path else config.format
        return load_labels(path, config.label, format_, config.id, kind=kind, classes=classes)

    def _config(self, name: str) -> TableConfig:
        if name not in self._tables:
            raise TableUnknown(
                f"no table {name!r} here; there are {self.names}: correct `table`, or add it to the party"
            )
        return self._tables[name]


def chosen_rows(table: Table, ids: list[str]) -> Table:
    """The rows that `ids` name, in that order."""
    if not ids:
        return table
    place = {identity: row for row, identity in enumerate(table.ids)}
    missing = [identity for identity in ids if identity not in place]
    if missing:
        raise RowsDiffer(f"{len(missing)} of {len(ids)} ids are not in table {table.name}, such as {missing[0]!r}")
    rows = np.array([place[identity] for identity in ids])
    return replace(table, ids=table.ids[rows], features=table.features[rows])
