"""What a session needs of an algorithm at a party, and what an algorithm is given there. No network, no files."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import numpy as np
from google.protobuf.message import Message
from numpy.typing import NDArray

from parley.numerics.arrays import Vector
from parley.numerics.streams import stream
from parley.party.exports import Layers
from parley.party.peers import Peers
from parley.privacy.coefficients import Coefficient
from parley.privacy.dataset_ledger import DatasetTerms
from parley.privacy.ledger import Ledger
from parley.privacy.noise import KeyedNoise
from parley.privacy.release import RecoveryGate, Release
from parley.privacy.ring import Beyond
from parley.protocols.protocol import CrossingProtocol
from parley.protocols.refusals import Catalogue
from parley.protocols.tensor.codec import Blobs
from parley.spec.rows import RowSets, divide
from parley.spec.run import RunSpec
from parley.tables.errors import RowsDiffer
from parley.tables.loading import Labels, Table
from parley.tables.rows import ShardedRows

if TYPE_CHECKING:
    from torch import Tensor

SavedModel = Mapping[str, "Tensor"]
"""A model as a party saved it, by named tensors."""
MapsRows = Literal["never", "predicting", "always"]
"""When an algorithm reads a batch of rows at a time."""


class CheckpointMissing(LookupError):
    """There is no whole checkpoint to begin from, or it belongs to another model."""


class Tables(Protocol):
    """The party's tables; its policy has been asked about those that the spec names."""

    def labels(
        self, name: str, classes: Sequence[str] | None = None, kind: Literal["classes", "real"] = "classes"
    ) -> Labels:
        """The labels of a table, numbered as `classes` has them where it is given."""

    def load_like(self, name: str, other: Table) -> Table:
        """A table with the columns of another, and under its scaling."""


class CoordinatorLine(Protocol):
    """A line on which a party asks the coordinator, one question after the other."""

    async def ask(self, question: Message, blobs: Blobs) -> tuple[Any, Blobs]:
        """The coordinator's answer. Raises PeerLost where it cannot be reached."""

    async def close(self) -> None:
        """Hang up."""


class SumJournal(Protocol):
    """Which sums with recovery this party has helped to open, durably."""

    def get(self, phase: str, k: int) -> int | None:
        """Whom the sum of a phase was over, as a bitmap; None if nobody is known to have disclosed for it."""

    def note(self, phase: str, k: int, participants: int) -> None:
        """Write and sync that the sum of a phase may be opened over these parties."""


class RowEngine(Protocol):
    """Works on rows elsewhere, on machines of the party's own."""

    def rows(self, values: Any, dtype: str) -> ShardedRows:
        """These rows in shards, to be computed on in this type."""


@dataclass(frozen=True)
class LocalPrivacy:
    """A party's own ledger, its key of noise, and what its policy lets one record cost."""

    ledger: Ledger
    noise: KeyedNoise
    epsilon_budget: float
    rows: DatasetTerms = field(default_factory=lambda: DatasetTerms(changed="charge"))
    """What the owner lets all runs together cost one row under noise on rows or in sums."""


@dataclass(frozen=True)
class Floors:
    """What the party's owner asks of every sum that its values go into, whatever a spec says."""

    minimum_parties: int = 2
    """Fewest parties in a sum."""
    beyond: Beyond = "raise"
    """What becomes of a value that does not fit the ring."""


@dataclass(frozen=True)
class Opened:
    """What a party knows when a session opens."""

    spec: RunSpec
    index: int
    """This party's block."""
    run_id: str
    """Names the run's releases in the ledger and in the noise."""
    session_id: str
    table: Table
    tables: Tables
    predicts: bool = False
    """Whether the session uses a saved model instead of training one."""
    model_imports: Collection[str] = ()
    """Models that the policy lets a run import."""
    privacy: Callable[[], LocalPrivacy] | None = None
    """Opens the party's ledger, for algorithms that charge it."""
    coordinator: CoordinatorLine | None = None
    """For questions; None where this party's configuration does not name the coordinator's address."""
    floors: Floors = Floors()
    """What the owner asks of every sum."""
    engine: RowEngine | None = None
    """What works on many rows at once, where the owner has configured it."""
    correlations: Collection[str] | Literal["all"] = ()
    """Columns that the owner lets other parties' columns be multiplied with."""
    salt: str = ""
    """What the register of exposure adds to the names of this party's own batches; empty unless they would repeat."""

    @property
    def name(self) -> str:
        """This party."""
        return self.spec.parties[self.index].name

    @property
    def names(self) -> list[str]:
        """The parties of the run."""
        return [entry.name for entry in self.spec.parties]

    @functools.cached_property
    def row_sets(self) -> RowSets:
        """Which rows are for what, where all parties have the same rows. Found once: there may be many millions."""
        return divide(self.spec.split, len(self.table), stream(self.spec.seed, "split"))

    def labels(self, classes: Sequence[str] | None = None, kind: Literal["classes", "real"] = "classes") -> Labels:
        """The labels of this party's own table, row by row."""
        name = self.spec.table_of(self.index)
        found = self.tables.labels(name, classes, kind)
        if not np.array_equal(found.ids, self.table.ids):
            raise RowsDiffer(f"the labels of table {name} are not about its rows: align them by id")
        return found


@dataclass(frozen=True)
class Recovery:
    """How this party takes part in sums that go on without a lost party."""

    gate: RecoveryGate
    journal: SumJournal


@dataclass(frozen=True)
class Begun:
    """What a party knows when a session begins: everything from the opening, and the other parties."""

    opened: Opened
    upper_sizes: Sequence[int]
    """Upper parameters of every party."""
    outputs: int
    """Columns of the summed embedding."""
    peers: Peers
    """The other parties."""
    secrets: Callable[[str], Mapping[int, bytes]]
    """Derives secrets with every other party for one purpose."""
    recovery: Recovery | None = None
    """Where the spec asks for sums that go on without a lost party."""
    count_sum: Callable[[], None] = lambda: None
    """Called before a value of this party goes into a sum that the session does not see; may refuse."""

    @property
    def spec(self) -> RunSpec:
        """The run."""
        return self.opened.spec

    @property
    def index(self) -> int:
        """This party's block."""
        return self.opened.index


@dataclass(frozen=True)
class Coverage:
    """What a run would tell of this party's rows: foretold from spec and table, for the owner's floors."""

    rows: int
    """Rows of this party that the run trains on."""
    batch: int
    """Fewest of its rows that one value which leaves is made from (or, with columns at each party, is about)."""
    sums: int
    """Sums that one row is in, over the whole run."""
    evaluated: int | None = None
    """Fewest rows that metrics are taken over; None where the run takes none over this party's rows."""
    exact: bool = True
    """Whether values leave without noise of this party's own."""
    honest: int = 1
    """How many parties must keep their noise to themselves, where there is noise."""
    rank: int | None = None
    """Values of a row that determine the span of this party's columns, where its block is linear; None where not."""
    share: float = 1.0
    """Of the rows that the run trains on, the part that one sum is about."""
    own_batches: bool = False
    """Whether this party draws batches of its own, which a salt makes different from those of an earlier run."""
    seeded: bool = True
    """Whether another seed makes other sums: not where batches are most of the rows and all start at one point."""
    drawn: str = ""
    """Where a value is made from many rows: what decides, beside the seed, from which. Two runs that differ in it alone
    could be subtracted, so that what is left is of a few rows. Empty where every row has a value of its own."""
    judged: tuple[NDArray[np.str_], ...] = ()
    """Where a spec chooses the rows of this party that metrics are taken over: the ids of each such set."""
    figures: bool = False
    """Whether what leaves are figures over sets of rows, and no sums over parties."""


@dataclass(frozen=True)
class Offer:
    """What a party says of a run before it begins."""

    upper_size: int = 0
    """Upper parameters of this party's block."""
    warnings: tuple[str, ...] = ()
    """What the party's owner, and the run's watchers, should know: sentences without values."""
    coverage: Coverage | None = None
    """What the run would tell of this party's rows; an algorithm that does not say is refused training."""


@dataclass(frozen=True)
class Plan:
    """What a round would do: a new state, and what it contributes."""

    state: Any
    draft: Vector | None = None
    """The addend to a secure sum; None where the round only acknowledges."""
    row_sums: int = 1
    """Sums of each row in the draft, for the register of exposure; 0 where there are none, or they are counted."""
    of_every_row: bool = False
    """Whether these are about all rows of a set, as in an evaluation, and not about a batch of them."""
    participants: frozenset[int] | None = None
    """Whose addends make the sum; None for all parties."""
    release: Release[Any] | None = None
    """What a gate has made already: the answer to a step of a sum that asks for no value."""
    checkpoint: int | None = None
    """Write the new state as this checkpoint before acknowledging."""
    earlier_checkpoint: int | None = None
    """Write it as this one too: parties that were lost meanwhile may have no newer one to begin from."""
    finished: bool = False
    """Save the model before acknowledging."""


class Role(Protocol):
    """An algorithm at a party; the session keeps its state. It either plans its rounds or acts with its peers."""

    def begin(self, checkpoint: Mapping[str, Tensor] | None) -> Any:
        """The state before the first round, or as a checkpoint has it."""

    def encode(self, number: int, instruction: Any, release: Release[Any] | None) -> tuple[Message, Blobs]:
        """The answer to an instruction."""

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
class PredictableRole(Protocol):
    """A role whose rounds of one class take about the same time; short ones are then made without a thread."""

    def cost_class(self, instruction: Any) -> Hashable:
        """What tells rounds of different length apart."""


@runtime_checkable
class PrefetchingRole(Protocol):
    """A role that can do some of the next round's work while its answer to this one is on its way."""

    def can_prefetch(self, state: Any) -> bool:
        """Whether there is something to do; costs next to nothing."""

    def prefetch(self, state: Any) -> Any:
        """The same state, with what the next round will need."""


@runtime_checkable
class ReportingRole(Protocol):
    """A role that leaves files for the party's owner when it finishes; they never leave the party."""

    def reports(self, state: Any) -> Mapping[str, bytes]:
        """Content by file name."""


@runtime_checkable
class BackgroundRole(Protocol):
    """A role that works beside its rounds until its session closes."""

    async def stop(self, state: Any) -> Plan:
        """Stop; the plan says what to keep."""


@dataclass(frozen=True)
class Capabilities:
    """What a role can do, looked up once: the question costs as much as a small batch."""

    role: Role
    planning: PlanningRole | None = field(init=False)
    peer: PeerRole | None = field(init=False)
    predictable: PredictableRole | None = field(init=False)
    prefetching: PrefetchingRole | None = field(init=False)
    reporting: ReportingRole | None = field(init=False)
    background: BackgroundRole | None = field(init=False)

    def __post_init__(self) -> None:
        role: Any = self.role
        found = {
            "planning": role if isinstance(role, PlanningRole) else None,
            "peer": role if isinstance(role, PeerRole) else None,
            "predictable": role if isinstance(role, PredictableRole) else None,
            "prefetching": role if isinstance(role, PrefetchingRole) else None,
            "reporting": role if isinstance(role, ReportingRole) else None,
            "background": role if isinstance(role, BackgroundRole) else None,
        }
        for name, view in found.items():
            object.__setattr__(self, name, view)
        if (self.planning is None) == (self.peer is None):
            raise TypeError(f"{type(role).__name__} must have one of `plan` and `act`")


TrainingRows = Callable[[RunSpec, int, int], NDArray[np.int64]]
"""Of a run, a party's block and its number of rows: the rows that figures of preprocessing are fitted on."""


@dataclass(frozen=True)
class PartyAlgorithm:
    """An algorithm's party side, as it is registered."""

    protocol: CrossingProtocol
    accept: Callable[[Opened], Offer]
    """Look at the data before a run begins; refuse what the algorithm cannot work with."""
    role: Callable[[Begun], Role]
    """The role in a session that trains."""
    predictor: Callable[[Begun, SavedModel], Role] | None = None
    """The role in a session that predicts; None where every party has the whole model."""
    rows_asked: Callable[[int, int], Any] | None = None
    """The decoded instruction that asks for the sums of so many rows from the first on, in a session that predicts.
    With it a deployed model has every row ready; without, it computes those of each question."""
    refusals: Catalogue = field(default_factory=dict)
    """The refusals that the algorithm's own errors become."""
    training_rows: TrainingRows = lambda _spec, _index, rows: np.arange(rows, dtype=np.int64)
    """The rows that preprocessing learns its figures from."""
    coefficients: Callable[[SavedModel, Sequence[str]], list[Coefficient]] = lambda _model, _columns: []
    """Regularisation coefficients in a saved model, for columns of these names; none if the model has none."""
    exported: Callable[[RunSpec, int, SavedModel], Layers] | None = None
    """A saved model of this party's block as plain layers; None where it is no such block."""
    keeps_sparse: Literal["never", "unless_scaled", "always"] = "never"
    """Whether a sparse table stays sparse; `unless_scaled` fills one whose owner declared what would fill it, which
    `always` refuses."""
    maps_rows: MapsRows = "never"
    """When the role reads a batch of rows at a time, and so works on a table that does not fit memory."""
    sits_out: bool = False
    """Whether a party may sit out rounds, so that their numbers jump; the role then checks who takes part, and decoded
    instructions say it as `participants`: two parties' masks depend on the rounds that both took part in."""


def scalar(value: int) -> Tensor:
    """A count as a tensor, for a file of tensors."""
    import torch

    return torch.tensor(value, dtype=torch.int64)
