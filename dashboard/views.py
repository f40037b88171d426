"""What the page shows, as plain data, and what it may ask of the coordinator that it belongs to.

Nothing here knows gRPC: the coordinator hands in an object that satisfies `RunAccess`.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from parley.spec.events import Body

ENDED = frozenset({"COMPLETED", "FAILED", "CANCELLED", "BUDGET_EXHAUSTED"})


class Refused(Exception):
    """The coordinator refused; the text says what is wrong and what to do."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason = status, reason


@dataclass(frozen=True)
class RunView:
    """A run and its state."""

    run_id: str
    name: str
    algorithm: str
    state: str
    reason: str
    step: int
    steps: int
    parties: Sequence[str]
    metrics: Mapping[str, float]
    created: str
    changed: str
    attempt: int
    spec_yaml: str
    tags: Sequence[str] = ()
    queue_position: int = 0
    """Its place among the runs that wait for their turn, from 1; 0 if it does not wait."""
    started_by: str = ""
    protocol: int = 0
    """Version of the protocol in which its parties were last asked; 0 if nobody noted it."""


@dataclass(frozen=True)
class EventView:
    """Something that happened in a run."""

    sequence: int
    time: str
    kind: str
    message: str
    step: int
    metrics: Mapping[str, float]
    body: Body | None = None
    """What happened, typed; none in events that 0.1.0 wrote."""


@dataclass(frozen=True)
class TableView:
    """A table that a party offers."""

    name: str
    rows: int
    features: int
    problem: str
    """Why nobody can use it; empty if somebody can."""
    notice: str
    """What a run that trains on it needs first; empty if nothing."""
    loaded_percent: int
    """How much of it has been read."""


@dataclass(frozen=True)
class PartyView:
    """A party and its state."""

    name: str
    address: str
    reachable: bool
    version: str
    problem: str
    """Why it cannot take part in anything; troubles of single tables stand with them."""
    tables: Sequence[TableView]
    latency_milliseconds: float
    sent_bytes: float = 0.0
    """To this party since the coordinator started."""
    received_bytes: float = 0.0
    """From this party since the coordinator started."""


@dataclass(frozen=True)
class ReleaseView:
    """One type of label release: how often, to whom, at what price."""

    mechanism: str
    releases: int
    largest_count: int
    """Most releases of any one record."""
    epsilon: float
    """Of that record, added up."""
    recipients: Sequence[str]


@dataclass(frozen=True)
class EntryView:
    """A ledger entry."""

    sequence: int
    time: str
    kind: str
    mechanism: str
    recipients: Sequence[str]
    releases: int
    records: int
    epsilon: float
    hash: str


@dataclass(frozen=True)
class LedgerView:
    """What a run has released about labels."""

    entries: Sequence[EntryView]
    releases: Sequence[ReleaseView]
    epsilon: float
    """The best bound over everything released, at `delta`."""
    pure_epsilon: float
    delta: float
    budget: float | None
    broken: str
    """The first broken link of the chain; empty if it is whole."""


@dataclass(frozen=True)
class CoefficientsView:
    """Coefficients that a run has found at one party, as far as its policy shares them."""

    party: str
    whole: float | None
    """One for all of its columns, where the run tunes one."""
    columns: Mapping[str, float]
    """One for each column, where the run tunes those."""
    kept: str
    """Why there are none; empty if these are all."""
    inference: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """By column, where the run gives them: standard error, p-value, and the ends of the 95 % interval."""
    figures: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """By column, other figures, by their names."""


@dataclass(frozen=True)
class CrossingView:
    """A field that leaves an organisation in a run."""

    field: str
    derived_from: str
    protection: str
    seen_by: str


@dataclass(frozen=True)
class StatementView:
    """Something that leaves in a run, in a sentence."""

    sender: str
    """Who sends it: the beginning of the sentence."""
    text: str
    moment: str
    """training, any time, or prediction."""
    fields: Sequence[CrossingView]
    """The fields that carry it."""


@dataclass(frozen=True)
class ProblemView:
    """A mistake in a spec."""

    field: str
    line: int
    message: str


@dataclass(frozen=True)
class AuditView:
    """Something that somebody asked of the coordinator."""

    sequence: int
    time: str
    role: str
    name: str
    address: str
    action: str
    subject: str
    outcome: str


@dataclass(frozen=True)
class ForecastView:
    """What a run would send if every iteration is made."""

    rounds: int
    sent_bytes: int
    received_bytes: int
    peer_bytes: int = 0
    """Between the parties."""


@dataclass(frozen=True)
class CheckView:
    """What is wrong with a spec, and what a run of it would send."""

    problems: Sequence[ProblemView]
    forecast: ForecastView | None = None
    """None where the spec has mistakes, or nobody can tell."""


@dataclass(frozen=True)
class PredictionView:
    """Predictions of some rows."""

    ids: Sequence[str]
    scores: Sequence[Sequence[float]]
    """For each row a probability for each class; one number for a logistic model or a regression."""
    classes: Sequence[str]


@dataclass(frozen=True)
class DeploymentView:
    """A model that is kept ready."""

    name: str
    version: int
    run_id: str
    table: str
    state: str
    """SERVING, OPENING or REFUSED."""
    problem: str
    earlier_versions: Sequence[int]
    deployed_by: str
    deployed: str
    rows: int
    """Answered since the coordinator started."""
    sums: int


@dataclass(frozen=True)
class ServedView:
    """What a deployed model answers."""

    ids: Sequence[str]
    scores: Sequence[Sequence[float]]
    classes: Sequence[str]
    run_id: str
    version: int


@dataclass(frozen=True)
class FeaturesView:
    """Features of one party's block that a caller brings along, row by row."""

    party: str
    columns: Sequence[str]
    values: Sequence[str]


class RunAccess(Protocol):
    """What the page asks of its coordinator. Every method may raise `Refused`."""

    async def runs(self, search: str = "") -> Sequence[RunView]:
        """Runs, newest first; `search` is part of an id or a name, or a tag."""

    async def run(self, run_id: str) -> RunView:
        """One run."""

    async def events(self, run_id: str) -> Sequence[EventView]:
        """Every event of a run so far."""

    def watch(self, run_id: str, after: int) -> AsyncIterator[tuple[EventView, RunView]]:
        """Events of a run, past ones first, until it has ended."""

    async def check(self, spec_yaml: str) -> CheckView:
        """Every mistake of a spec, and what a run of it would send."""

    async def start(self, request_id: str, spec_yaml: str, priority: int = 0) -> RunView:
        """Start a run; the same request starts it once."""

    async def cancel(self, run_id: str) -> RunView:
        """Stop a run."""

    async def resume(self, run_id: str) -> RunView:
        """Go on with a run."""

    async def tag(self, run_id: str, add: Sequence[str], remove: Sequence[str]) -> RunView:
        """Put tags on a run and take others off."""

    async def delete(self, run_id: str) -> None:
        """Forget a run that has ended."""

    async def predict(self, run_id: str, table: str, ids: Sequence[str]) -> PredictionView:
        """Predict rows of a table that every party holds, all of them if no ids are given."""

    async def deployments(self) -> Sequence[DeploymentView]:
        """What is deployed."""

    async def predict_rows(self, name: str, ids: Sequence[str], features: Sequence[FeaturesView]) -> ServedView:
        """Rows by a deployed model."""

    async def parties(self) -> Sequence[PartyView]:
        """The state of every party."""

    async def ledger(self, run_id: str) -> LedgerView:
        """What a run has released about labels."""

    async def coefficients(self, run_id: str) -> Sequence[CoefficientsView]:
        """Coefficients that a run has tuned, by party; empty if it tunes none."""

    async def audit(self) -> Sequence[AuditView]:
        """Who did what here last, newest first."""

    async def metrics(self) -> tuple[bytes, str]:
        """Figures for a monitoring system, and their content type."""

    @property
    def version(self) -> str:
        """The coordinator's version."""
