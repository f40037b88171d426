"""What a run will send, told before it starts: each algorithm says what its rounds carry, in numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Trips:
    """Round trips that carry the same."""

    count: float
    """How many there are in the whole run; at most so many where it may end earlier."""
    sent: float = 0.0
    """Bytes of data that each participant is sent."""
    summed: float = 0.0
    """Numbers that each participant adds to a secure sum; 0 where it only acknowledges."""
    number_bytes: int | None = None
    """Bytes of such a number where nothing hides it; None for the run's own precision."""
    participants: int | None = None
    """How many parties take part; None for all of them."""
    keeps: bool = False
    """Whether the parties write a checkpoint or the model, and sign for it."""
    between: float = 0.0
    """Bytes that the parties send each other meanwhile, all of them together."""


def kept(steps: int, every: int, *, last: bool = True) -> Trips:
    """The checkpoints of a run, and the model at its end; `last` says whether the last step has a checkpoint too."""
    checkpoints = (steps if last else max(0, steps - 1)) // every if every else 0
    return Trips(checkpoints + 1, keeps=True)


def evaluations(steps: int, every: int) -> int:
    """How often a run evaluates: every so many steps, and at its end."""
    return 1 + (max(0, steps - 1) // every if every else 0)


Forecast = Sequence[Trips]
Widths = Mapping[str, int]
"""Feature columns of the parties' tables, by party, as far as they are known."""


class WidthsUnknown(LookupError):
    """A forecast needs the number of columns of a party's table."""


def widths_of(widths: Widths, parties: Sequence[str]) -> list[int]:
    """The columns of every party of a run.

    Raises:
        WidthsUnknown: if a party's are not known.
    """
    for party in parties:
        if not widths.get(party):
            raise WidthsUnknown(f"how many columns {party} has is not known yet: is it up, and its table read?")
    return [widths[party] for party in parties]


def network_size(widths: Sequence[int]) -> int:
    """Weights and biases of a dense network with so wide layers."""
    return sum((before + 1) * after for before, after in pairwise(widths))
