"""What crosses in a round, as both sides see it: a solution goes down, sums over all parties come up."""

from dataclasses import dataclass
from math import ceil
from typing import Literal

from parley.numerics.arrays import Vector
from parley.protocols.rounds import PhasedRound

Phase = Literal["design", "penalty", "shrink", "evaluate", "predict", "checkpoint", "finish"]
SPARE = 8
PENALTY_UNIT = 2.0**20
"""What M_mᵀM_m is divided by on its way: weak columns make it larger than a ring carries."""
SHRINK_TAIL = 6
"""Numbers after the vector of a shrinking step: three squared lengths, each as two limbs."""


def mixtures(columns: int) -> int:
    """How many mixtures of so many columns are summed: a few more, so that they are never nearly dependent."""
    return columns + ceil(columns / 4) + SPARE


def columns_of(mixed: int) -> int:
    """How many columns so many mixtures are of."""
    return next((columns for columns in range(mixed + 1) if mixtures(columns) == mixed), 0)


@dataclass(frozen=True)
class Solution:
    """What the coordinator has found, in terms of the mixtures, with the intercept last."""

    values: Vector
    covariance: Vector | None = None
    """Square; None where a penalty leaves no standard errors."""
    freedom: float = 0.0
    """Residual degrees of freedom of a linear model; 0 where p-values are the normal distribution's."""
    inverse_gram: Vector | None = None
    """(AᵀA)⁻¹ with a column of ones in A, square; None where a penalty chooses among solutions."""


@dataclass(frozen=True)
class GlmRound(PhasedRound):
    """What the coordinator asks of every party."""

    summed_phases = ("design", "penalty", "shrink", "evaluate", "predict")
    phase: Phase
    first: int = 0
    count: int = 0
    solution: Solution | None = None
    """With a shrinking step, and with the first round after the solution was found."""
    tie: float = 0.0
    """ρ of a shrinking step."""

    @property
    def label_release(self) -> int | None:
        """Everything that was solved for is made from the run's one release of labels."""
        return None if self.solution is None else 0

    @property
    def cost_class(self) -> tuple[str, int]:
        """Rounds of one phase over as many rows cost the same."""
        return self.phase, self.count
