"""What crosses in a round, as both sides see it: labels go down where they are asked for, sums of products come up."""

from dataclasses import dataclass
from typing import Literal

from parley.numerics.arrays import Array, Vector
from parley.protocols.rounds import PhasedRound

Phase = Literal["correlate", "checkpoint", "finish"]


@dataclass(frozen=True)
class ReleasedLabels:
    """The class of every row that figures are about."""

    classes: Array
    """0 or 1."""
    flip: float = 0.0
    """How likely each of them was changed."""


@dataclass(frozen=True)
class ExploreRound(PhasedRound):
    """What the coordinator asks of every party."""

    summed_phases = ("correlate",)
    phase: Phase
    labels: ReleasedLabels | None = None
    """With the first round that keeps figures."""
    products: Vector | None = None
    """With the same round: inner products of columns of every two parties, then of each one's, in units of 2^62."""

    @property
    def label_release(self) -> int | None:
        """There is one release."""
        return None if self.labels is None else 0
