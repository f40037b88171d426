"""Correlations of a party's columns with all others: masked columns out, terms of products into a sum.

code        shape             leaves?
columns     (rows, own)       to every other party, each time under another mask (parley.privacy.pair_products)
draft       limbs             into a secure sum, hidden from it but for the sum: products of every two parties'
                              columns, then of every two columns of one party
values      (own, all)        by policy, three digits
inflation   (own,)            by policy, three digits
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parley.numerics.arrays import Array, Vector
from parley.numerics.column_figures import variance_inflation
from parley.privacy import pair_products
from parley.privacy.pair_products import Elements, Pair, pairs_of
from parley.privacy.release import ColumnGate, MaskedColumns, Release
from parley.protocols.tensor.codec import MessageInvalid

WITH = "correlation with"
PLACE = "correlation place"
"""By which number other parties know the column."""


@dataclass(frozen=True)
class Correlations:
    """What was found; of a column that is constant in the explored rows they are 0."""

    values: Array
    """(own, all), all of one party after the other; nan of a column with itself."""
    places: NDArray[np.int64]
    """Of the own columns, in the table."""
    others: NDArray[np.int64]
    """Of each column of all parties: its party, and its number there, from 1."""
    parties: tuple[str, ...]
    inflation: Vector
    """Of each own column given all others, of all parties; nan where it follows from some."""


class Products:
    """One party's part in the products of all pairs."""

    def __init__(
        self,
        columns: Array,
        places: NDArray[np.int64],
        index: int,
        sizes: tuple[int, ...],
        names: tuple[str, ...],
        secrets: Mapping[int, bytes],
    ) -> None:
        """`columns` are the explored rows of those at `places`; `sizes` says how many every party has."""
        if len(places) != sizes[index]:
            raise MessageInvalid(f"{sizes[index]} of this party's columns were agreed on, and it has {len(places)}")
        self._rows, self._places, self._index, self._sizes, self._names = len(columns), places, index, sizes, names
        self._secrets, self._pairs = secrets, pairs_of(len(sizes))
        self._own = pair_products.elements_of(standardised(columns))

    @property
    def size(self) -> int:
        """Products of all pairs, and of all columns of each party, together."""
        return pair_products.products_of(self._sizes)

    def outgoing(self) -> Iterator[tuple[int, Release[MaskedColumns]]]:
        """To whom masked columns go; the same bytes whenever it is asked again in a session."""
        for pair, other in self.incoming():
            secret = self._secrets[pair.helper]
            yield other, ColumnGate().release(pair, self._own, secret, first=pair.first == self._index)

    def incoming(self) -> Iterator[tuple[Pair, int]]:
        """The pairs that this party is in, and the other one."""
        for pair in self._pairs:
            if self._index in (pair.first, pair.second):
                yield pair, pair.second if self._index == pair.first else pair.first

    def check(self, sender: int, part: MaskedColumns) -> None:
        """Refuse columns that are not of a pair of this party and the sender."""
        if not any(pair.number == part.pair and other == sender for pair, other in self.incoming()):
            raise MessageInvalid(f"pair {part.pair} is not of this party and the sender")
        if part.elements.shape != (self._rows, self._sizes[sender]):
            raise MessageInvalid(f"{self._rows} rows of {self._sizes[sender]} columns are expected")

    def draft(self, received: Mapping[int, Elements]) -> Vector:
        """What this party adds to all products; `received` by the pair's number."""
        terms = [self._term(pair, received) for pair in self._pairs]
        terms += [self._own_products() if party == self._index else np.zeros(size * (size - 1) // 2, dtype=np.uint64)
                  for party, size in enumerate(self._sizes)]  # fmt: skip
        return np.hstack([pair_products.to_floats(term).reshape(pair_products.LIMBS, -1) for term in terms]).ravel()

    def correlations(self, products: Vector) -> Correlations:
        """Read those of this party's columns from the sums."""
        starts = np.cumsum([0, *self._sizes])
        own = slice(starts[self._index], starts[self._index + 1])
        matrix = self._matrix(pair_products.correlations_of(products, self._rows), starts)
        others = [(party, number) for party, size in enumerate(self._sizes) for number in range(1, size + 1)]
        named, inflation = np.array(others, dtype=np.int64).reshape(-1, 2), variance_inflation(matrix)[own]
        np.fill_diagonal(matrix, np.nan)
        return Correlations(matrix[own], self._places, named, self._names, inflation)

    def _matrix(self, found: Vector, starts: NDArray[np.int64]) -> Array:
        """Correlations of all columns with each other."""
        matrix, first = np.zeros((starts[-1], starts[-1])), 0
        for pair in self._pairs:
            one, other = (slice(starts[party], starts[party + 1]) for party in (pair.first, pair.second))
            block = found[first : first + self._size(pair)].reshape(self._sizes[pair.first], -1)
            matrix[one, other], matrix[other, one] = block, block.T
            first += block.size
        for party, size in enumerate(self._sizes):
            rows, columns = (places + starts[party] for places in np.triu_indices(size, 1))
            matrix[rows, columns] = matrix[columns, rows] = found[first : first + len(rows)]
            first += len(rows)
        return matrix + np.eye(len(matrix))

    def _own_products(self) -> Elements:
        """Those of every two columns of this party, each two once."""
        return np.asarray((self._own.T @ self._own)[np.triu_indices(self._own.shape[1], 1)])

    def _size(self, pair: Pair) -> int:
        return self._sizes[pair.first] * self._sizes[pair.second]

    def _term(self, pair: Pair, received: Mapping[int, Elements]) -> Elements:
        widths = self._sizes[pair.first], self._sizes[pair.second]
        if self._index == pair.first:
            return pair_products.term_of_first(pair, self._secrets[pair.helper], received[pair.number], widths[0])
        if self._index == pair.second:
            return pair_products.term_of_second(pair, self._secrets[pair.helper], received[pair.number], self._own)
        if self._index == pair.helper:
            with_both = self._secrets[pair.first], self._secrets[pair.second]
            return pair_products.term_of_helper(pair, *with_both, self._rows, widths)
        return np.zeros(widths, dtype=np.uint64)


def standardised(columns: Array) -> Array:
    """Mean 0 and mean square 1; 0 where a column is constant."""
    centred = columns - columns.mean(axis=0) if len(columns) else columns
    lengths = np.sqrt(np.square(centred).mean(axis=0)) if len(columns) else np.ones(columns.shape[1])
    known = lengths > 1e-12 * np.abs(columns).max(axis=0, initial=0.0)
    return np.asarray(np.where(known, centred / np.where(known, lengths, 1.0), 0.0))
