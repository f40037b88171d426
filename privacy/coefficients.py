"""What a party shares of the coefficients that a run has found for it: what its policy allows, to three digits.

Where a column's values lie (its mean, quantiles, edges of bins) is told to three digits of its deviation if that is
more: years from 1950 to 2020 would else be decades.

They are coefficients of a linear model, or of penalties that the run has tuned, and part of the party's own model. One
number for the whole party says how strongly all of its columns had to be held back together; one for each column says
which of them matter, and by their names what they are.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import floor, log10
from typing import Literal

Sharing = Literal["nothing", "party", "columns"]
DIGITS = 3
"""Significant digits that leave: more would say more about the records, and nobody needs them to read the result."""


@dataclass(frozen=True)
class Coefficient:
    """A tuned coefficient of a penalty γ‖y‖² (not its logarithm), or one of a linear model with what is known of it."""

    column: str
    """The column that it belongs to; empty if it is one for all of them."""
    value: float
    standard_error: float | None = None
    p_value: float | None = None
    """Of the hypothesis that it is 0."""
    low: float | None = None
    """Ends of the 95 % confidence interval."""
    high: float | None = None
    figure: str = ""
    """What the number is, where it is no coefficient but another figure of the column."""

    def rounded(self, deviation: float | None = None) -> "Coefficient":
        """With the digits that leave; `deviation` is the column's, where the run has found it."""
        is_place = self.figure == "mean" or self.figure.startswith("quantile ") or self.figure.endswith(" up to")
        return replace(
            self,
            value=_placed(self.value, deviation) if is_place and deviation else _short(self.value),
            standard_error=_short_if_any(self.standard_error),
            p_value=_short_if_any(self.p_value),
            low=_short_if_any(self.low),
            high=_short_if_any(self.high),
        )


@dataclass(frozen=True)
class SharedCoefficients:
    """Those that may leave."""

    coefficients: tuple[Coefficient, ...]
    kept: str = ""
    """Why there are fewer than the party has; empty if these are all."""


def shared(party: str, found: Sequence[Coefficient], sharing: Sharing) -> SharedCoefficients:
    """What `party` lets leave of what it has."""
    by_column = any(coefficient.column for coefficient in found)
    if found and sharing == "nothing":
        return SharedCoefficients((), f"{party} keeps its coefficients to itself, by its policy")
    if by_column and sharing != "columns":
        return SharedCoefficients((), f"{party} keeps the coefficients of its columns to itself, by its policy")
    deviations = {one.column: one.value for one in found if one.figure == "deviation"}
    return SharedCoefficients(tuple(one.rounded(deviations.get(one.column)) for one in found))


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _placed(value: float, deviation: float) -> float:
    if abs(value) <= deviation:
        return _short(value)
    return round(value, DIGITS - 1 - floor(log10(deviation)))


def _short_if_any(value: float | None) -> float | None:
    return None if value is None else _short(value)
