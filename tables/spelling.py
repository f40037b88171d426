"""How a table spells numbers and dates: what is no plain number in the file becomes one when it is read.

A date becomes days since a reference that its owner declares, so that nothing is learnt from rows; a time of day is a
fraction of a day. A time with an offset is brought to UTC, one without is taken as it stands.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Cycle = Literal["day", "week", "year"]
PERIODS: dict[Cycle, float] = {"day": 1.0, "week": 7.0, "year": 365.2425}
"""Days of one turn."""
NO_VALUE = ("", "na", "n/a", "null", "nan", "#n/a")
"""Texts that stand for a missing number or date, in any case."""
_EPOCH = datetime(1970, 1, 1)
_DAY = 86_400.0
_SPACES = "[ \u00a0\u202f]"
_LIKE_DATE = re.compile(r"\d{4}-\d\d?-\d\d?([T ].*)?|\d\d?[./-]\d\d?[./-]\d{4}.*|\d{4}/\d\d?/\d\d?.*")
_LIKE_COMMA = re.compile(rf"[+-]?(\d{{1,3}}(?:([.']|{_SPACES})\d{{3}})*|\d+),\d+")
_LIKE_THOUSANDS = re.compile(rf"[+-]?\d{{1,3}}(?:([,']|{_SPACES})\d{{3}})+(\.\d+)?")


class ValueUnreadable(ValueError):
    """A text is neither what is declared nor blank."""

    def __init__(self, row: int, text: str, wanted: str) -> None:
        self.row, self.text, self.wanted = row, text, wanted
        super().__init__(f"{text[:40]!r} is no {wanted}")


@dataclass(frozen=True)
class DateColumn:
    """A column with dates or times."""

    column: str
    format: str | None = None
    """As `datetime.strptime` takes it, such as %d.%m.%Y; None reads ISO 8601."""
    reference: str = "2000-01-01"
    """The day that is 0."""
    cycles: tuple[Cycle, ...] = ()
    """Turns that it also becomes two columns of, sine and cosine."""

    @property
    def outputs(self) -> list[str]:
        """Names of the columns of its cycles."""
        return [f"{self.column}:{cycle} {part}" for cycle in self.cycles for part in ("sin", "cos")]

    def turned(self, days: NDArray[np.float64]) -> NDArray[np.float64]:
        """The columns of its cycles; both are 0 where there is no date."""
        # the remainder first: whole days then have the same time of day, and not one that differs by a rounding
        angles = [2 * math.pi * (np.mod(days, PERIODS[cycle]) / PERIODS[cycle]) for cycle in self.cycles]
        parts = [part for angle in angles for part in (np.sin(angle), np.cos(angle))]
        return np.nan_to_num(np.stack(parts, axis=1), nan=0.0) if parts else np.zeros((len(days), 0))

    def days(self, column: Any) -> NDArray[np.float64]:
        """Days since the reference, NaN where there is no date.

        Raises:
            ValueUnreadable: if a text is no date.
            TypeError: if the column holds something else than dates or texts.
        """
        kind = column.type
        if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
            precise = column.cast(pa.timestamp("ns" if pa.types.is_timestamp(kind) and kind.unit == "ns" else "us"))
            ticks = 1e9 if precise.type.unit == "ns" else 1e6
            since = pc.cast(precise.cast(pa.int64()), pa.float64(), safe=False).to_numpy(zero_copy_only=False)
            return np.asarray(since / ticks / _DAY - self._start, dtype=np.float64)
        if pa.types.is_null(kind):
            return np.full(len(column), np.nan)
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise TypeError(f"the column holds {kind}, not dates")
        return np.array([self._day(row, text) for row, text in enumerate(column.to_pylist())], dtype=np.float64)

    def day_of(self, text: str | None) -> float:
        """The same of one text."""
        return self._day(0, text)

    def _day(self, row: int, text: str | None) -> float:
        stripped = (text or "").strip()
        if stripped.lower() in NO_VALUE:
            return math.nan
        try:
            found = self._read(stripped)
        except ValueError:
            raise ValueUnreadable(row, stripped, f"date {self.format or 'such as 2024-01-31'}") from None
        if found.tzinfo is not None:
            found = found.astimezone(UTC).replace(tzinfo=None)
        return (found - _EPOCH).total_seconds() / _DAY - self._start

    @property
    def _read(self) -> Callable[[str], datetime]:
        given = self.format
        return datetime.fromisoformat if given is None else lambda text: datetime.strptime(text, given)

    @property
    def _start(self) -> float:
        return (datetime.fromisoformat(self.reference) - _EPOCH).total_seconds() / _DAY


@dataclass(frozen=True)
class Spelling:
    """What separates the digits of numbers, and which columns are dates."""

    decimal: str = "."
    """Before the fraction."""
    thousands: str = ""
    """Between groups of three digits; a blank also stands for those that do not break."""
    dates: tuple[DateColumn, ...] = ()

    @property
    def plain(self) -> bool:
        """Whether numbers are written as programs write them."""
        return self.decimal == "." and not self.thousands

    def date(self, column: str) -> DateColumn | None:
        """How a column spells dates, if it does."""
        return next((date for date in self.dates if date.column == column), None)

    def is_text(self, column: str) -> bool:
        """Whether a feature is read as text first."""
        return not self.plain or self.date(column) is not None

    def numbers(self, column: Any) -> Any:
        """A column of texts as numbers, null where there is none.

        Raises:
            ValueUnreadable: if one is no number; groups that are not of three digits make none.
        """
        texts = pc.utf8_trim_whitespace(column)
        absent = pc.is_in(pc.utf8_lower(texts), pa.array(NO_VALUE, texts.type))
        texts = pc.if_else(absent, pa.scalar(None, texts.type), texts)
        right = pc.fill_null(pc.match_substring_regex(texts, self._pattern), fill_value=True)
        if not pc.all(right).as_py():
            row = pc.index(right, value=False).as_py()
            raise ValueUnreadable(row, texts[row].as_py(), self._described)
        if self.thousands:
            texts = pc.replace_substring_regex(texts, self._separator, "")
        if self.decimal != ".":
            texts = pc.replace_substring(texts, self.decimal, ".")
        return texts.cast(pa.float64())

    def number(self, text: str) -> float:
        """One text as a number, NaN if it is none."""
        try:
            found = self.numbers(pa.array([text], pa.string()))[0].as_py()
        except ValueUnreadable:
            return math.nan
        return math.nan if found is None else float(found)

    @property
    def _separator(self) -> str:
        return _SPACES if self.thousands == " " else re.escape(self.thousands)

    @property
    def _pattern(self) -> str:
        grouped = rf"\d{{1,3}}(?:{self._separator}\d{{3}})+|" if self.thousands else ""
        sign = re.escape(self.decimal)
        return rf"^[+-]?(?:(?:{grouped}\d+)(?:{sign}\d*)?|{sign}\d+)(?:[eE][+-]?\d+)?$"

    @property
    def _described(self) -> str:
        groups = f" and thousands separated by {self.thousands!r}" if self.thousands else ""
        return f"number with the decimal sign {self.decimal!r}{groups}"


PLAIN = Spelling()


def advice(text: str) -> str | None:
    """What to declare for a column with such a text; None if it looks like neither number nor date."""
    stripped = text.strip()
    if _LIKE_DATE.fullmatch(stripped):
        given = "" if re.match(r"\d{4}-", stripped) else ", format: '%d.%m.%Y'"
        return f"Declare `preprocess: {{dates: {{columns: [...]{given}}}}}` on the table"
    comma = _LIKE_COMMA.fullmatch(stripped)
    whole = _LIKE_THOUSANDS.fullmatch(stripped)
    if whole and comma and comma[2] is None:
        return """Write `decimal: ","` or `thousands: ","` on the table, whichever the comma is"""
    if whole:
        return f'Write `thousands: "{whole[1]}"` on the table'
    if comma:
        groups = f' and `thousands: "{comma[2]}"`' if comma[2] else ""
        return f"""Write `decimal: ","`{groups} on the table"""
    if stripped.lower() in ("inf", "-inf", "+inf", "infinity", "-infinity"):
        return "Correct it, or leave the field empty and declare `preprocess: {missing: median}`"
    return None
