"""What crosses in a phase of the FedBiO family, as the roles see it: averages go down, a sum of vectors comes up."""

from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from parley.privacy.recovery import RecoveryStep
from parley.protocols.rounds import PhasedRound

Phase = Literal["variables", "momenta", "evaluate", "checkpoint", "finish"]


@dataclass(frozen=True)
class AveragingRound(PhasedRound):
    """An instruction to some parties; their answers make a secure sum, except for a checkpoint and at the end."""

    summed_phases = ("variables", "momenta", "evaluate")
    phase: Phase
    k: int = field()
    """The round of the algorithm; for a checkpoint, the rounds that it contains."""
    participants: tuple[int, ...] = field()
    """Who takes part, in ascending order."""
    mean: NDArray[np.float64] | None = None
    """An average of secure sums over the participants of an earlier phase."""
    step: RecoveryStep | None = None
    """Which step of the phase's sum is asked for, where the sum can go on without a lost party."""

    def among(self, participants: tuple[int, ...]) -> "AveragingRound":
        """The same phase with these participants."""
        return replace(self, participants=participants)

    def bare(self) -> "AveragingRound":
        """The same phase without the average."""
        return replace(self, mean=None)
