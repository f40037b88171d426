"""What the driver needs of an algorithm at the coordinator, and what an algorithm is given there. No network."""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from google.protobuf.message import Message

from parley.coordinator.forecasts import Forecast, Widths
from parley.coordinator.labels import LabelAccess, LabelKind
from parley.numerics.arrays import Vector
from parley.privacy.release import Addend, OutcomeGate, Release
from parley.protocols.protocol import CrossingProtocol
from parley.protocols.rounds import Round
from parley.protocols.tensor.codec import Blobs
from parley.spec.events import RunWarning
from parley.spec.run import RunSpec


@dataclass(frozen=True)
class Report:
    """What the label holder may see of an iteration."""

    k: int
    metrics: dict[str, float]
    warning: RunWarning | None = None
    """What is wrong with the run, and what to change; made from what may leave."""


Observer = Callable[[Report], None]


@dataclass(frozen=True)
class CommonRows:
    """The rows that the parties have in common."""

    count: int
    digest: bytes
    party: str
    """A party that has them, for messages."""


class WireForm(Protocol):
    """How an algorithm's rounds look on the wire."""

    @property
    def outputs(self) -> int:
        """Columns of the summed embedding, or classes of the model."""

    def encode(self, number: int, release: Release[Any]) -> tuple[Message, Blobs]:
        """The instruction of a round."""

    def decode(self, message: Any, blobs: Blobs, release: Release[Any]) -> Addend | None:
        """A party's contribution to a round, checked."""


class Program(WireForm, Protocol):
    """An algorithm at the coordinator: a generator of rounds, and how rounds look on the wire."""

    gate: OutcomeGate

    @property
    def finish(self) -> Round:
        """The round that makes every party save its model."""

    def rounds(self, done: int, observe: Observer) -> Generator[Any, Any, None]:
        """Every round from iteration `done` + 1 on."""


class LabelFreeProgram:
    """What programs have in common that hold no labels: there is nothing to pay for."""

    gate = OutcomeGate(lambda _: False)


def due(k: int, every: int) -> bool:
    """Whether something that is done `every` so many iterations is due after k of them."""
    return every > 0 and k % every == 0


@runtime_checkable
class KeepingProgram(Protocol):
    """A program with state of its own, which is committed with every checkpoint."""

    def kept(self) -> bytes:
        """The state after the last round."""

    def restore(self, content: bytes) -> None:
        """Go on from a state that was kept."""


@runtime_checkable
class AnsweringProgram(Protocol):
    """A program that answers questions of single parties beside its rounds."""

    def answer(self, party: int, question: Any, blobs: Blobs) -> tuple[Message, Blobs]:
        """The answer to a party's question; called for several parties at once, outside the event loop."""


@runtime_checkable
class PausingProgram(Protocol):
    """A program whose parties work by themselves between some of its rounds."""

    def pause_seconds(self, current: Any) -> float:
        """How long to wait before a round is asked for."""


@runtime_checkable
class RecoverableProgram(Program, Protocol):
    """A program whose rounds are `RecoverableRound`s: parties may leave, and come back in a later attempt."""

    def expect_rejoiners(self) -> None:
        """Expect parties that were not in the round before: they left in an attempt before this one."""


@dataclass(frozen=True)
class Predictor:
    """How the models that the parties saved predict together."""

    form: WireForm
    ask: Callable[[int, int], Round]
    """The round that sums over so many rows from the first on."""
    scores: Callable[[Vector], Vector]
    """Scores, (rows, outputs), from a sum."""
    classes: Sequence[str]


@dataclass(frozen=True)
class Head:
    """How the sum over all blocks becomes scores, in words that other programs know."""

    link: Literal["softmax", "logistic", "identity", "exponential", "sign"]
    labels: LabelKind
    """What kind of labels it was trained on."""


@dataclass(frozen=True)
class CoordinatorAlgorithm:
    """An algorithm's coordinator side, as it is registered."""

    protocol: CrossingProtocol
    program: Callable[[RunSpec, LabelAccess], Program]
    """The program of a run; loads labels where the algorithm has them here."""
    check: Callable[[RunSpec, LabelAccess, CommonRows], None] = field(default=lambda _spec, _labels, _rows: None)
    """Refuse, before a run starts, what the coordinator's side cannot work with; changes and spends nothing."""
    predictor: Callable[[RunSpec, LabelAccess], Predictor] | None = None
    """None where every party has the whole model."""
    head: Callable[[RunSpec], Head] | None = None
    """How the sum over all blocks becomes scores; None where every party has the whole model."""
    forecast: Callable[[RunSpec, LabelAccess, Widths], Forecast | None] = field(
        default=lambda _spec, _labels, _widths: None
    )
    """What the rounds of a run will carry; None where that cannot be told. Reads labels for their number only."""
    as_first: Callable[[Mapping[str, Any]], Mapping[str, Any] | None] = field(default=lambda _: None)
    """A run's `train` section with what the first release meant by fields that are left out, so that a run which began
    there goes on as it began; None where that release took other steps."""
