"""Digests of what a run has read here, so that values that change between two of its sessions are noticed."""

import json
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from parley.services.party.row_noise import RowProtection
from parley.services.party.tables import TableStore
from parley.tables.digests import labels_digest, table_digest
from parley.tables.loading import Labels, Table


class DataChanged(RuntimeError):
    """A table or its labels hold other values than when the run began."""


class DigestingTables:
    """A party's tables, with a digest of everything that is read of them."""

    def __init__(self, tables: TableStore, table: Table, rows: RowProtection) -> None:
        """`table` is the run's own, which is read and protected already; `rows` protects those of any other."""
        self._tables, self.rows = tables, rows
        self.digests = {f"table {table.name}": table_digest(table)}
        self.further: dict[str, tuple[NDArray[np.str_], str]] = {}
        """Ids of the rows of every other table, and their digest."""

    def labels(
        self, name: str, classes: Sequence[str] | None = None, kind: Literal["classes", "real"] = "classes"
    ) -> Labels:
        """The labels of a table."""
        labels = self._tables.labels(name, classes, kind)
        self._note(f"labels {name}", labels_digest(labels))
        return labels

    def load_like(self, name: str, other: Table) -> Table:
        """A table with the columns of another, and under its scaling."""
        table = self.rows.protect(self._tables.load_like(name, other))
        self._note(f"table {name}", table_digest(table))
        if name != other.name:
            self.further[name] = table.ids, table.row_digest
        return table

    def _note(self, what: str, digest: str) -> None:
        if self.digests.setdefault(what, digest) != digest:
            raise DataChanged(f"{what} changed while the run was opening: let its file rest, then resume the run")

    def to_json(self) -> bytes:
        """What to keep with the run."""
        return json.dumps(self.digests, sort_keys=True).encode()


def changed(kept: bytes, digests: dict[str, str]) -> list[str]:
    """Which of the things that a run read before have other values now."""
    before: dict[str, str] = json.loads(kept)
    return sorted(what for what, digest in before.items() if digests.get(what, digest) != digest)
