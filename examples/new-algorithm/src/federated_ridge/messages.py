"""What crosses in a round, as both sides see it: coefficients go down, a sum of moments or of errors comes up."""

from dataclasses import dataclass
from typing import Literal

from parley.numerics.arrays import Vector
from parley.protocols.rounds import PhasedRound

Phase = Literal["moments", "evaluate", "checkpoint", "finish"]


@dataclass(frozen=True)
class RidgeRound(PhasedRound):
    """What the coordinator asks of every party."""

    summed_phases = ("moments", "evaluate")
    phase: Phase
    coefficients: Vector | None = None
    """Weights, then the intercept; with the first round after the moments."""
