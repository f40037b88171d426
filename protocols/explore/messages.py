"""What crosses in a round, as both sides see it: labels go down where they are asked for, nothing comes up."""

from dataclasses import dataclass
from typing import Literal

from parley.numerics.arrays import Array
from parley.protocols.rounds import PhasedRound

Phase = Literal["checkpoint", "finish"]


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

    phase: Phase
    labels: ReleasedLabels | None = None
    """With the first round."""

    @property
    def label_release(self) -> int | None:
        """There is one release."""
        return None if self.labels is None else 0
