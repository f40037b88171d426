"""What the driver and the session need of any algorithm's rounds, and what many algorithms ask for alike."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol, Self

Answer = Literal["sum", "acknowledge"]
Keeps = Literal["nothing", "checkpoint", "model"]
MEASURE_UNIT = 1024
"""Rows in the unit of the measures that parties add up: sums of many rows fit the ring."""


class Round(Protocol):
    """One round trip of the coordinator with the parties, as the generic code sees it."""

    @property
    def iteration(self) -> int:
        """The iteration that it belongs to, as people count; of a checkpoint, the iterations that it contains."""

    @property
    def label_release(self) -> int | None:
        """The label release that the instruction was made from; None where no label is in it."""

    @property
    def participants(self) -> Sequence[int] | None:
        """Who takes part, in ascending order; None for everyone."""

    @property
    def answer(self) -> Answer:
        """Whether the parties answer with addends of a secure sum, or only acknowledge."""

    @property
    def keeps(self) -> Keeps:
        """What every party has written durably when it answers."""

    @property
    def cost_class(self) -> Hashable | None:
        """Rounds of one class cost the coordinator about the same; None where that cannot be told."""


class RecoverableRound(Round, Protocol):
    """A round whose sum can go on without a lost party. Phase and k name the sum, in every attempt of a run."""

    @property
    def phase(self) -> str:
        """The phase."""

    @property
    def k(self) -> int:
        """The round of the algorithm."""

    def among(self, participants: tuple[int, ...]) -> Self:
        """The same round with these participants."""

    def bare(self) -> Self:
        """The same round without the values that travel with it, for steps of its sum that need none."""


@dataclass(frozen=True)
class Checkpoint:
    """Write and sync the state that contains k iterations."""

    k: int


@dataclass(frozen=True)
class Finish:
    """Save the model."""


_KEEPS: dict[str, Keeps] = {"checkpoint": "checkpoint", "finish": "model"}


@dataclass(frozen=True)
class PhasedRound:
    """A round that is told by its phase; labels stay with the parties unless an algorithm says otherwise.

    An algorithm names its own phases and adds what travels along. `checkpoint` and `finish` mean the same in all.
    """

    summed_phases: ClassVar[tuple[str, ...]] = ()
    """Phases that the parties answer with addends of a secure sum; they acknowledge the others."""
    phase: str
    k: int = 0
    """The iteration, from 0; for a checkpoint, the iterations that it contains."""
    participants: tuple[int, ...] | None = field(default=None, kw_only=True)
    """Who takes part, in ascending order; None for everyone."""

    @property
    def label_release(self) -> int | None:
        """None: labels stay with the parties, and the coordinator has none to release."""
        return None

    @property
    def summed(self) -> bool:
        """Whether the parties answer with addends (or only acknowledge)."""
        return self.phase in self.summed_phases

    @property
    def answer(self) -> Answer:
        """Addends, or an acknowledgement."""
        return "sum" if self.summed else "acknowledge"

    @property
    def iteration(self) -> int:
        """The iteration, as people count: from 1."""
        return self.k if self.phase in _KEEPS else self.k + 1

    @property
    def keeps(self) -> Keeps:
        """What the phase makes the parties keep."""
        return _KEEPS.get(self.phase, "nothing")

    @property
    def cost_class(self) -> Hashable:
        """Rounds of one phase cost the same."""
        return self.phase


def keeps(ask: object) -> Keeps:
    """What an ask makes the parties keep."""
    return "checkpoint" if isinstance(ask, Checkpoint) else "model" if isinstance(ask, Finish) else "nothing"
