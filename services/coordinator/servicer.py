"""RunService for clients and CoordinatorService for parties: decode, ask the runs, encode."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import asdict, replace

import grpc

from parley.contracts.coordinator.v1 import coordinator_service_pb2 as parties_pb
from parley.contracts.coordinator.v1 import coordinator_service_pb2_grpc as parties_grpc
from parley.contracts.party.v1 import party_service_pb2 as party_pb
from parley.contracts.run.v1 import deployment_pb2, run_pb2, run_service_pb2, run_service_pb2_grpc
from parley.protocols.tensor.codec import INLINE_BYTES, MessageInvalid, encode_tensor
from parley.services.coordinator.alignment import AlignmentRunner, Order, Progress, Result, followed
from parley.services.coordinator.async_registry import AsyncRegistry
from parley.services.coordinator.deployments import CallerFeatures, Deployments, DeploymentStatus
from parley.services.coordinator.fleet import Fleet, PartyLost, PartyRefused, call
from parley.services.coordinator.forecasts import Unforetold
from parley.services.coordinator.negotiation import standing
from parley.services.coordinator.queue import HIGHEST_PRIORITY, LOWEST_PRIORITY
from parley.services.coordinator.registry import Filter
from parley.services.coordinator.registry_tables import EventRecord
from parley.services.coordinator.reports import LedgerReports
from parley.services.coordinator.results import coefficients_of, coefficients_page
from parley.services.coordinator.run_pages import decode_states, run_message, runs_page
from parley.services.coordinator.runs import Page, RunSupervisor
from parley.services.wire.alignment_codec import decode_duplicates
from parley.services.wire.authorisation import caller_of
from parley.services.wire.event_codec import encode_metrics, set_body
from parley.services.wire.framing import framed, reader, receive
from parley.services.wire.pages import decode_page_token, page_of, text_pages
from parley.services.wire.version import VERSION
from parley.spec.parsing import check_spec

PAGE_SIZE, LARGEST_PAGE = 100, 1000
SHORTEST_RETENTION_SECONDS, LONGEST_RETENTION_SECONDS = 3600.0, 1000 * 366 * 86400.0
LARGEST_SEQUENCE = (1 << 63) - 1
"""Databases count no further; no run has so many events."""


class RunServicer(run_service_pb2_grpc.RunServiceServicer):
    """What a client of the active organisation may ask."""

    def __init__(
        self,
        runs: RunSupervisor,
        registry: AsyncRegistry,
        fleet: Fleet,
        ledgers: LedgerReports,
        alignments: AlignmentRunner,
        deployments: Deployments,
    ) -> None:
        self._runs, self._registry, self._fleet, self._ledgers = runs, registry, fleet, ledgers
        self._alignments, self._deployments = alignments, deployments

    async def CheckSpec(
        self, request: run_service_pb2.CheckSpecRequest, context: grpc.aio.ServicerContext
    ) -> run_service_pb2.CheckSpecResponse:
        """Every mistake of a spec."""
        problems = await asyncio.to_thread(check_spec, request.spec_yaml)
        if problems:
            return run_service_pb2.CheckSpecResponse(
                problems=[run_pb2.SpecProblem(field=p.field, line=p.line, message=p.message) for p in problems]
            )
        try:
            foretold = await self._runs.foretell(request.spec_yaml)
        except Unforetold as reason:
            return run_service_pb2.CheckSpecResponse(unforetold=str(reason))
        return run_service_pb2.CheckSpecResponse(forecast=run_pb2.RunForecast(**asdict(foretold)))

    async def StartRun(
        self, request: run_service_pb2.StartRunRequest, context: grpc.aio.ServicerContext
    ) -> run_service_pb2.StartRunResponse:
        """Register and start a run."""
        if not 1 <= len(request.request_id) <= 128:
            raise MessageInvalid("request_id: choose 1 to 128 characters, the same for every retry of this call")
        if not LOWEST_PRIORITY <= request.priority <= HIGHEST_PRIORITY:
            raise MessageInvalid(f"priority: choose {LOWEST_PRIORITY} to {HIGHEST_PRIORITY}")
        caller = caller_of(context)
        owner = f"{caller.role} {caller.name}"
        record = await self._runs.start(request.request_id, request.spec_yaml, owner, request.priority)
        return run_service_pb2.StartRunResponse(run=run_message(record))

    async def GetRun(
        self, request: run_service_pb2.GetRunRequest, context: grpc.aio.ServicerContext
    ) -> run_service_pb2.GetRunResponse:
        """One run."""
        return run_service_pb2.GetRunResponse(run=run_message(await self._registry.get(request.run_id)))

    async def ListRuns(
        self, request: run_service_pb2.ListRunsRequest, context: grpc.aio.ServicerContext
    ) -> run_service_pb2.ListRunsResponse:
        """Runs, newest first."""
        only = Filter(decode_states(request.states), request.algorithm, request.name, request.tag)
        limit, before = min(request.page_size or PAGE_SIZE, LARGEST_PAGE), decode_page_token(request.page_token)
        return runs_page(await self._registry.page(limit + 1, before, only), limit)

    async def WatchRun(
        self, request: run_service_pb2.WatchRunRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[run_service_pb2.WatchRunResponse]:
        """Events until the run ends."""
        after = min(request.after_sequence, LARGEST_SEQUENCE)
        sent = False
        async for event, record in self._runs.watch(request.run_id, after):
            run = run_message(replace(record, spec_yaml="") if sent else record)  # the spec once, not with every event
            yield run_service_pb2.WatchRunResponse(event=event_message(event), run=run)
            sent = True

    async def CancelRun(
        self, request: run_service_pb2.CancelRunRequest, context: grpc.aio.ServicerContext
    ) -> run_service_pb2.CancelRunResponse:
        """Stop a run."""
        return run_service_pb2.CancelRunResponse(run=run_message(await self._runs.cancel(request.run_id)))

    async def ResumeRun(
        self, request: run_service_pb2.ResumeRunRequest, context: grpc.aio.ServicerContext
    ) -> run_service_pb2.ResumeRunResponse:
        """Go on with a run."""
        return run_service_pb2.ResumeRunResponse(run=run_message(await self._runs.resume(request.run_id)))

    async def TagRun(
        self, request: run_service_pb2.TagRunRequest, context: grpc.aio.ServicerContext
    ) -> run_service_pb2.TagRunResponse:
        """Put tags on a run and take others off."""
        record = await self._runs.tag(request.run_id, list(request.add), list(request.remove))
        return run_service_pb2.TagRunResponse(run=run_message(record))

    async def DeleteRun(
        self, request: run_service_pb2.DeleteRunRequest, context: grpc.aio.ServicerContext
    ) -> run_service_pb2.DeleteRunResponse:
        """Forget a run."""
        await self._runs.delete(request.run_id)
        return run_service_pb2.DeleteRunResponse()

    async def PruneRuns(
        self, request: run_service_pb2.PruneRunsRequest, context: grpc.aio.ServicerContext
    ) -> run_service_pb2.PruneRunsResponse:
        """Forget runs that ended long ago."""
        if not SHORTEST_RETENTION_SECONDS <= request.older_than_seconds <= LONGEST_RETENTION_SECONDS:
            raise MessageInvalid("older_than_seconds: give at least an hour, and at most a thousand years")
        states = decode_states(request.states)
        found, more = await self._runs.prune(request.older_than_seconds, states, dry_run=request.dry_run)
        return run_service_pb2.PruneRunsResponse(run_ids=found, more=more)

    async def Predict(
        self, request: run_service_pb2.PredictRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[run_service_pb2.PredictResponse]:
        """Scores, page by page."""
        told, run_id, table = False, request.run_id, request.table
        if self._deployments.is_deployed(run_id):
            if request.ids and not table:
                caller, ids = caller_of(context).name, list(request.ids)
                answer = await self._deployments.predict(run_id, caller, ids)
                for message in prediction_messages(Page(ids, answer.scores, answer.classes), answer.classes):
                    yield message
                return
            run_id, deployed = self._deployments.run_of(run_id)
            table = table or deployed
        async for page in self._runs.predict(run_id, table, list(request.ids)):
            for message in prediction_messages(page, () if told else page.classes):
                yield message
            told = True

    async def PredictRows(
        self, request: deployment_pb2.PredictRowsRequest, context: grpc.aio.ServicerContext
    ) -> deployment_pb2.PredictRowsResponse:
        """Rows by a deployed model."""
        features = [CallerFeatures(each.party, each.columns, each.values) for each in request.features]
        answer = await self._deployments.predict(request.name, caller_of(context).name, request.ids, features)
        blobs: deque[memoryview] = deque()
        scores = encode_tensor(answer.scores, blobs)
        if blobs:
            raise MessageInvalid("ids: name fewer rows, so that their scores fit a message")
        return deployment_pb2.PredictRowsResponse(
            scores=scores, classes=answer.classes, run_id=answer.record.run_id, version=answer.record.version
        )

    async def Deploy(
        self, request: deployment_pb2.DeployRequest, context: grpc.aio.ServicerContext
    ) -> deployment_pb2.DeployResponse:
        """Keep a run ready under a name."""
        by = caller_of(context).name
        status = await self._deployments.deploy(request.name, request.run_id, request.table, by)
        return deployment_pb2.DeployResponse(deployment=deployment_message(status))

    async def RollBackDeployment(
        self, request: deployment_pb2.RollBackDeploymentRequest, context: grpc.aio.ServicerContext
    ) -> deployment_pb2.RollBackDeploymentResponse:
        """Go back to the version before."""
        status = await self._deployments.roll_back(request.name)
        return deployment_pb2.RollBackDeploymentResponse(deployment=deployment_message(status))

    async def Undeploy(
        self, request: deployment_pb2.UndeployRequest, context: grpc.aio.ServicerContext
    ) -> deployment_pb2.UndeployResponse:
        """Close a deployment."""
        await self._deployments.undeploy(request.name)
        return deployment_pb2.UndeployResponse()

    async def ListDeployments(
        self, request: deployment_pb2.ListDeploymentsRequest, context: grpc.aio.ServicerContext
    ) -> deployment_pb2.ListDeploymentsResponse:
        """What is deployed."""
        found = [deployment_message(status) for status in await self._deployments.all()]
        return deployment_pb2.ListDeploymentsResponse(deployments=found)

    async def ListParties(
        self, request: run_service_pb2.ListPartiesRequest, context: grpc.aio.ServicerContext
    ) -> run_service_pb2.ListPartiesResponse:
        """Call every party of the address book."""
        statuses = await asyncio.gather(*(self._status(name) for name in self._fleet.names))
        return run_service_pb2.ListPartiesResponse(parties=statuses, version=VERSION, clock_seconds=time.time())

    async def GetLedger(
        self, request: run_service_pb2.GetLedgerRequest, context: grpc.aio.ServicerContext
    ) -> run_service_pb2.GetLedgerResponse:
        """The label ledger of a run, page by page."""
        entries, report, broken, evaluations = await self._ledgers.of(request.run_id)
        page, following = page_of(entries, request.page_token)
        return run_service_pb2.GetLedgerResponse(
            entries=page, report=report, broken=broken, evaluations=evaluations, next_page_token=following
        )

    async def GetCoefficients(
        self, request: run_service_pb2.GetCoefficientsRequest, context: grpc.aio.ServicerContext
    ) -> run_service_pb2.GetCoefficientsResponse:
        """Coefficients that a run has tuned, asked of its parties."""
        record = await self._registry.get(request.run_id)
        return coefficients_page(await coefficients_of(self._fleet, record), request.page_token)

    async def Align(
        self, request: run_service_pb2.AlignRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[run_service_pb2.AlignResponse]:
        """Align rows; progress until the result."""
        order = Order(
            request.name,
            tuple((party.name, party.table) for party in request.parties),
            request.labels,
            decode_duplicates(request.duplicates),
        )
        async for step in followed(self._alignments, order):
            yield alignment_message(step)

    async def _status(self, name: str) -> run_pb2.PartyStatus:
        status = run_pb2.PartyStatus(name=name, address=self._fleet.address(name))
        started, clock = time.perf_counter(), time.time()
        try:
            answer = await call(name, lambda: self._fleet.stub(name).Describe(party_pb.DescribeRequest()))
        except (PartyLost, PartyRefused) as error:
            status.problem = str(error)
            return status
        status.reachable, status.version = True, answer.version
        status.tables.extend(table.name for table in answer.tables)
        status.latency_milliseconds = 1000 * (time.perf_counter() - started)
        # The party reads its clock some time within the call: inside its span there is no skew.
        early, late = answer.clock_seconds - clock, answer.clock_seconds - time.time()
        status.clock_skew_seconds = early if early < 0 else max(0.0, late)
        status.offers.extend(
            run_pb2.PartyTable(
                name=table.name,
                rows=table.rows,
                features=table.features,
                problem=table.problem,
                notice=table.notice,
                loaded_percent=table.loaded_percent,
            )
            for table in answer.tables
        )
        status.algorithms.extend(answer.algorithms)
        status.aggregations.extend(answer.aggregations)
        status.protocol, status.problem = standing(name, answer)
        return status


class PartiesServicer(parties_grpc.CoordinatorServiceServicer):
    """What a party may ask."""

    def __init__(self, fleet: Fleet, registry: AsyncRegistry, runs: RunSupervisor) -> None:
        self._fleet, self._registry, self._runs = fleet, registry, runs

    async def Announce(
        self, request: parties_pb.AnnounceRequest, context: grpc.aio.ServicerContext
    ) -> parties_pb.AnnounceResponse:
        """Note that a party has come up."""
        name = caller_of(context).name
        self._fleet.address(name)
        self._fleet.arrived(name)
        waiting = await self._registry.waiting(name)
        return parties_pb.AnnounceResponse(version=VERSION, waiting_runs=waiting)

    async def AskSlopes(
        self, request_iterator: AsyncIterator[parties_pb.AskSlopesRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[parties_pb.AskSlopesResponse]:
        """Answer a party's questions, one after the other."""
        following, party = reader(request_iterator), caller_of(context).name
        async for request in request_iterator:
            if request.WhichOneof("body") != "question":
                raise MessageInvalid("a question was expected")
            blobs = await receive(request, following)
            found, announced = await self._runs.answer(party, request.question.session_id, request.question, blobs)
            for answer in framed(parties_pb.AskSlopesResponse, announced, slopes=found):
                yield answer


def prediction_messages(page: Page, classes: Sequence[str]) -> Iterator[run_service_pb2.PredictResponse]:
    """A page of predictions in messages that are small enough, whatever the ids and however many classes."""
    names = text_pages(classes)
    rows = max(1, INLINE_BYTES // max(1, page.scores[:1].nbytes))  # so few that the scores need no chunks
    for first in range(0, len(page.ids), rows):
        done = first
        for ids in text_pages(page.ids[first : first + rows]):
            scores = encode_tensor(page.scores[done : done + len(ids)], deque())
            yield run_service_pb2.PredictResponse(ids=ids, scores=scores, classes=next(names, ()))
            done += len(ids)
    for rest in names:  # more pages of names than of rows
        if rest:
            empty = encode_tensor(page.scores[:0], deque())
            yield run_service_pb2.PredictResponse(scores=empty, classes=rest)


def deployment_message(status: DeploymentStatus) -> deployment_pb2.Deployment:
    """A deployment as clients see it."""
    record = status.record
    return deployment_pb2.Deployment(
        name=record.name,
        version=record.version,
        run_id=record.run_id,
        table=record.table_name,
        state=deployment_pb2.DeploymentState.Value(f"DEPLOYMENT_STATE_{status.state}"),
        problem=status.problem,
        earlier_versions=status.earlier,
        deployed_by=record.deployed_by,
        deployed=record.deployed,
        rows=status.rows,
        sums=status.sums,
    )


def alignment_message(step: Progress | Result) -> run_service_pb2.AlignResponse:
    """A step of an alignment, or its result, as clients see it."""
    if isinstance(step, Progress):
        return run_service_pb2.AlignResponse(stage=step.stage, done=step.done, total=step.total)
    tables = [run_service_pb2.AlignedTable(**asdict(table)) for table in step.tables]
    return run_service_pb2.AlignResponse(
        stage="done", finished=True, matched=step.matched, id_digest=step.digest, tables=tables
    )


def event_message(event: EventRecord) -> run_pb2.RunEvent:
    """An event as clients see it."""
    message = run_pb2.RunEvent(
        sequence=event.sequence,
        time=event.time,
        kind=event.kind,
        message=event.message,
        step=event.step,
        metrics=encode_metrics(event.metrics),
        state=run_pb2.RunState.Value(f"RUN_STATE_{event.state}"),
    )
    set_body(message, event.body)
    return message
