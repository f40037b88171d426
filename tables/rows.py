"""One interface over rows, wherever they lie: row-wise work, and sums over rows in an order of their own.

Rows are worked on in shards of `SHARD_ROWS`, counted from the first; sums are added shard after shard. So what comes
out depends on the rows and on the size of a shard, and not on how much of them was in memory.
"""

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

SHARD_ROWS = 1 << 16
Array = NDArray[Any]
Chosen = NDArray[np.int64] | slice


def pieces(rows: int, shard: int = SHARD_ROWS) -> Iterator[slice]:
    """All rows, a shard at a time."""
    for first in range(0, rows, shard):
        yield slice(first, min(first + shard, rows))


class Rows(Protocol):
    """What party code asks of rows."""

    def map(self, function: Callable[[Array], Array], rows: NDArray[np.int64] | None = None) -> Array:
        """What a row-wise function makes of these rows (all if None), one below the other."""

    def fold(self, function: Callable[[Array], Any], rows: NDArray[np.int64] | None = None) -> Any:
        """The sum of what a function makes of each shard of these rows."""


class LocalRows:
    """Rows of this machine, in memory or mapped from a file; a batch of them is an array."""

    def __init__(
        self, values: Any, dtype: DTypeLike | None = None, *, ones: bool = False, shard: int = SHARD_ROWS
    ) -> None:
        """`ones` adds a column of ones, as an intercept needs."""
        self._values, self._ones, self._shard = values, ones, shard
        self.dtype: np.dtype[Any] = np.dtype(values.dtype if dtype is None else dtype)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self._values), int(self._values.shape[1]) + self._ones

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, rows: Chosen) -> Array:
        batch = np.ascontiguousarray(self._values[rows], dtype=self.dtype)
        return np.append(batch, np.ones_like(batch[:, :1]), axis=1) if self._ones else batch

    def take(self, rows: NDArray[np.int64], axis: int = 0) -> Array:
        """The same, as an array offers it."""
        if axis:
            raise ValueError("rows are taken along the first axis")
        return self[rows]

    def shards(self, rows: NDArray[np.int64] | None = None) -> Iterator[Array]:
        """Some rows (all if None), a shard at a time."""
        for piece in pieces(len(self) if rows is None else len(rows), self._shard):
            yield self[piece if rows is None else rows[piece]]

    def map(self, function: Callable[[Array], Array], rows: NDArray[np.int64] | None = None) -> Array:
        """What a row-wise function makes of these rows, one below the other."""
        return np.concatenate([function(shard) for shard in self.shards(rows)])

    def fold(self, function: Callable[[Array], Any], rows: NDArray[np.int64] | None = None) -> Any:
        """The sum of what a function makes of each shard of these rows."""
        total = None
        for shard in self.shards(rows):
            part = function(shard)
            total = part if total is None else total + part
        if total is None:
            raise ValueError("there are no rows to sum over")
        return total
