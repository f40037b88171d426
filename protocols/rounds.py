"""What the driver and the session need of any algorithm's rounds, and what many algorithms ask for alike."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, Self

Answer = Literal["sum", "acknowledge"]
Keeps = Literal["nothing", "checkpoint", "model"]


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


def keeps(ask: object) -> Keeps:
    """What an ask makes the parties keep."""
    return "checkpoint" if isinstance(ask, Checkpoint) else "model" if isinstance(ask, Finish) else "nothing"
