"""What crosses in AsySQN, as the roles see it: names of rows, asks and outcomes of the coordinator, peers' requests."""

from dataclasses import dataclass
from typing import Literal

from parley.numerics.arrays import Vector
from parley.protocols.rounds import Answer, Checkpoint, Finish, Keeps, keeps


@dataclass(frozen=True)
class Batch:
    """The batch of one step; everyone draws its rows from the seed."""

    k: int
    """Snapshots that the requester has taken."""
    t: int
    """Steps that the requester has made."""


@dataclass(frozen=True)
class AllRows:
    """Every training row, for a snapshot."""


RowsName = Batch | AllRows


@dataclass(frozen=True)
class ThetaRequest:
    """A party asks every other for its share of a sum that the asking party opens."""

    round: int
    """Counts the requester's sums in a session."""
    rows: RowsName


@dataclass(frozen=True)
class ThetaForward:
    """Contribute θ^ℓ of the shared rows (synchronous)."""

    rows: RowsName


@dataclass(frozen=True)
class Start:
    """Start the update loop."""


@dataclass(frozen=True)
class Report:
    """Say how far the loop is."""


@dataclass(frozen=True)
class Evaluate:
    """Contribute θ^ℓ of the watched rows and ‖w_ℓ‖², or of rows of a prediction."""

    rows: Literal["watched", "all"] = "watched"
    first: int = 0
    count: int = 0


@dataclass(frozen=True)
class Halt:
    """Stop the update loop; go on answering."""


Ask = ThetaForward | Start | Report | Evaluate | Halt | Checkpoint | Finish


@dataclass(frozen=True)
class OpenedTheta:
    """Σ_ℓ θ_I^ℓ of the round before, for parties that have labels."""

    values: Vector


@dataclass(frozen=True)
class Derivative:
    """∂L/∂θ of some rows, from the label holder."""

    values: Vector
    label_release: int | None = None
    """The label release that it was made from."""


Outcome = OpenedTheta | Derivative


@dataclass(frozen=True)
class AsysqnRound:
    """What the coordinator sends: the outcome of the round before and the next ask."""

    outcome: Outcome | None
    ask: Ask
    label_release: int | None = None
    """The label release that the outcome was made from; None where no label is in it."""
    participants: None = None
    """Every party holds columns that θ needs."""
    cost_class: None = None
    """An evaluation may be over many rows: never in the event loop."""
    pause_seconds: float = 0.0
    """How long the coordinator lets the parties work by themselves before it asks; it does not cross."""

    @property
    def iteration(self) -> int:
        """The checkpoint's iterations; other rounds are not counted here."""
        return self.ask.k if isinstance(self.ask, Checkpoint) else 0

    @property
    def answer(self) -> Answer:
        """Addends, or an acknowledgement."""
        return "sum" if is_summed(self.ask) else "acknowledge"

    @property
    def keeps(self) -> Keeps:
        """What the ask makes the parties keep."""
        return keeps(self.ask)


@dataclass(frozen=True)
class Progress:
    """Counts and durations of one party's loop; nothing of its data."""

    party: int
    """The party's block."""
    updates: int = 0
    """Own updates."""
    calls: int = 0
    """Sums that the party asked for, snapshots included."""
    peer_bytes: int = 0
    """Bytes that it sent to other parties, serialised."""
    busy_seconds: float = 0.0
    """Time in its own turns, at work or asleep to simulate slow work."""
    loop_seconds: float = 0.0
    """Time since its loop started."""
    staleness: int = 0
    """Most calls of others between a reading of θ and the step made from it."""
    updates_alone: int = 0
    """Updates on last known values, while some party could not be reached."""


def is_summed(ask: Ask) -> bool:
    """Whether the parties answer with addends of a sum (or only acknowledge)."""
    return isinstance(ask, ThetaForward | Evaluate)
