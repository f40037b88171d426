"""The coordinator's web page: plain data for `dashboard`, and the server that carries it."""

import asyncio
import contextlib
import importlib.util
import json
import logging
import socket
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import asdict

import uvicorn

from parley.contracts.party.v1 import party_service_pb2 as party_pb
from parley.contracts.run.v1.run_service_pb2 import PartyCoefficients
from parley.dashboard.access import Access, read_or_create_token, visitor
from parley.dashboard.app import make_app
from parley.dashboard.providers import Provider, ProviderTerms
from parley.dashboard.tokens import TokenFile
from parley.dashboard.views import (
    AuditView,
    CheckView,
    CoefficientsView,
    DeploymentView,
    EntryView,
    EventView,
    FeaturesView,
    ForecastView,
    LedgerView,
    PartyView,
    PredictionView,
    ProblemView,
    Refused,
    ReleaseView,
    RunView,
    ServedView,
    TableView,
)
from parley.privacy.accounting import Composed, PureAccountant, from_json
from parley.privacy.ledger import Ledger, RunNotOpen
from parley.services.coordinator.async_registry import AsyncRegistry
from parley.services.coordinator.config import CoordinatorConfig, ProviderConfig, WebConfig
from parley.services.coordinator.database_threads import DatabaseThreads
from parley.services.coordinator.deployments import CallerFeatures, Deployments
from parley.services.coordinator.fleet import Fleet, PartyLost, PartyRefused, call
from parley.services.coordinator.forecasts import Unforetold
from parley.services.coordinator.negotiation import standing
from parley.services.coordinator.permissions import permitted
from parley.services.coordinator.queue import HIGHEST_PRIORITY, LOWEST_PRIORITY
from parley.services.coordinator.refusals import CATALOGUE
from parley.services.coordinator.registry import Filter
from parley.services.coordinator.registry_tables import EventRecord, RunRecord
from parley.services.coordinator.reports import REPORT_SECONDS, entries_of, report_of
from parley.services.coordinator.results import coefficients_of
from parley.services.coordinator.runs import RunSupervisor
from parley.services.coordinator.web_audit import AuditedPage
from parley.services.coordinator.web_server import PageServer
from parley.services.wire import metrics
from parley.services.wire.audit import AuditTrail
from parley.services.wire.coefficient_figures import figures_of, inference_of
from parley.services.wire.configuration import ConfigInvalid
from parley.services.wire.refusals import find
from parley.services.wire.transport import PortTaken
from parley.services.wire.version import VERSION
from parley.spec.parsing import check_spec
from parley.storage.failures import StorageFailed

MOST_RUNS = 200
MOST_PREDICTED = 20_000
"""Rows whose predictions a browser is sent at once."""
HEALTH_SECONDS = 5.0
"""The parties' state is asked for at most this often, for all browsers together."""
GRACE_SECONDS = 1
HTTP_STATUS = {
    "INVALID_ARGUMENT": 400,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "FAILED_PRECONDITION": 409,
    "RESOURCE_EXHAUSTED": 429,
    "UNAVAILABLE": 503,
}
ASK_LATER = frozenset({"TOO_MANY_ROWS_ASKED"})
"""Refusals of a party that time takes away: 429 tells programs so."""

logger = logging.getLogger(__name__)


class WebRuns:
    """`parley.dashboard.views.RunAccess` on top of the coordinator's own runs, registry, ledger and fleet."""

    version = VERSION

    def __init__(
        self,
        runs: RunSupervisor,
        registry: AsyncRegistry,
        fleet: Fleet,
        ledger: Ledger,
        threads: DatabaseThreads,
        trail: AuditTrail,
        deployments: Deployments,
    ) -> None:
        self._runs, self._registry, self._fleet, self._ledger = runs, registry, fleet, ledger
        self._threads, self._trail, self._deployments = threads, trail, deployments
        self._states: dict[str, int] = {}
        metrics.REGISTRY.register(metrics.RunStates(lambda: self._states))
        self._health: tuple[float, Sequence[PartyView]] = (0.0, ())
        self._asking = asyncio.Lock()

    async def runs(self, search: str = "") -> Sequence[RunView]:
        """Runs, newest first; `search` is part of an id or a name, or a tag."""
        with refusals_as_http():
            return [_run(record) for _, record in await self._registry.page(MOST_RUNS, None, Filter(name=search))]

    async def run(self, run_id: str) -> RunView:
        """One run."""
        with refusals_as_http():
            return _run(await self._registry.get(run_id))

    async def events(self, run_id: str) -> Sequence[EventView]:
        """Every event of a run so far."""
        found: list[EventRecord] = []
        with refusals_as_http():
            while page := await self._registry.events(run_id, found[-1].sequence if found else 0):
                found += page
        return [_event(event) for event in found]

    async def watch(self, run_id: str, after: int) -> AsyncIterator[tuple[EventView, RunView]]:
        """Events of a run until it has ended."""
        async for event, record in self._runs.watch(run_id, after):
            yield _event(event), _run(record)

    async def check(self, spec_yaml: str) -> CheckView:
        """Every mistake of a spec, and what a run of it would send."""
        found = await asyncio.to_thread(check_spec, spec_yaml)
        if found:
            return CheckView([ProblemView(problem.field, problem.line, problem.message) for problem in found])
        try:
            return CheckView((), ForecastView(**asdict(await self._runs.foretell(spec_yaml))))
        except Unforetold:
            return CheckView(())

    async def start(self, request_id: str, spec_yaml: str, priority: int = 0) -> RunView:
        """Start a run."""
        if not 1 <= len(request_id) <= 128:
            raise Refused(400, "MESSAGE_INVALID", "request_id: choose 1 to 128 characters, the same for every retry")
        if not LOWEST_PRIORITY <= priority <= HIGHEST_PRIORITY:
            raise Refused(400, "MESSAGE_INVALID", f"priority: choose {LOWEST_PRIORITY} to {HIGHEST_PRIORITY}")
        owner = f"{visitor.get().role} {visitor.get().name}"
        with refusals_as_http():
            return _run(await self._runs.start(request_id, spec_yaml, owner, priority))

    async def cancel(self, run_id: str) -> RunView:
        """Stop a run."""
        with refusals_as_http():
            return _run(await self._runs.cancel(run_id))

    async def resume(self, run_id: str) -> RunView:
        """Go on with a run."""
        with refusals_as_http():
            return _run(await self._runs.resume(run_id))

    async def tag(self, run_id: str, add: Sequence[str], remove: Sequence[str]) -> RunView:
        """Put tags on a run and take others off."""
        with refusals_as_http():
            return _run(await self._runs.tag(run_id, add, remove))

    async def delete(self, run_id: str) -> None:
        """Forget a run that has ended."""
        with refusals_as_http():
            await self._runs.delete(run_id)

    async def predict(self, run_id: str, table: str, ids: Sequence[str]) -> PredictionView:
        """Predict rows of a table that every party holds, all of them if no ids are given."""
        names: list[str] = []
        scores: list[list[float]] = []
        classes: Sequence[str] = ()
        with refusals_as_http():
            async for page in self._runs.predict(run_id, table, ids):
                names += page.ids
                scores += page.scores.tolist()
                classes = page.classes
                if len(names) > MOST_PREDICTED:
                    raise Refused(
                        413,
                        "TOO_MANY_ROWS",
                        f"the page shows predictions of {MOST_PREDICTED} rows at most: name some of them, or write all "
                        f"with `parley predict {run_id} --out predictions.csv`",
                    )
        return PredictionView(names, scores, classes)

    async def deployments(self) -> Sequence[DeploymentView]:
        """What is deployed."""
        with refusals_as_http():
            return [
                DeploymentView(
                    name=each.record.name,
                    version=each.record.version,
                    run_id=each.record.run_id,
                    table=each.record.table_name,
                    state=each.state,
                    problem=each.problem,
                    earlier_versions=each.earlier,
                    deployed_by=each.record.deployed_by,
                    deployed=each.record.deployed,
                    rows=each.rows,
                    sums=each.sums,
                )
                for each in await self._deployments.all()
            ]

    async def predict_rows(self, name: str, ids: Sequence[str], features: Sequence[FeaturesView]) -> ServedView:
        """Rows by a deployed model."""
        with refusals_as_http():
            brought = [CallerFeatures(each.party, each.columns, each.values) for each in features]
            answer = await self._deployments.predict(name, visitor.get().caller, ids, brought)
        record = answer.record
        return ServedView(ids, answer.scores.tolist(), answer.classes, record.run_id, record.version)

    async def parties(self) -> Sequence[PartyView]:
        """The state of every party."""
        async with self._asking:
            asked, parties = self._health
            if not parties or time.monotonic() - asked > HEALTH_SECONDS:
                parties = await asyncio.gather(*(self._party(name) for name in self._fleet.names))
                self._health = (time.monotonic(), parties)
            return parties

    async def ledger(self, run_id: str) -> LedgerView:
        """What a run has released about labels."""
        with refusals_as_http():
            record = await self._registry.get(run_id)
            return await self._threads.read_within(REPORT_SECONDS, self._read_ledger, record)

    async def coefficients(self, run_id: str) -> Sequence[CoefficientsView]:
        """Coefficients that a run has tuned."""
        with refusals_as_http():
            record = await self._registry.get(run_id)
            return [_coefficients(each) for each in await coefficients_of(self._fleet, record)]

    async def audit(self) -> Sequence[AuditView]:
        """Who did what here last, newest first."""
        return [
            AuditView(
                sequence=entry.sequence,
                time=entry.time,
                role=entry.role,
                name=entry.name,
                address=entry.address,
                action=entry.action,
                subject=entry.subject,
                outcome=entry.outcome,
            )
            for entry in reversed(self._trail.newest)
        ]

    async def metrics(self) -> tuple[bytes, str]:
        """Figures for Prometheus; runs by state as they were last read, while the database is away."""
        try:
            self._states = await self._registry.states()
        except StorageFailed as failure:
            logger.warning("runs are not counted: %s", failure)
        return metrics.exposition()

    def _read_ledger(self, record: RunRecord) -> LedgerView:
        try:
            entries, broken = entries_of(self._ledger, record.run_id)
        except RunNotOpen:
            return LedgerView((), (), 0.0, 0.0, 0.0, None, "")
        views = [
            EntryView(
                sequence=entry.sequence,
                time=entry.time,
                kind=entry.kind,
                mechanism=_mechanism(entry.mechanism),
                recipients=json.loads(entry.recipients),
                releases=entry.releases,
                records=entry.records,
                epsilon=entry.epsilon,
                hash=entry.hash,
            )
            for entry in entries
        ]
        if broken:
            return LedgerView(views, (), 0.0, 0.0, 0.0, None, broken)
        report = report_of(self._ledger, record.run_id, record.spec_yaml)
        return LedgerView(
            views,
            self._releases(record.run_id, views),
            epsilon=report.pld_epsilon,
            pure_epsilon=report.pure_epsilon,
            delta=report.delta,
            budget=report.budget or None,
            broken="",
        )

    def _releases(self, run_id: str, entries: Sequence[EntryView]) -> Sequence[ReleaseView]:
        found = []
        for name, counts in self._ledger.counts(run_id).items():
            own = [entry for entry in entries if entry.mechanism == _mechanism(name)]
            event = Composed(from_json(name), counts.maximum)
            found.append(
                ReleaseView(
                    mechanism=_mechanism(name),
                    releases=sum(entry.releases for entry in own),
                    largest_count=counts.maximum,
                    epsilon=PureAccountant().epsilon(event),
                    recipients=sorted({name for entry in own for name in entry.recipients}),
                )
            )
        return found

    async def _party(self, name: str) -> PartyView:
        address, (sent, received) = self._fleet.address(name), metrics.edge_totals(name)
        started = time.perf_counter()
        try:
            answer = await call(name, lambda: self._fleet.stub(name).Describe(party_pb.DescribeRequest()))
        except (PartyLost, PartyRefused) as error:
            return PartyView(name, address, False, "", str(error), (), 0.0, sent, received)
        return PartyView(
            name=name,
            address=address,
            reachable=True,
            version=answer.version,
            problem=standing(name, answer)[1],
            tables=[
                TableView(table.name, table.rows, table.features, table.problem, table.notice, table.loaded_percent)
                for table in answer.tables
            ],
            latency_milliseconds=1000 * (time.perf_counter() - started),
            sent_bytes=sent,
            received_bytes=received,
        )


@contextlib.asynccontextmanager
async def web_page(config: CoordinatorConfig, runs: WebRuns, trail: AuditTrail) -> AsyncIterator[None]:
    """Serve the page beside the coordinator, if its configuration asks for it."""
    if config.web is None:
        yield
        return
    token_file = config.web.token_file or config.state / "web.token"
    tokens = TokenFile(config.state)
    tokens.all()  # so that a damaged file is an error here
    access = Access(
        read_or_create_token(token_file),
        secure=not config.web.insecure_http,
        permissions=config.web.permissions,
        tokens=tokens,
        provider=None if config.web.provider is None else _provider(config.web.provider),
    )
    settings = uvicorn.Config(
        AuditedPage(lambda note: make_app(permitted(runs, note), access), trail),
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
        lifespan="off",
        ssl_certfile=None if config.web.insecure_http else config.identity / "certificate.pem",
        ssl_keyfile=None if config.web.insecure_http else str(config.identity / "key.pem"),
    )
    logging.getLogger("uvicorn").setLevel(logging.WARNING)  # its line on the address would be a second one
    settings.load()  # so that an unusable certificate is an error here, not in a task
    opened = _listen(config.web)
    host, port = opened.getsockname()[:2]
    address = f"{'http' if config.web.insecure_http else 'https'}://{f'[{host}]' if ':' in host else host}:{port}"
    server = PageServer(settings)
    serving = asyncio.create_task(server.serve(sockets=[opened]))
    (config.state / "web.address").write_text(address + "\n")
    logger.info("web page at %s, token in %s", address, token_file)
    if config.web.insecure_http:
        logger.warning("insecure_http: token and page cross the network in the clear; keep them on this machine")
    try:
        yield
    finally:
        server.should_exit = True
        await serving
        (config.state / "web.address").unlink(missing_ok=True)


def _provider(config: ProviderConfig) -> Provider:
    if importlib.util.find_spec("authlib") is None or importlib.util.find_spec("requests") is None:
        raise ConfigInvalid("web.provider needs two further packages: pip install 'parley-fl[oidc]'")
    secret = None if config.client_secret_file is None else config.client_secret_file.read_text().strip()
    return Provider(
        ProviderTerms(
            issuer=config.issuer,
            client_id=config.client_id,
            client_secret=secret,
            user_claim=config.user_claim,
            group_claim=config.group_claim,
            users=config.users,
            groups=config.groups,
            url=config.url,
        )
    )


def _listen(web: WebConfig) -> socket.socket:
    host, _, port = web.listen.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdigit():
        raise ConfigInvalid(f"web.listen must be host:port, such as 127.0.0.1:8443, not {web.listen!r}")
    try:
        family = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0][0]
        opened = socket.socket(family, socket.SOCK_STREAM)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind((host, int(port)))
    except OSError as error:
        raise PortTaken(f"cannot serve the web page on {web.listen}: choose another one. ({error})") from None
    return opened


@contextlib.contextmanager
def refusals_as_http() -> Iterator[None]:
    """Turn errors of the coordinator into refusals, as its gRPC interceptor does."""
    try:
        yield
    except Exception as error:
        refusal = find(CATALOGUE, error)
        if refusal is None:
            raise
        logger.info("web request refused: %s", refusal.reason)
        reason = getattr(error, "reason", None) or refusal.reason
        status = 429 if reason in ASK_LATER else HTTP_STATUS.get(refusal.status, 500)
        raise Refused(status, reason, refusal.public or str(error)) from None


def _run(record: RunRecord) -> RunView:
    return RunView(
        run_id=record.run_id,
        name=record.name,
        algorithm=record.algorithm,
        state=record.state,
        reason=record.reason,
        step=record.step,
        steps=record.steps,
        parties=record.parties,
        metrics=record.metrics,
        created=record.created,
        changed=record.changed,
        attempt=record.attempt,
        spec_yaml=record.spec_yaml,
        tags=record.tags,
        queue_position=record.position,
        started_by=record.owner,
        protocol=record.protocol,
    )


def _coefficients(found: PartyCoefficients) -> CoefficientsView:
    whole = next((one.value for one in found.coefficients if not one.column), None)
    columns = {one.column: one.value for one in found.coefficients if one.column and not one.figure}
    return CoefficientsView(
        found.party, whole, columns, found.kept, inference_of(found.coefficients), figures_of(found.coefficients)
    )


def _event(event: EventRecord) -> EventView:
    return EventView(event.sequence, event.time, event.kind, event.message, event.step, event.metrics, event.body)


def _mechanism(text: str) -> str:
    """A release's name and settings for people; the ledger keeps them as one line of JSON."""
    fields = json.loads(text)
    return ", ".join([fields.pop("kind").replace("_", " "), *(f"{name} {value}" for name, value in fields.items())])
