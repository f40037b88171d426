"""The tables that a party offers: loaded once, and again when the file changes."""

from dataclasses import replace
from pathlib import Path

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
        if name not in self._tables:
            raise TableUnknown(
                f"no table {name!r} here; there are {self.names}: correct `table`, or add it to the party"
            )
        config = self._tables[name]
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

    def labels(self, name: str) -> Labels:
        """The labels that stand in the same file as a table's features."""
        config = self._tables[name]
        if config.label is None:
            raise TableUnknown(f"table {name!r} has no labels here: name their column as `label` in the party's table")
        return load_labels(config.path, config.label, config.format, config.id)


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
