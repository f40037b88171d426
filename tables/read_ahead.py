"""Batches of rows that lie in a file larger than memory, read many at a time.

A row drawn at random from such a file costs a read of the disk by itself, fifty times what a run computes with it. But
a run's batches follow from public numbers, so the next ones are known: as many of them as there is room for are
gathered in one pass over the file, from its beginning to its end, which systems read ahead of.
"""

import mmap
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from parley.tables.rows import Array, LocalRows

ROOM_SHARE = 1 / 8
"""Of a party's `memory`, for the batches of one level."""
FITS_SHARE = 1 / 4
"""Of a party's `memory`: a file up to this size stays in the system's cache, and its rows are read as they come."""
_GATHERED = 1 << 14


class _Read(NamedTuple):
    rows: NDArray[np.int64]
    batch: Array


class ReadAheadRows(LocalRows):
    """Mapped rows whose batches are read before they are asked for; their values are those of the file in any case."""

    def __init__(self, values: Any, dtype: DTypeLike | None = None, *, room: int, ones: bool = False) -> None:
        """`room` is how many bytes the batches of one level may take."""
        super().__init__(values, dtype, ones=ones)
        self._most = max(1, room // (self.dtype.itemsize * self.shape[1]))
        self._read: dict[str, list[_Read]] = {}
        if isinstance(values, np.memmap):
            values._mmap.madvise(mmap.MADV_SEQUENTIAL)  # type: ignore[attr-defined]

    def batch(self, level: str, rows: NDArray[np.int64], following: Callable[[], Iterator[NDArray[np.int64]]]) -> Array:
        """A batch of a level; `following` says which ones are likely to come after it."""
        kept = self._read.pop(level, [])
        while kept and not np.array_equal(kept[0].rows, rows):
            del kept[0]
        if not kept:
            kept = self._gathered(self._until_full(chain([rows], following())))
        self._read[level] = kept
        return kept[0].batch

    def _until_full(self, batches: Iterator[NDArray[np.int64]]) -> list[NDArray[np.int64]]:
        """The first of these batches, and others while there is room."""
        chosen: list[NDArray[np.int64]] = []
        for rows in batches:
            if chosen and sum(map(len, chosen)) + len(rows) > self._most:
                break
            chosen.append(rows)
        return chosen

    def _gathered(self, batches: list[NDArray[np.int64]]) -> list[_Read]:
        """Some batches, by one pass over the file."""
        wanted = np.concatenate(batches)
        order = np.argsort(wanted, kind="stable")
        found = np.empty((len(wanted), self.shape[1]), self.dtype)
        for first in range(0, len(order), _GATHERED):
            places = order[first : first + _GATHERED]
            found[places] = self[wanted[places]]
        ends = np.cumsum([len(rows) for rows in batches])
        return [_Read(rows, found[end - len(rows) : end]) for rows, end in zip(batches, ends, strict=True)]
