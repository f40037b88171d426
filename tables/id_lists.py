"""Ids in one Arrow column: what they are long and eight bytes each, where a list of texts takes about a hundred."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, overload

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from parley.tables.texts import with_lengths

PIECE = 1 << 16
"""Ids that are texts at once."""


class IdList(Sequence[str]):
    """Ids that are read a few at a time."""

    def __init__(self, column: pa.LargeStringArray) -> None:
        self._column = column

    @classmethod
    def of(cls, ids: Iterable[str]) -> "IdList":
        """The same ids."""
        return cls(pa.array(ids, pa.large_string()))

    @classmethod
    def distinct(cls, pieces: Iterable[Sequence[str]], keep: Callable[[NDArray[np.int64]], Any]) -> "IdList":
        """Each id once, in the order in which they first come; `keep` is told how often and says which stay."""
        chunks = [pa.array(piece, pa.large_string()) for piece in pieces]
        column = pa.chunked_array(chunks, pa.large_string()).combine_chunks()  # else each chunk has an index of its own
        chunks.clear()
        encoded = column.dictionary_encode()
        del column
        found = encoded.dictionary
        counts = np.zeros(len(found), dtype=np.int64)
        for first in range(0, len(encoded), PIECE):
            np.add.at(counts, encoded.indices[first : first + PIECE].to_numpy(), 1)
        kept = keep(counts)
        del encoded
        found = found if kept.all() else found.filter(pa.array(kept))
        pa.default_memory_pool().release_unused()  # the index of texts was several times as large as they are
        return cls(found)

    def __len__(self) -> int:
        return len(self._column)

    @overload
    def __getitem__(self, rows: int) -> str: ...
    @overload
    def __getitem__(self, rows: slice) -> list[str]: ...
    def __getitem__(self, rows: int | slice) -> str | list[str]:
        """One id, or some as a list."""
        if isinstance(rows, slice):
            first, last, step = rows.indices(len(self))
            found: list[str] = self._column.slice(first, max(0, last - first)).to_pylist()
            return found[::step]
        return str(self._column[rows].as_py())

    def __iter__(self) -> Iterator[str]:
        for piece in self.pieces():
            yield from piece

    def pieces(self) -> Iterator[list[str]]:
        """All ids, some at a time."""
        for first in range(0, len(self), PIECE):
            yield self[first : first + PIECE]

    def take(self, rows: NDArray[np.integer[Any]]) -> "IdList":
        """The ids in these rows."""
        return IdList(self._column.take(pa.array(rows)))

    def sorted(self) -> "IdList":
        """The same ids in the order of texts, which is that of their bytes."""
        return IdList(self._column.sort())

    def digest(self) -> str:
        """SHA-256 of the ids in their order, each with its length."""
        return sorted_id_digest(len(self), self.pieces())


def sorted_id_digest(count: int, pieces: Iterable[NDArray[np.str_] | Sequence[str]]) -> str:
    """`tables.loading.id_digest` of identities that come sorted as text, some at a time."""
    digest = hashlib.sha256(b"parley.ids.v1" + count.to_bytes(8, "big"))
    for piece in pieces:
        digest.update(with_lengths(piece))
    return digest.hexdigest()
