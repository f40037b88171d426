"""What crosses in a phase of the FedBiO family, as the roles see it: averages go down, a sum of vectors comes up."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from parley.privacy.recovery import RecoveryStep
from parley.protocols.rounds import Answer, Keeps

MEASURE_UNIT = 1024
"""Rows in the unit of the measures that parties add up: sums of many rows fit the ring."""
Phase = Literal["variables", "momenta", "evaluate", "checkpoint", "finish"]
_KEEPS: dict[Phase, Keeps] = {"checkpoint": "checkpoint", "finish": "model"}


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

    def among(self, participants: tuple[int, ...]) -> "AveragingRound":
        """The same phase with these participants."""
        return replace(self, participants=participants)

    def bare(self) -> "AveragingRound":
        """The same phase without the average."""
        return replace(self, mean=None)

    @property
    def label_release(self) -> None:
        """Labels stay with the parties: the coordinator has none to release."""

    @property
    def summed(self) -> bool:
        """Whether the parties answer with addends (or only acknowledge)."""
        return self.phase in ("variables", "momenta", "evaluate")

    @property
    def answer(self) -> Answer:
        """Addends, or an acknowledgement."""
        return "sum" if self.summed else "acknowledge"

    @property
    def iteration(self) -> int:
        """The round, as people count: from 1."""
        return self.k + 1 if self.summed else self.k

    @property
    def keeps(self) -> Keeps:
        """What the phase makes the parties keep."""
        return _KEEPS.get(self.phase, "nothing")

    @property
    def cost_class(self) -> Phase:
        """Rounds of one phase cost the same."""
        return self.phase
