"""One interface over rows, wherever they lie: row-wise work, and sums over rows in an order of their own.

Rows are worked on in shards of `SHARD_ROWS`, counted from the first; sums are added shard after shard. So what comes
out depends on the rows and on the size of a shard, and not on how much of them was in memory. `ShardedRows` cuts the
table instead, into a number of shards that several machines can hold: what comes out depends on that number.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray
from scipy.sparse import issparse

SHARD_ROWS = 1 << 16
FILLED_VALUES = 1 << 23
"""Values of a shard of a sparse table, which is filled while it is worked on."""
Array = NDArray[Any]
Chosen = NDArray[np.int64] | slice


def pieces(rows: int, shard: int = SHARD_ROWS) -> Iterator[slice]:
    """All rows, a shard at a time."""
    for first in range(0, rows, shard):
        yield slice(first, min(first + shard, rows))


class Rows(Protocol):
    """What party code asks of rows.

    Arrays `beside` have an entry for each of these rows; a function gets those of the rows that it is given.
    """

    def map(self, function: Callable[..., Array], rows: NDArray[np.int64] | None = None, *beside: Array) -> Array:
        """What a row-wise function makes of these rows (all if None), one below the other."""

    def fold(self, function: Callable[..., Any], rows: NDArray[np.int64] | None = None, *beside: Array) -> Any:
        """The sum of what a function makes of each shard of these rows."""


class LocalRows:
    """Rows of this machine, in memory, sparse, or mapped from a file; a batch of them is an array.

    A sparse table is filled a batch at a time, never as a whole.
    """

    def __init__(
        self, values: Any, dtype: DTypeLike | None = None, *, ones: bool = False, shard: int = SHARD_ROWS
    ) -> None:
        """`ones` adds a column of ones, as an intercept needs."""
        self._values, self._ones = values, ones
        self._shard = min(shard, max(1, FILLED_VALUES // max(1, values.shape[1]))) if issparse(values) else shard
        self.dtype: np.dtype[Any] = np.dtype(values.dtype if dtype is None else dtype)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self), int(self._values.shape[1]) + self._ones

    @property
    def is_sparse(self) -> bool:
        """Whether only values other than 0 are held."""
        return bool(issparse(self._values))

    def __len__(self) -> int:
        return int(self._values.shape[0])

    def __getitem__(self, rows: Chosen) -> Array:
        chosen = self._values[rows]
        batch = np.ascontiguousarray(chosen.toarray() if self.is_sparse else chosen, dtype=self.dtype)
        return np.append(batch, np.ones_like(batch[:, :1]), axis=1) if self._ones else batch

    def take(self, rows: NDArray[np.int64], axis: int = 0) -> Array:
        """The same, as an array offers it."""
        if axis:
            raise ValueError("rows are taken along the first axis")
        return self[rows]

    def batch(self, level: str, rows: NDArray[np.int64], following: Callable[[], Iterator[NDArray[np.int64]]]) -> Array:
        """A batch of a level of a run; `following` says which ones are likely to come after it."""
        del level, following  # for rows that are read ahead
        return self[rows]

    def shards(self, rows: NDArray[np.int64] | None = None) -> Iterator[Array]:
        """Some rows (all if None), a shard at a time."""
        for piece in pieces(len(self) if rows is None else len(rows), self._shard):
            yield self[piece if rows is None else rows[piece]]

    def map(self, function: Callable[..., Array], rows: NDArray[np.int64] | None = None, *beside: Array) -> Array:
        """What a row-wise function makes of these rows, one below the other."""
        made = list(self._each(function, rows, beside))
        return made[0] if len(made) == 1 else np.concatenate(made)

    def fold(self, function: Callable[..., Any], rows: NDArray[np.int64] | None = None, *beside: Array) -> Any:
        """The sum of what a function makes of each shard of these rows."""
        return _summed(self._each(function, rows, beside))

    def _each(
        self, function: Callable[..., Any], rows: NDArray[np.int64] | None, beside: Sequence[Array]
    ) -> Iterator[Any]:
        count = len(self) if rows is None else len(rows)
        for piece, shard in zip(pieces(count, self._shard), self.shards(rows), strict=True):
            yield function(shard, *(each[piece] for each in beside))


class Part(NamedTuple):
    """The rows of a batch that one shard holds."""

    shard: int
    places: NDArray[np.int64]
    """Where they stand in the batch."""
    rows: NDArray[np.int64]
    """Where they stand in the shard."""
    beside: tuple[Array, ...]


class ShardedRows(LocalRows):
    """Rows in a number of shards of nearly the same size, by their places in the table."""

    def __init__(self, values: Any, dtype: DTypeLike | None = None, *, shards: int, ones: bool = False) -> None:
        super().__init__(values, dtype, ones=ones)
        self._bounds = np.linspace(0, len(values), shards + 1).astype(np.int64)

    def shard(self, index: int) -> LocalRows:
        """One of the shards."""
        return LocalRows(self._values[self._bounds[index] : self._bounds[index + 1]], self.dtype, ones=self._ones)

    def map(self, function: Callable[..., Array], rows: NDArray[np.int64] | None = None, *beside: Array) -> Array:
        """What a row-wise function makes of these rows, in their order."""
        parts = self._parts(rows, beside)
        made = self._work("map", function, parts)
        count = sum(len(part.rows) for part in parts)
        result = np.empty((count, *made[0].shape[1:]), made[0].dtype)
        for part, values in zip(parts, made, strict=True):
            result[part.places] = values
        return result

    def fold(self, function: Callable[..., Any], rows: NDArray[np.int64] | None = None, *beside: Array) -> Any:
        """The sum of what a function makes of these rows of each shard, shard after shard."""
        return _summed(self._work("fold", function, self._parts(rows, beside)))

    def _parts(self, rows: NDArray[np.int64] | None, beside: Sequence[Array]) -> list[Part]:
        """These rows, shard by shard; within a shard in the order in which they came."""
        chosen = np.arange(len(self)) if rows is None else rows
        if not len(chosen):
            raise ValueError("there are no rows to work on")
        if chosen.min() < 0 or chosen.max() >= len(self):
            raise IndexError(f"rows are counted from 0 to {len(self) - 1}")
        shards = np.searchsorted(self._bounds, chosen, side="right") - 1
        order = np.argsort(shards, kind="stable")
        found, starts = np.unique(shards[order], return_index=True)
        groups = np.split(order, starts[1:])
        return [
            Part(int(shard), places, chosen[places] - self._bounds[shard], tuple(each[places] for each in beside))
            for shard, places in zip(found, groups, strict=True)
        ]

    def _work(self, kind: Literal["map", "fold"], function: Callable[..., Any], parts: list[Part]) -> list[Any]:
        """What the shards make of their parts, in their order."""
        return [getattr(self.shard(part.shard), kind)(function, part.rows, *part.beside) for part in parts]


def _summed(parts: Iterable[Any]) -> Any:
    total = None
    for part in parts:
        total = part if total is None else total + part
    if total is None:
        raise ValueError("there are no rows to sum over")
    return total
