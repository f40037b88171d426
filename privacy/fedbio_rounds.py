"""What crosses in a phase of the FedBiO family, as the roles see it: averages go down, a sum of vectors comes up."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from parley.privacy.recovery import RecoveryStep

MEASURE_UNIT = 1024
"""Rows in the unit of the measures that parties add up: sums of many rows fit the ring."""
Phase = Literal["variables", "momenta", "evaluate", "checkpoint", "finish"]


@dataclass(frozen=True)
class SurvivorsSum:
    """A sum with recovery: it may hold fewer vectors than were asked for."""

    total: NDArray[np.float64]
    addends: int
    """How many parties' vectors it holds."""


@dataclass(frozen=True)
class AveragingRound:
    """An instruction to some parties; their answers make a secure sum, except for a checkpoint and at the end."""

    phase: Phase
    k: int
    """The round of the algorithm; for a checkpoint, the rounds that it contains."""
    participants: tuple[int, ...]
    """Who takes part, in ascending order."""
    mean: NDArray[np.float64] | None = None
    """An average of secure sums over the participants of an earlier phase."""
    step: RecoveryStep | None = None
    """Which step of the phase's sum is asked for, where the sum can go on without a lost party."""

    @property
    def label_release(self) -> None:
        """Labels stay with the parties: the coordinator has none to release."""

    @property
    def summed(self) -> bool:
        """Whether the parties answer with addends (or only acknowledge)."""
        return self.phase in ("variables", "momenta", "evaluate")
