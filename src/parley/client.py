"""The Python client: connect to a coordinator, start runs, watch them, predict."""

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

import grpc
import numpy as np
from numpy.typing import NDArray

from parley.contracts.alignment.v1 import alignment_service_pb2
from parley.contracts.ledger.v1 import ledger_pb2
from parley.contracts.party.v1 import party_service_pb2
from parley.contracts.run.v1 import deployment_pb2, run_pb2, run_service_pb2, run_service_pb2_grpc
from parley.deployments import Deployment
from parley.links import Forecast
from parley.protocols.tensor.codec import decode_tensor
from parley.services.wire.certificates import load_identity
from parley.services.wire.coefficient_figures import figures_of, inference_of
from parley.services.wire.pages import text_pages
from parley.services.wire.refusals import reason_of
from parley.services.wire.transport import channel_credentials, channel_options

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CALL_SECONDS = 60.0
LARGEST_PAGE = 1000
"""Runs that one call lists at most."""
OPENING = dict.fromkeys(("StartRun", "ResumeRun", "Deploy", "RollBackDeployment"), 900.0)
"""Deadlines of calls that wait for every party to load its tables, which may take 600 s there."""
Ids = str | int | Iterable[str | int]
"""Rows by id: one, or any number of them."""
ENDED = frozenset({"COMPLETED", "FAILED", "CANCELLED", "BUDGET_EXHAUSTED"})
"""States in which nothing happens any more."""


class RequestRefused(RuntimeError):
    """The coordinator refused a request."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{message} [{reason}]")
        self.reason, self.message = reason, message


@dataclass(frozen=True)
class Prediction:
    """Scores of some rows."""

    ids: list[str]
    scores: NDArray[np.floating[Any]]
    """(rows, classes) probabilities; one column for a logistic model or a regression."""
    classes: list[str]

    @property
    def labels(self) -> list[str]:
        """The most probable class of each row."""
        if self.scores.shape[1] == 1:
            return [self.classes[int(score > 0.5)] for score in self.scores[:, 0]]
        return [self.classes[best] for best in self.scores.argmax(axis=1)]


@dataclass(frozen=True)
class TunedCoefficients:
    """Coefficients that a run has found at one party, as far as its policy shares them."""

    whole: float | None
    """One for all of the party's columns, where the run tunes one."""
    columns: dict[str, float]
    """One for each column, where the run tunes those."""
    kept: str
    """Why there are none; empty if these are all."""
    inference: dict[str, dict[str, float]] = field(default_factory=dict)
    """By column, where the run gives them: `standard_error`, `p_value`, and `low` and `high` of the 95 % interval."""
    figures: dict[str, dict[str, float]] = field(default_factory=dict)
    """By column, other figures that a run which explores has found, by their names."""


@dataclass(frozen=True)
class Ledger:
    """What a run released about labels, and what that cost."""

    entries: list[ledger_pb2.LedgerEntry]
    report: ledger_pb2.PrivacyReport
    broken: str
    """The first broken link of the chain; empty if it is whole."""
    evaluations: list[ledger_pb2.EvaluationCount] = field(default_factory=list)
    """Figures on true labels that left as metrics."""


@dataclass(frozen=True)
class AlignedTable:
    """What an organisation's table held before an alignment."""

    holder: str
    """A party, or the coordinator."""
    table: str
    rows: int
    missing: int
    """Rows without an id; left out."""
    duplicates: int
    """Rows whose id another row has too."""
    ids: int
    """Ids that took part."""


@dataclass(frozen=True)
class Alignment:
    """Rows that all organisations have, stored with each of them under a name."""

    name: str
    matched: int
    """How many there are."""
    id_digest: str
    """SHA-256 over their ids."""
    tables: list[AlignedTable]


class Run:
    """A run on the coordinator."""

    def __init__(self, federation: "Federation", message: run_pb2.Run) -> None:
        self._federation = federation
        self._message = message
        self._watched: dict[int, run_pb2.RunEvent] = {}

    def __repr__(self) -> str:
        return f"Run({self.run_id}, {self.state}, step {self._message.step} of {self._message.steps})"

    @property
    def run_id(self) -> str:
        """The coordinator's name for the run."""
        return self._message.run_id

    @property
    def state(self) -> str:
        """The run's state when it was last asked for."""
        return run_pb2.RunState.Name(self._message.state).removeprefix("RUN_STATE_")

    @property
    def reason(self) -> str:
        """Why it is in that state."""
        return self._message.reason

    @property
    def step(self) -> int:
        """Upper iterations done."""
        return self._message.step

    @property
    def steps(self) -> int:
        """Upper iterations in all."""
        return self._message.steps

    @property
    def metrics(self) -> dict[str, float]:
        """The newest value of each metric."""
        return {metric.name: metric.value for metric in self._message.metrics}

    @property
    def message(self) -> run_pb2.Run:
        """The run as the coordinator sent it."""
        return self._message

    def refresh(self) -> Self:
        """Ask for the run's state again."""
        request = run_service_pb2.GetRunRequest(run_id=self.run_id)
        self._message = self._federation.call("GetRun", request).run
        return self

    def watch(self, after: int = 0) -> Iterator[run_pb2.RunEvent]:
        """Events, past ones first, until the run ends."""
        request = run_service_pb2.WatchRunRequest(run_id=self.run_id, after_sequence=after)
        for response in self._federation.stream("WatchRun", request):
            response.run.spec_yaml = response.run.spec_yaml or self._message.spec_yaml  # it comes once
            self._message = response.run
            self._watched[response.event.sequence] = response.event
            yield response.event
        self.refresh()

    def events(self) -> list[run_pb2.RunEvent]:
        """What has happened: all of it if the run has ended, else what was watched so far."""
        if self.refresh().state in ENDED:
            return list(self.watch())
        return list(self._watched.values())

    def follow(self) -> dict[str, float]:
        """Like `result`, with a live bar in a notebook or terminal."""
        from parley.notebook import follow

        return follow(self)

    def plot(self) -> "Figure":
        """The curves so far, as a matplotlib figure that a notebook shows."""
        from parley.notebook import plot

        return plot(self)

    def _repr_html_(self) -> str:
        from parley.notebook import card

        return card(self)

    def result(self) -> dict[str, float]:
        """Wait for the end; the metrics of a completed run, or an error that says why there are none."""
        for _ in self.watch():
            pass
        if self.state != "COMPLETED":
            raise RequestRefused(self.state, self.reason or f"the run is {self.state}")
        return self.metrics

    def cancel(self) -> Self:
        """Stop the run."""
        self._message = self._federation.call("CancelRun", run_service_pb2.CancelRunRequest(run_id=self.run_id)).run
        return self

    def resume(self) -> Self:
        """Go on from the last checkpoint."""
        self._message = self._federation.call("ResumeRun", run_service_pb2.ResumeRunRequest(run_id=self.run_id)).run
        return self

    @property
    def tags(self) -> list[str]:
        """Words that the run is filed under."""
        return list(self._message.tags)

    def tag(self, *add: str, remove: Sequence[str] = ()) -> Self:
        """Put tags on the run, and take others off."""
        request = run_service_pb2.TagRunRequest(run_id=self.run_id, add=add, remove=remove)
        self._message = self._federation.call("TagRun", request).run
        return self

    def delete(self) -> None:
        """Forget the run, which must have ended. Its label ledger stays, and so does what the parties keep of it."""
        self._federation.call("DeleteRun", run_service_pb2.DeleteRunRequest(run_id=self.run_id))

    def predict(self, table: str = "", ids: Ids | None = None) -> Prediction:
        """Predict rows of a table that every party holds: all of them, or those that `ids` names, one or many."""
        return self._federation.predict(self.run_id, table, ids)

    def coefficients(self) -> dict[str, TunedCoefficients]:
        """Coefficients that the run has found, by party; empty if its algorithm tells none."""
        found: dict[str, tuple[list[party_service_pb2.TunedCoefficient], str]] = {}
        request = run_service_pb2.GetCoefficientsRequest(run_id=self.run_id)
        for page in self._federation.pages("GetCoefficients", request):
            for each in page.parties:
                found.setdefault(each.party, ([], each.kept))[0].extend(each.coefficients)
        return {party: _coefficients(listed, kept) for party, (listed, kept) in found.items()}

    def ledger(self) -> Ledger:
        """What was released about labels."""
        pages = list(self._federation.pages("GetLedger", run_service_pb2.GetLedgerRequest(run_id=self.run_id)))
        entries, last = [entry for page in pages for entry in page.entries], pages[-1]
        return Ledger(entries, last.report, last.broken, list(last.evaluations))


class Federation:
    """A coordinator, as a client sees it."""

    def __init__(self, address: str, identity: Path, coordinator: str = "coordinator") -> None:
        credentials = channel_credentials(load_identity(identity))
        options = channel_options("coordinator", coordinator)
        self._channel = grpc.secure_channel(address, credentials, options=options)
        self._stub = run_service_pb2_grpc.RunServiceStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.close()

    def start(self, spec: str | Path, request_id: str | None = None, *, priority: int = 0) -> Run:
        """Start a run from a spec: YAML text, or the path of a file. It may wait for its turn first (QUEUED)."""
        request = run_service_pb2.StartRunRequest(
            request_id=request_id or uuid.uuid4().hex, spec_yaml=spec_text(spec), priority=priority
        )
        return Run(self, self.call("StartRun", request).run)

    def check(self, spec: str | Path) -> list[run_pb2.SpecProblem]:
        """Every mistake of a spec: YAML text, or the path of a file."""
        request = run_service_pb2.CheckSpecRequest(spec_yaml=spec_text(spec))
        return list(self.call("CheckSpec", request).problems)

    def foretell(self, spec: str | Path) -> Forecast:
        """What a run of a spec would send; nothing is started. Refused where that cannot be told."""
        answer = self.call("CheckSpec", run_service_pb2.CheckSpecRequest(spec_yaml=spec_text(spec)))
        if answer.problems:
            raise RequestRefused("SPEC_INVALID", "; ".join(f"{p.field}: {p.message}" for p in answer.problems))
        if not answer.HasField("forecast"):
            raise RequestRefused("UNFORETOLD", answer.unforetold)
        found = answer.forecast
        return Forecast(found.rounds, found.sent_bytes, found.received_bytes, found.peer_bytes)

    def run(self, run_id: str) -> Run:
        """A run by its id."""
        return Run(self, self.call("GetRun", run_service_pb2.GetRunRequest(run_id=run_id)).run)

    def runs(
        self, limit: int | None = 100, *, states: Sequence[str] = (), algorithm: str = "", name: str = "", tag: str = ""
    ) -> list[Run]:
        """Runs, newest first, without their specs (`refresh` gets one): so many, or all if `limit` is None.

        `states`, `algorithm`, `name` (part of the run's id or name, or a tag) and `tag` choose among them.
        """
        request = run_service_pb2.ListRunsRequest(
            states=_states(states), algorithm=algorithm, name=name, tag=tag, page_size=LARGEST_PAGE
        )
        found: list[Run] = []
        while limit is None or len(found) < limit:
            if limit is not None:
                request.page_size = min(LARGEST_PAGE, limit - len(found))
            page = self.call("ListRuns", request)
            found += [Run(self, run) for run in page.runs]
            request.page_token = page.next_page_token
            if not page.next_page_token:
                break
        return found

    def prune(self, older_than_seconds: float, *, states: Sequence[str] = (), dry_run: bool = False) -> list[str]:
        """Forget runs that ended longer ago than this, as `Run.delete` does; returns which."""
        request = run_service_pb2.PruneRunsRequest(
            older_than_seconds=older_than_seconds, states=_states(states), dry_run=dry_run
        )
        found: list[str] = []
        while True:
            answer = self.call("PruneRuns", request)
            found += answer.run_ids
            if not answer.more:
                return found

    def predict(self, name: str, table: str = "", ids: Ids | None = None) -> Prediction:
        """Predict rows of a table that every party holds, with a run's model or a deployed one: all rows, or some."""
        wanted = None if ids is None else row_ids(ids)
        if wanted == []:
            return Prediction([], np.empty((0, 0)), [])
        names: list[str] = []
        pages: list[NDArray[Any]] = []
        classes: list[str] = []
        for some in text_pages(wanted or []):  # more rows than a message can name are asked for one page at a time
            request = run_service_pb2.PredictRequest(run_id=name, table=table, ids=some)
            classes = []
            for page in self.stream("Predict", request):
                names += page.ids
                pages.append(decode_tensor(page.scores, no_blobs(), name="scores", ndim=2))
                classes += page.classes
        return Prediction(names, np.concatenate(pages) if pages else np.empty((0, len(classes))), classes)

    def deploy(self, run: Run | str, name: str, table: str = "") -> Deployment:
        """Keep a run's model ready under a name; under one that is taken, in the place of what is there."""
        run_id = run if isinstance(run, str) else run.run_id
        request = deployment_pb2.DeployRequest(run_id=run_id, name=name, table=table)
        return Deployment(self, self.call("Deploy", request).deployment)

    def deployments(self) -> list[Deployment]:
        """What is deployed, by name."""
        found = self.call("ListDeployments", deployment_pb2.ListDeploymentsRequest()).deployments
        return [Deployment(self, each) for each in found]

    def deployment(self, name: str) -> Deployment:
        """A deployment by its name, to predict with; nothing is asked yet."""
        return Deployment(self, deployment_pb2.Deployment(name=name))

    def parties(self) -> list[run_pb2.PartyStatus]:
        """The state of every party of the address book."""
        return list(self.call("ListParties", run_service_pb2.ListPartiesRequest()).parties)

    def align(
        self,
        name: str,
        parties: Mapping[str, str] | Sequence[str],
        table: str = "train",
        labels: str | None = None,
        *,
        duplicates: Literal["refuse", "first", "drop"] = "refuse",
        progress: Callable[[str, int, int], None] = lambda *_: None,
    ) -> Alignment:
        """Find the rows that all parties and the label table have, and store them as `name` for specs to use.

        `parties` are names, or names with the table of each. Nobody learns more than the common ids and sizes.
        `duplicates` says what becomes of ids in several rows; `progress` gets the stage, ids done and ids in all.
        """
        tables = dict(parties) if isinstance(parties, Mapping) else dict.fromkeys(parties, table)
        request = run_service_pb2.AlignRequest(
            name=name,
            parties=[run_service_pb2.AlignedParty(name=party, table=own) for party, own in tables.items()],
            labels=labels or table,
            duplicates=alignment_service_pb2.Duplicates.Value(f"DUPLICATES_{duplicates.upper()}"),
        )
        for step in self.stream("Align", request):
            progress(step.stage, step.done, step.total)
            if step.finished:
                held = [
                    AlignedTable(one.holder, one.table, one.rows, one.missing, one.duplicates, one.ids)
                    for one in step.tables
                ]
                return Alignment(name, step.matched, step.id_digest, held)
        raise RequestRefused("UNFINISHED", "the coordinator ended the alignment without a result: try again")

    def call(self, method: str, request: Any) -> Any:
        """One call, its refusal as an exception."""
        try:
            return getattr(self._stub, method)(request, timeout=OPENING.get(method, CALL_SECONDS))
        except grpc.RpcError as error:
            raise _refused(error) from None

    def pages(self, method: str, request: Any) -> Iterator[Any]:
        """Every page of a list; `request` is changed from page to page."""
        while True:
            page = self.call(method, request)
            yield page
            request.page_token = page.next_page_token
            if not page.next_page_token:
                return

    def stream(self, method: str, request: Any) -> Iterator[Any]:
        """A streamed call, its refusal as an exception."""
        try:
            yield from getattr(self._stub, method)(request)
        except grpc.RpcError as error:
            raise _refused(error) from None


def connect(address: str, identity: str | Path, coordinator: str = "coordinator") -> Federation:
    """Connect to the coordinator at `address` with the client certificate in `identity`."""
    return Federation(address, Path(identity), coordinator)


def row_ids(ids: Ids) -> list[str]:
    """Ids as tables spell them; one alone is one id, not a sequence of letters."""
    several = [ids] if isinstance(ids, (str, int, float, np.generic)) else ids
    return [_row_id(identity) for identity in several]


def _row_id(identity: Any) -> str:
    plain = identity.item() if isinstance(identity, np.generic) else identity
    if isinstance(plain, float) and plain.is_integer():
        plain = int(plain)
    if isinstance(plain, bool) or not isinstance(plain, (str, int)):
        raise TypeError(f"an id is text or a whole number, not {type(plain).__name__} {plain!r:.40}")
    return str(plain)


def spec_text(spec: str | Path) -> str:
    """The text of a spec that is given as text, as a path, or as the name of a file."""
    if isinstance(spec, str):
        is_name = "\n" not in spec and (spec.endswith((".yaml", ".yml")) or ("{" not in spec and Path(spec).is_file()))
        if not is_name:
            return spec
    return Path(spec).read_text(encoding="utf-8")


def _refused(error: Any) -> RequestRefused:
    reason = reason_of(error) or error.code().name
    hint = ": is the coordinator running, and is the address right?" if reason == "UNAVAILABLE" else ""
    return RequestRefused(reason, f"{error.details()}{hint}")


def _states(names: Sequence[str]) -> list[Any]:
    """States by their names, in whatever case."""
    known = {name.removeprefix("RUN_STATE_"): number for name, number in run_pb2.RunState.items() if number}
    wrong = [name for name in names if name.upper() not in known]
    if wrong:
        raise RequestRefused("STATE_UNKNOWN", f"there is no state {wrong[0]!r}: choose among {', '.join(known)}")
    return [known[name.upper()] for name in names]


def no_blobs() -> Any:
    """For tensors that are in their message: nothing follows it."""
    from collections import deque

    return deque()


def _coefficients(listed: list[party_service_pb2.TunedCoefficient], kept: str) -> TunedCoefficients:
    return TunedCoefficients(
        next((one.value for one in listed if not one.column), None),
        {one.column: one.value for one in listed if one.column and not one.figure},
        kept,
        inference_of(listed),
        figures_of(listed),
    )
