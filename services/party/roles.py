"""What a session needs of an algorithm at a party."""

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from google.protobuf.message import Message
from torch import Tensor

from parley.privacy.asysqn_rounds import RowsName
from parley.privacy.ledger import Ledger
from parley.privacy.noise import KeyedNoise
from parley.privacy.release import RecoveryGate, Release
from parley.privacy.rounds import Vector
from parley.services.party.peers import PeerPlane
from parley.services.party.sum_journal import SumJournal
from parley.services.party.tables import TableShelf
from parley.services.wire.tensors import Blobs
from parley.spec.run import RunSpec
from parley.tables.loading import Labels, Table


class SlopesDesk(Protocol):
    """Where a party without labels asks the label holder for slopes."""

    async def ask(self, rows: RowsName, opened: Vector) -> Vector:
        """∂L/∂θ at a sum that this party opened."""

    async def close(self) -> None:
        """Hang up."""


@dataclass(frozen=True)
class PrivacyDesk:
    """A party's own ledger, its key of noise, and what its policy lets one record cost."""

    ledger: Ledger
    noise: KeyedNoise
    epsilon_budget: float


@dataclass(frozen=True)
class Place:
    """A party's place in a run: what is known when a session opens, and what it learns when the session begins."""

    spec: RunSpec
    index: int
    """This party's block."""
    table: Table
    labels: Callable[..., Labels]
    """Loads this party's own labels, where it has some."""
    model_imports: Collection[str]
    """Models that the policy lets a run import."""
    trained: Mapping[str, Tensor] | None
    """The saved model, for a prediction; None in training."""
    upper_sizes: Sequence[int] = ()
    """Upper parameters of every party."""
    outputs: int = 0
    """Columns of the summed embedding."""
    peers: PeerPlane | None = None
    """The other parties."""
    secrets: Callable[[str], Mapping[int, bytes]] | None = None
    """Derives secrets with every other party for one purpose."""
    recovery: RecoveryGate | None = None
    """Hides addends of sums that go on without a lost party; None where the spec does not ask for that."""
    journal: SumJournal | None = None
    """Sums with recovery that this party has helped to open; None where the spec does not ask for that."""
    label_holder: SlopesDesk | None = None
    """The coordinator, for slopes of the loss; None where this party's configuration does not name its address."""
    run_id: str = ""
    """The run; names its releases in the ledger and in the noise."""
    desk: Callable[[], PrivacyDesk] | None = None
    """Opens the party's ledger, for algorithms that charge it."""
    shelf: TableShelf = field(default_factory=lambda: TableShelf({}))
    """The party's other tables; the policy has been asked about those that the spec names."""


@dataclass(frozen=True)
class Plan:
    """What a round would do: a new state, and what it contributes."""

    state: Any
    draft: Vector | None = None
    """The addend to a secure sum; None where the round only acknowledges."""
    participants: frozenset[int] | None = None
    """Whose addends make the sum; None for all parties."""
    release: Release[Any] | None = None
    """What a gate has made already: the answer to a step of a sum that asks for no value."""
    checkpoint: int | None = None
    """Write the new state as this checkpoint before acknowledging."""
    finished: bool = False
    """Save the model before acknowledging."""


class Role(Protocol):
    """An algorithm at a party; the session keeps its state. It either plans its rounds or acts with its peers."""

    body: str
    """The field of ExchangeRequest and ExchangeResponse that holds its messages."""

    def begin(self, checkpoint: Mapping[str, Tensor] | None) -> Any:
        """The state before the first round, or as a checkpoint has it."""

    def decode(self, message: Any, blobs: Blobs) -> Any:
        """An instruction, checked."""

    def encode(self, number: int, instruction: Any, release: Release[Any] | None) -> tuple[Message, Blobs]:
        """The answer."""

    def tensors(self, state: Any) -> dict[str, Tensor]:
        """What a checkpoint holds."""

    def model_tensors(self, state: Any) -> dict[str, Tensor]:
        """What a saved model holds."""


@runtime_checkable
class PlanningRole(Protocol):
    """A role whose rounds need nobody else: a plan is pure, and is made in the compute thread if it takes long."""

    def plan(self, state: Any, instruction: Any) -> Plan:
        """What an instruction would do."""


@runtime_checkable
class PeerRole(Protocol):
    """A role whose rounds talk to other parties: it awaits them, and runs in the event loop."""

    async def act(self, state: Any, instruction: Any) -> Plan:
        """Do what an instruction asks."""


@runtime_checkable
class SteadyRole(Protocol):
    """A role whose rounds of one kind take about the same time; short ones are then made without a thread."""

    def kind(self, instruction: Any) -> Hashable:
        """What tells rounds of different length apart."""


@runtime_checkable
class ForesightRole(Protocol):
    """A role that can do some of the next round's work while its answer to this one is on its way."""

    def foresees(self, state: Any) -> bool:
        """Whether there is something to do; costs next to nothing."""

    def look_ahead(self, state: Any) -> Any:
        """The same state, with what the next round will need."""


@runtime_checkable
class ReportingRole(Protocol):
    """A role that leaves files for the party's owner when it finishes; they never leave the party."""

    def reports(self, state: Any) -> Mapping[str, bytes]:
        """Content by file name."""


@runtime_checkable
class RestlessRole(Protocol):
    """A role that works beside its rounds until its session closes."""

    async def rest(self, state: Any) -> Plan:
        """Stop; the plan says what to keep."""


@dataclass(frozen=True)
class Algorithm:
    """What a party registers an algorithm with."""

    upper_size: Callable[[Place], int]
    """Upper parameters of this party's block; refuses a place that the algorithm cannot work in."""
    role: Callable[[Place], Role]
    """The role in a session that begins."""
    dense: bool = True
    """Whether tables are loaded as dense arrays (or kept sparse where the file is)."""
    warnings: Callable[[Place], list[str]] = lambda _: []
    """What the party's owner, and the run's watchers, should know of the table: sentences without values."""
    sits_out: bool = False
    """Whether a party may sit out rounds, so that their numbers jump; the role then checks who takes part."""
