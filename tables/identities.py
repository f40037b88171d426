"""Ids of different organisations made comparable: one spelling each, none missing, none twice.

Two organisations write the same id differently: with blanks around it, with composed or decomposed accents, as text in
one file and as a number in the other. `canonical` brings them to one spelling. It never joins ids that differ in more
than that: `0017` and `17`, or `a` and `A`, stay apart.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from parley.tables.errors import TableError
from parley.tables.files import TableFile, Texts
from parley.tables.id_lists import IdList

Duplicates = Literal["refuse", "first", "drop"]
"""What becomes of rows whose id another row has too: refuse the table, keep the first of them, or drop them all."""

_WHOLE_NUMBER = re.compile(r"(-?[0-9]+)\.0*")
_NO_VALUE = ("", "nan", "NaN")
_OTHERWISE = re.compile(r"[^!-\-/-~]")
"""Anything but visible ASCII, or a point: what is spelled without them is spelled in one way."""


class IdsRepeated(ValueError):
    """Several rows have the same id, and nobody said which of them counts."""


class IdsMissing(ValueError):
    """No row of a table has an id that counts."""


class AlignmentStale(TableError):
    """The table no longer has rows that it had when it was aligned."""


@dataclass(frozen=True)
class Identities:
    """The rows of a table that have an id of their own."""

    ids: list[str]
    """Canonical, in the order of the file."""
    rows: NDArray[np.intp]
    """Where each one stands in the file."""
    total: int
    """Rows of the file."""
    missing: int
    """Rows without an id."""
    duplicates: int
    """Rows that have the id of another row as well: all of them, also one that is kept."""


@dataclass(frozen=True)
class DistinctIds:
    """The ids of a table that take part in an alignment."""

    ids: IdList
    """Canonical, in the order of the file."""
    total: int
    """Rows of the file."""
    missing: int
    """Rows without an id."""
    duplicates: int
    """Rows that have the id of another row as well: all of them, also one that is kept."""


@dataclass(frozen=True)
class RowChoice:
    """Rows to load, by canonical id; every other row is left out."""

    ids: tuple[str, ...]
    duplicates: Duplicates = "refuse"
    """How the rows were told apart when the ids were chosen."""

    def of(self, file: TableFile, id_column: str, texts: Texts) -> "ChosenRows":
        """The chosen rows of a file whose ids are `texts`.

        Raises:
            AlignmentStale: if some of them are not there.
        """
        found = identities(texts, self.duplicates)
        place = dict(zip(found.ids, found.rows.tolist(), strict=True))
        lacking = sum(identity not in place for identity in self.ids)
        if lacking:
            raise AlignmentStale(
                file.path,
                f"{lacking} of {len(self.ids)} aligned rows are no longer in the table",
                "Put them back, or align the tables again under a new name",
                column=id_column,
            )
        return ChosenRows(
            file, id_column, self.ids, np.array([place[identity] for identity in self.ids], dtype=np.intp)
        )


class ChosenRows:
    """Some rows of an open file, which readers take for a file of its own."""

    def __init__(self, file: TableFile, id_column: str, ids: Sequence[str], chosen: NDArray[np.intp]) -> None:
        self._file, self._id_column, self._ids, self._chosen = file, id_column, ids, chosen

    def __getattr__(self, name: str) -> Any:
        """What a format knows besides, such as its vectors."""
        return getattr(self._file, name)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self._chosen)

    def numbers(self, *arguments: Any, **options: Any) -> Any:
        """Return columns as numbers."""
        return self._file.numbers(*arguments, **options)[self._chosen]

    def texts(self, name: str) -> Texts:
        """Return one column as text; ids in their canonical spelling."""
        if name == self._id_column:
            return list(self._ids)
        texts = self._file.texts(name)
        return [texts[row] for row in self._chosen]

    def place(self, row: int) -> str:
        """Say where a row is in the file."""
        return self._file.place(int(self._chosen[row]))


def identified(
    pieces: Iterable[Sequence[str | None]], duplicates: Duplicates, *, holder: str, table: str
) -> DistinctIds:
    """The ids that can be aligned, of a table whose ids come some rows at a time.

    Raises:
        IdsRepeated: if rows share an id and `duplicates` is "refuse".
        IdsMissing: if nothing is left.
    """
    total = missing = repeated = 0

    def spelled() -> Iterator[list[str]]:
        nonlocal total, missing
        for piece in pieces:
            ids = [identity for identity in canonical_all(piece) if identity]
            total, missing = total + len(piece), missing + len(piece) - len(ids)
            yield ids

    def kept(counts: NDArray[np.int64]) -> NDArray[np.bool_]:
        nonlocal repeated
        repeated = int(counts[counts > 1].sum())
        return np.asarray((counts == 1) | (duplicates != "drop"))

    ids = IdList.distinct(spelled(), kept)
    if duplicates == "refuse" and repeated:
        raise IdsRepeated(
            f"{repeated} of {total} rows in {holder}'s table {table} have an id that another row has "
            "too: clean the table, or align with --duplicates first (keep the first of them) or drop (keep none)"
        )
    if not ids:
        raise IdsMissing(
            f"none of the {total} rows in {holder}'s table {table} has an id of its own: "
            "check which column is named as `id`"
        )
    return DistinctIds(ids, total, missing, repeated)


def canonical(text: str | None) -> str:
    """One spelling per id: NFC, no surrounding blanks, whole numbers without a point; empty if there is none."""
    stripped = (text or "").strip().strip("\ufeff")
    if not stripped.isascii():
        stripped = unicodedata.normalize("NFC", stripped).strip()
    if stripped in _NO_VALUE:
        return ""
    number = _WHOLE_NUMBER.fullmatch(stripped)
    return number[1] if number else stripped


def canonical_all(texts: Sequence[str | None]) -> list[str]:
    """`canonical` of each; one look at all of them where none can have another spelling."""
    known = [text for text in texts if text is not None]
    if len(known) < len(texts) or _OTHERWISE.search("".join(known)) is not None:
        return [canonical(text) for text in texts]
    return ["" if text in _NO_VALUE else text for text in known]


def identities(texts: Iterable[str | None], duplicates: Duplicates) -> Identities:
    """The rows that have an id; of rows that share one, those that `duplicates` keeps ("refuse" keeps the first)."""
    ids = [canonical(text) for text in texts]
    counts = Counter(ids)
    missing = counts.pop("", 0)
    repeated = sum(count for count in counts.values() if count > 1)
    first: dict[str, int] = {}
    for row, identity in enumerate(ids):
        if identity and (duplicates != "drop" or counts[identity] == 1):
            first.setdefault(identity, row)
    return Identities(list(first), np.array(list(first.values()), dtype=np.intp), len(ids), missing, repeated)
