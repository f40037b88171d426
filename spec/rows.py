"""Which rows belong to the lower problem, the upper problem and the evaluation; the same at every role."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from parley.spec.run import SplitSpec

Rows = NDArray[np.int64]


class RowsUnavailable(ValueError):
    """The split asks for rows that the aligned table does not have."""


@dataclass(frozen=True)
class RowSets:
    """Indices into the aligned rows."""

    lower: Rows
    upper: Rows
    test: Rows
    validation: Rows = field(default_factory=lambda: np.empty(0, np.int64))

    @cached_property
    def trained(self) -> Rows:
        """Rows of either level, ascending: the training rows of an algorithm with one level.

        Found once: `problem: joint` draws every batch from them. Marked and not sorted: there may be many millions.
        """
        marked = np.zeros(1 + max(rows.max(initial=-1) for rows in (self.lower, self.upper)), dtype=bool)
        marked[self.lower] = marked[self.upper] = True
        return np.flatnonzero(marked).astype(np.int64, copy=False)

    @property
    def held_out(self) -> dict[str, Rows]:
        """The sets that figures are taken over, those that have rows, by name."""
        return {name: rows for name, rows in (("validation", self.validation), ("test", self.test)) if len(rows)}

    @cached_property
    def measured(self) -> Rows:
        """The rows of these sets one after the other: what an algorithm that scores them all at once scores."""
        return np.concatenate([self.validation, self.test])

    @property
    def fewest_held_out(self) -> int | None:
        """Fewest rows that figures are taken over; None where there are none."""
        return min(map(len, self.held_out.values()), default=None)


def divide(split: SplitSpec, rows: int, generator: np.random.Generator) -> RowSets:
    """Divide `rows` aligned rows as the spec says. `generator` orders the rows that shares are drawn from."""
    ranges = {name: _range(getattr(split, name), name, rows) for name in ("lower", "upper", "test", "validation")}
    taken = np.zeros(rows, dtype=bool)
    for chosen in ranges.values():
        if chosen is not None:
            taken[chosen] = True
    # Raw words and a stable order: numpy promises both across versions, so all organisations divide alike.
    count = rows - int(np.count_nonzero(taken))
    pool = _stable_order(np.asarray(generator.bit_generator.random_raw(count), dtype=np.uint64))
    if count < rows:
        pool = np.flatnonzero(~taken)[pool]
    sets: dict[str, Rows] = {}
    start = 0.0
    for name, chosen in ranges.items():
        share = getattr(split, name)
        if chosen is not None:
            sets[name] = chosen
        elif share == "lower":
            sets[name] = sets["lower"]
        else:
            first, last = round(start * rows), round((start + share) * rows)
            sets[name] = np.sort(pool[first:last]).astype(np.int64, copy=False)
            start += share
            if len(sets[name]) < last - first:
                raise RowsUnavailable(
                    f"split.{name}: {last - first} rows wanted, {len(sets[name])} left; lower the shares"
                )
    for name in ("lower", "upper"):
        if not len(sets[name]):
            raise RowsUnavailable(f"split.{name} is empty: the table has {rows} rows; raise the share")
    return RowSets(**sets)


def _stable_order(words: NDArray[np.uint64]) -> NDArray[np.intp]:
    """What sorts the words, equal ones as they came. Any sort finds it where none are equal, and others are faster."""
    order = np.argsort(words)
    ordered = words[order]
    return np.argsort(words, kind="stable") if (ordered[1:] == ordered[:-1]).any() else order


def _range(value: str | float, name: str, rows: int) -> Rows | None:
    if not isinstance(value, str) or value == "lower":
        return None
    first, last = map(int, value.split(":"))
    if last > rows:
        raise RowsUnavailable(f"split.{name}: rows {value} wanted, but the table has {rows}")
    return np.arange(first, last, dtype=np.int64)
