"""What happens to a run, as data: the body of each event. The sentence that goes with it is for people only.

parley/run/v1/run.proto says when each is written; the registry keeps them as JSON.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal

TOTALS = ("rounds", "bytes", "label releases", "seconds")
"""Metrics that count a run's work; every other one measures its model."""

Metrics = Mapping[str, float]


def is_detail(name: str) -> bool:
    """Whether a metric is one of many about one thing: a cell of a matrix, a point of a curve, an interval's end."""
    return "/" in name


def without_details(metrics: Metrics) -> dict[str, float]:
    """The metrics that stand for themselves."""
    return {name: value for name, value in metrics.items() if not is_detail(name)}


def with_intervals(metrics: Metrics) -> dict[str, Any]:
    """The metrics that stand for themselves, those that have an interval with its ends."""
    ends = {name: (metrics.get(f"{name}/low"), metrics.get(f"{name}/high")) for name in metrics}
    return {
        name: value if None in ends[name] else f"{value:.4g} ({ends[name][0]:.3g} to {ends[name][1]:.3g})"
        for name, value in without_details(metrics).items()
    }


def newest(before: Metrics, after: Metrics) -> dict[str, float]:
    """Metrics with newer ones: an evaluation replaces all details of the one before, which may have had others."""
    evaluated = any(name.startswith(("test ", "validation ")) for name in after)
    return {**(without_details(before) if evaluated else before), **after}


@dataclass(frozen=True)
class RunTotals:
    """The work of a run so far."""

    rounds: int = 0
    bytes: int = 0
    label_releases: int = 0
    seconds: float = 0.0

    @classmethod
    def of(cls, metrics: Metrics) -> "RunTotals":
        """The totals among a run's metrics."""
        rounds, crossed, releases, seconds = (metrics.get(name, 0.0) for name in TOTALS)
        return cls(int(rounds), int(crossed), int(releases), seconds)

    @property
    def metrics(self) -> dict[str, float]:
        """As metrics of a run."""
        values = (self.rounds, self.bytes, self.label_releases, self.seconds)
        return {name: float(value) for name, value in zip(TOTALS, values, strict=True)}


@dataclass(frozen=True)
class RunStateChange:
    """A run is registered, begins an attempt, or ends."""

    kind: ClassVar[str] = "state"
    attempt: int = 0
    """The attempt that begins, from 1; 0 where none does."""
    from_step: int = 0
    """The iteration that the attempt begins from."""
    reason: str = ""
    """Why the run stands where it does."""
    left_out: tuple[str, ...] = ()
    """Parties that a completed run went on without: they have no final model."""
    totals: RunTotals | None = None
    """At the end of an attempt."""
    model_step: int = 0
    """The iteration whose model was kept as the best; 0 where that is the last one, or the run chooses none."""
    measured: Metrics = field(default_factory=dict)
    """What was measured of that model."""

    @property
    def metrics(self) -> dict[str, float]:
        """What changes among the run's metrics."""
        left = {"parties left out": float(len(self.left_out))} if self.left_out else {}
        return {**self.measured, **left, **(self.totals.metrics if self.totals else {})}


@dataclass(frozen=True)
class RunProgress:
    """A checkpoint was committed, or an iteration was done that measured nothing on held-out rows."""

    kind: ClassVar[str] = "progress"
    totals: RunTotals
    checkpoint: int = 0
    """The checkpoint; 0 if none was committed."""
    measured: Metrics = field(default_factory=dict)

    @property
    def metrics(self) -> dict[str, float]:
        """What changes among the run's metrics."""
        return {**self.measured, **self.totals.metrics}


@dataclass(frozen=True)
class RunEvaluation:
    """The model was measured on held-out rows."""

    kind: ClassVar[str] = "evaluation"
    totals: RunTotals
    measured: Metrics

    @property
    def metrics(self) -> dict[str, float]:
        """What changes among the run's metrics."""
        return {**self.measured, **self.totals.metrics}


@dataclass(frozen=True)
class RunPrivacy:
    """The run's label ledger has grown."""

    kind: ClassVar[str] = "privacy"
    metrics: ClassVar[Metrics] = {}
    epsilon: float
    """ε of the most exposed label after the newest entry, at `delta`; infinite where labels are unprotected."""
    delta: float
    budget: float
    """Largest ε; infinite if there is none."""
    largest_count: int
    """Releases of the most exposed label by the newest entry's mechanism."""
    entries: int
    """Entries of the ledger."""
    head: str
    """Hash of the newest one: whoever keeps it can tell a ledger that was rewritten."""


@dataclass(frozen=True)
class RunParty:
    """Something happened to one party."""

    kind: ClassVar[str] = "party"
    metrics: ClassVar[Metrics] = {}
    party: str
    change: Literal["lost", "left", "warned"]
    detail: str = ""
    """What is wrong with it, or what it warns of."""
    goes_on: bool = False
    """Whether the run goes on without it."""
    round: int = 0
    """The round at which it left, from 1."""
    remaining: int = 0
    """Parties that are left then."""


@dataclass(frozen=True)
class RunData:
    """A party opened its table for an attempt, or an alignment chose the rows."""

    kind: ClassVar[str] = "data"
    metrics: ClassVar[Metrics] = {}
    rows: int
    party: str = ""
    """Whose table; empty if this is about the alignment."""
    columns: int = 0
    id_sha256: str = ""
    """SHA-256 over the ids of the rows, in hex."""
    alignment: str = ""
    """The alignment that the rows are common in."""


@dataclass(frozen=True)
class RunWarning:
    """The run goes on, but not as it should."""

    kind: ClassVar[str] = "warning"
    metrics: ClassVar[Metrics] = {}
    topic: str
    """What is wrong, in a few words."""
    finding: str
    """What was seen, as a sentence without figures."""
    remedy: str
    """What to change, by the names of a spec."""

    @property
    def sentence(self) -> str:
        """For people."""
        return f"{self.finding}: {self.remedy}"


Body = RunStateChange | RunProgress | RunEvaluation | RunPrivacy | RunParty | RunData | RunWarning
BODIES: Mapping[str, type[Any]] = {
    body.kind: body for body in (RunStateChange, RunProgress, RunEvaluation, RunPrivacy, RunParty, RunData, RunWarning)
}
"""Bodies by kind."""


def to_json(body: Body) -> str:
    """A body as the registry keeps it, under its kind."""
    return json.dumps(asdict(body))


def from_json(kind: str, text: str) -> Body:
    """A body that `to_json` wrote."""
    fields = json.loads(text)
    if fields.get("totals"):
        fields["totals"] = RunTotals(**fields["totals"])
    if "left_out" in fields:
        fields["left_out"] = tuple(fields["left_out"])
    body: Body = BODIES[kind](**fields)
    return body


def measured(body: Body | None, metrics: Metrics) -> Metrics:
    """What an event measured of the model; an event of 0.1.0 has no body and mixes it with the totals."""
    if body is None:
        return {name: value for name, value in metrics.items() if name not in TOTALS}
    return body.measured if isinstance(body, RunProgress | RunEvaluation) else {}
