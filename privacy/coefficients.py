"""What a party shares of the coefficients that a run has tuned for it: what its policy allows, to three digits.

They are part of the party's own model. One number for the whole party says how strongly all of its columns had to be
held back together; one for each column says which of them matter, and by their names what they are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Sharing = Literal["nothing", "party", "columns"]
DIGITS = 3
"""Significant digits that leave: more would say more about the records, and nobody needs them to read the result."""


@dataclass(frozen=True)
class Coefficient:
    """A tuned coefficient of a penalty γ‖y‖²; not its logarithm."""

    column: str
    """The column that it belongs to; empty if it is one for all of them."""
    value: float


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
    return SharedCoefficients(tuple(Coefficient(one.column, float(f"{one.value:.{DIGITS}g}")) for one in found))
