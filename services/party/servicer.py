"""PartyService: decode, plan, pay, commit, encode. No arithmetic here."""

import asyncio
import functools
import hashlib
import logging
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from typing import Any, TypeVar

import grpc

from parley.contracts.party.v1 import party_service_pb2 as pb
from parley.contracts.party.v1 import party_service_pb2_grpc as pb_grpc
from parley.contracts.peer.v1 import peer_service_pb2 as peer_pb
from parley.contracts.peer.v1 import peer_service_pb2_grpc as peer_grpc
from parley.contracts.serving.v1 import serving_pb2
from parley.party.roles import CheckpointMissing, LocalPrivacy, Opened, PartyAlgorithm, RowEngine, SavedModel
from parley.privacy.coefficients import Coefficient
from parley.privacy.ledger import Ledger, open_ledger
from parley.privacy.noise import KeyedNoise, read_or_create_key
from parley.privacy.receipts import LedgerHead
from parley.privacy.release import CoefficientGate
from parley.privacy.session_keys import check_pin
from parley.protocols.tensor.codec import MessageInvalid
from parley.services.party.algorithms import limit_threads, party_side
from parley.services.party.alignment import aligned_tables
from parley.services.party.approvals import Approvals
from parley.services.party.asked_rows import Allowance, AskedRows
from parley.services.party.checkpoints import ModelMissing, Store
from parley.services.party.config import PartyConfig
from parley.services.party.coordinator_line import QuestionLine
from parley.services.party.exposed_runs import asked_of
from parley.services.party.exposure import Asked, Register, SumCounter, first_names, open_register
from parley.services.party.offers import Offers
from parley.services.party.peers import PeerLinks
from parley.services.party.policy import (
    PolicyRefused,
    check_coverage,
    check_policy,
    check_prediction,
    chosen_columns,
    covered_by_noise,
    floors_of,
)
from parley.services.party.preprocessing import binned_table, table_of_run, to_keep
from parley.services.party.read_digests import DataChanged, DigestingTables, changed
from parley.services.party.results import coefficients_of, told_coefficients
from parley.services.party.row_noise import RowProtection, note_exact_runs
from parley.services.party.serving import DeploymentWithdrawn, RowsDeclined, Serving, Withdrawals
from parley.services.party.sessions import PredictionRefused, Session, SessionUnknown, SpecDiffers
from parley.services.party.signed_keys import decode_vouched, encode_key, require_standing
from parley.services.party.tables import (
    TableOffer,
    TableStore,
    TooManySessions,
    chosen_rows,
    must_hold_rows,
)
from parley.services.party.transcripts import Record
from parley.services.party.versions import protocol_told, require_spoken
from parley.services.wire import metrics
from parley.services.wire.authorisation import NotAuthorised, caller_of, certificate_of
from parley.services.wire.certificates import load_identity
from parley.services.wire.coefficient_codec import encode_coefficients
from parley.services.wire.envelopes import packed, unpacked
from parley.services.wire.framing import framed, reader, receive
from parley.services.wire.receipt_codec import decode_receipt, encode_receipt
from parley.services.wire.routes import Routes
from parley.services.wire.traces import Traces
from parley.services.wire.version import PROTOCOLS, VERSION
from parley.spec.digests import spec_digest
from parley.spec.parsing import parse_spec
from parley.spec.run import RunSpec
from parley.tables.alignments import AlignmentStore
from parley.tables.loading import Table
from parley.tables.preprocessing import Fitted

Result = TypeVar("Result")
logger = logging.getLogger(__name__)
_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")
LARGEST_UPPER = 1 << 28
"""Most upper parameters of all parties together: joint directions are drawn over all of them."""
MOST_OUTPUTS = 1 << 14
"""Most columns of a summed embedding."""


class PartyServicer(pb_grpc.PartyServiceServicer):
    """What a coordinator may ask of this party."""

    def __init__(
        self, config: PartyConfig, routes: Routes, traces: Traces | None = None, engine: RowEngine | None = None
    ) -> None:
        self._config, self._routes, self._traces, self._engine = config, routes, traces or Traces(), engine
        self._tables = TableStore(config.tables, config.workspace)
        self._offers = Offers(self._tables)
        self._store = Store(config.state)
        self._approvals = Approvals(config.state)
        self._asked = AskedRows(config.state, config.policy.predictions.rows_per_day)
        self._withdrawals = Withdrawals(config.state)
        self._sessions: dict[str, Session] = {}
        # One thread computes: the event loop stays free for health checks, and rounds of a session stay in order.
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="compute")

    async def Describe(self, request: pb.DescribeRequest, context: grpc.aio.ServicerContext) -> pb.DescribeResponse:
        """Say who this is and what it offers."""
        policy = self._config.policy
        self._coordinator(context)
        names = () if request.brief else self._tables.names
        open_tables = [name for name in names if policy.tables is None or name in policy.tables]
        return pb.DescribeResponse(
            name=self._config.name,
            version=VERSION,
            tables=[_summary(offer, share) for offer, share in await self._offers.of(open_tables)],
            algorithms=policy.algorithms,
            aggregations=policy.aggregations,
            sessions=len(self._sessions),
            clock_seconds=time.time(),
            protocols=PROTOCOLS,
        )

    async def OpenSession(
        self, request: pb.OpenSessionRequest, context: grpc.aio.ServicerContext
    ) -> pb.OpenSessionResponse:
        """Check a run against policy and data, and make a session for it."""
        coordinator = self._coordinator(context)
        for value in (request.run_id, request.session_id):
            if not _ID.fullmatch(value):
                raise MessageInvalid("run_id and session_id are 1 to 64 letters, digits, dots, dashes or underscores")
        require_spoken(self._config.name, request.version, request.protocol)
        session = await self._compute(self._prepared, request, coordinator)
        table, vertical = session.opened.table, session.opened.spec.train.layout == "vertical"
        answer = pb.OpenSessionResponse(
            rows=len(table),
            id_digest=session.id_digest,
            column_digest=b"" if vertical else hashlib.sha256("\0".join(table.columns).encode()).digest(),
            features=len(table.columns),
            upper_size=session.offer.upper_size,
            warnings=session.offer.warnings,
            key=encode_key(self._config, session.key, session.session_id, session.agreement),
            checkpoints=await self._compute(self._store.checkpoints, request.run_id),
        )
        answer.settled.extend(await self._compute(session.settled_sums, min(answer.checkpoints, default=0)))
        await self._admit(session)  # last, so that a refused call neither leaves a session behind nor ends one
        return answer

    async def _admit(self, session: Session) -> None:
        if session.session_id in self._sessions:
            raise MessageInvalid("session_id is in use: choose a new one for every session")
        if not session.predicts:
            await self._drop(lambda other: (other.run_id, other.predicts) == (session.run_id, False))
        if session.serving is not None:  # those that a coordinator has left behind when it went down
            await self._drop(lambda other: _is_left_behind(other, session))
        if len(self._sessions) >= self._config.policy.sessions:
            await self._drop(lambda other: other.is_abandoned)  # their coordinator has gone without closing them
        if len(self._sessions) >= self._config.policy.sessions:
            raise TooManySessions(f"{self._config.name} serves {len(self._sessions)} sessions, its limit: try later")
        self._sessions[session.session_id] = session
        metrics.SESSIONS_OPENED.inc()

    async def BeginSession(
        self, request: pb.BeginSessionRequest, context: grpc.aio.ServicerContext
    ) -> pb.BeginSessionResponse:
        """Take everyone's keys and begin from a checkpoint or anew."""
        session = self._session(request.session_id, context)
        names = session.names
        counts = {len(request.keys), len(request.upper_sizes), len(request.peer_addresses)}
        if counts != {len(names)} or not request.outputs:
            raise MessageInvalid(f"BeginSession needs key, upper size and address for each of {names}, and outputs")
        keys = [decode_vouched(key, request.session_id) for key in request.keys]
        authority = load_identity(self._config.identity).ca
        require_standing(self._config, request.keys)
        await self._compute(self._store.claim, session.run_id, session.coordinator)
        self._refuse_others(session.run_id, session.coordinator)
        fitted = None if session.predicts else to_keep(session.opened.table)
        if fitted is not None:
            await self._compute(self._store.save_preprocessing, session.run_id, fitted.to_json())
        if not session.predicts:
            await self._compute(self._store.save_digests, session.run_id, session.reads.to_json())
        sizes = [int(size) for size in request.upper_sizes]
        if sizes[session.opened.index] != session.offer.upper_size or sum(sizes) > LARGEST_UPPER:
            raise MessageInvalid("upper_sizes: give what each party said, and no more parameters than fit a machine")
        if request.outputs > MOST_OUTPUTS:
            raise MessageInvalid(f"outputs: {request.outputs} are more than the {MOST_OUTPUTS} that a party takes")
        peers = PeerLinks(
            session.session_id,
            names,
            list(request.peer_addresses),
            self._routes,
            session.protocol,
        )
        await self._compute(self._registered, session, request.outputs)
        await session.begin(
            keys,
            authority,
            sizes,
            request.outputs,
            request.checkpoint,
            peers,
            request.settled,
            request.run_checkpoint,
        )
        if not session.predicts:
            await self._compute(self._store.save_spec, session.run_id, session.agreement.spec_digest.hex())
            await self._compute(self._store.save_spec_yaml, session.run_id, session.spec_yaml)
            await self._compute(self._store.save_algorithm, session.run_id, session.opened.spec.train.algorithm)
        return pb.BeginSessionResponse()

    async def Exchange(
        self, request_iterator: AsyncIterator[pb.ExchangeRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.ExchangeResponse]:
        """Instructions down, contributions up, until the coordinator ends the stream."""
        self._coordinator(context)
        following = reader(request_iterator)
        first = await following()
        if first.WhichOneof("body") != "attach":
            raise MessageInvalid("a stream begins with `attach`, which names its session")
        session = self._session(first.attach.session_id, context)
        session.attach()
        context.add_done_callback(lambda _: session.detach())
        async for request in request_iterator:
            protocol = session.protocol
            instruction = unpacked(protocol, request, protocol.instruction)
            if request.WhichOneof("body") in (None, "attach", "chunk"):
                raise MessageInvalid("an instruction of the session's algorithm was expected")
            blobs = await receive(request, following)
            if self._sessions.get(session.session_id) is not session:
                raise SessionUnknown("the session was closed")
            started = time.perf_counter()
            await session.take_receipts([decode_receipt(receipt) for receipt in request.receipts])
            ledger = LedgerHead(request.ledger_entries, request.ledger_head)
            rows = (request.served, request.features) if session.serving is not None else None
            number = int(getattr(instruction, "round", 0))
            with self._traces.part(session.run_id, session.session_id, number) as figures:
                answer, parts = await session.handle(instruction, blobs, ledger, rows)
                figures["parley.party"] = self._config.name
            metrics.note_round(protocol.name, time.perf_counter() - started)
            messages = framed(pb.ExchangeResponse, parts, **{protocol.body: packed(protocol, answer)})
            if session.last_receipt is not None:
                messages[0].receipt.CopyFrom(encode_receipt(session.last_receipt))
            if session.declined is not None:
                messages[0].declined.CopyFrom(_declined(session.declined))
            for message in messages:
                yield message
            await session.prefetch()

    async def GetCoefficients(
        self, request: pb.GetCoefficientsRequest, context: grpc.aio.ServicerContext
    ) -> pb.GetCoefficientsResponse:
        """Tell coefficients that a run has tuned here, as far as the policy goes."""
        coordinator = self._coordinator(context)
        if not _ID.fullmatch(request.run_id):
            raise MessageInvalid("run_id is 1 to 64 letters, digits, dots, dashes or underscores")
        self._refuse_others(request.run_id, coordinator)
        policy = self._config.policy
        found = await self._compute(told_coefficients, self._store, request.run_id, policy.algorithms)
        release = CoefficientGate(self._config.name, policy.coefficients).release(found)
        return encode_coefficients(release, request.page_token)

    async def CloseSession(
        self, request: pb.CloseSessionRequest, context: grpc.aio.ServicerContext
    ) -> pb.CloseSessionResponse:
        """Forget a session; unknown ones are no error."""
        coordinator = self._coordinator(context)
        session = self._sessions.get(request.session_id)
        try:
            if session is not None and session.coordinator == coordinator:
                await session.take_receipts([decode_receipt(receipt) for receipt in request.receipts])
        finally:
            await self._drop(lambda other: other.session_id == request.session_id and other.coordinator == coordinator)
        return pb.CloseSessionResponse()

    @property
    def open_sessions(self) -> int:
        """How many sessions are open now."""
        return len(self._sessions)

    def _prepared(self, request: pb.OpenSessionRequest, coordinator: str) -> Session:
        """A session whose data are those that the run began with, or which begins the run anew."""
        session = self._accepted(self._prepare(request, coordinator))
        _ = session.opened.table.row_digest  # here, where it keeps nobody waiting
        kept = None if session.predicts else self._store.load_digests(session.run_id)
        different = [] if kept is None else changed(kept, session.reads.digests)
        if not different:
            return session
        if self._config.policy.changed_data == "refuse":
            raise DataChanged(
                f"{self._config.name}: {', '.join(different)} changed since the run began: bring the old values back, "
                "or start a new run (`changed_data: restart` in the policy begins such runs anew)"
            )
        self._store.restart(session.run_id)
        return self._accepted(self._prepare(request, coordinator))

    def _accepted(self, session: Session) -> Session:
        """A session whose run passes the owner's floors, alone and together with what left before."""
        session.offer = covered_by_noise(session.algorithm.accept(session.opened), session.opened.spec)
        if not session.predicts:
            policy, opened = self._config.policy, session.opened
            check_coverage(policy, opened.spec, opened.index, session.offer.coverage)
            reviewed = self._register.review(_asked(session), policy)
            session.offer = replace(session.offer, warnings=(*session.offer.warnings, *reviewed.warnings))
        return session

    def _registered(self, session: Session, outputs: int) -> None:
        """Write down what a session that trains will expose, and count the sums of any session."""
        policy, name = self._config.policy, session.opened.spec.table_of(session.opened.index)
        if not session.predicts:
            reviewed = self._register.begin(_asked(session, outputs), policy)
            if reviewed.salt != session.opened.salt:  # else what was found of the rows stays
                session.opened = replace(session.opened, salt=reviewed.salt)
        session.reads.rows.pay()
        if not session.predicts:
            entries = [each for each in self._register.entries() if each.exact]
            for read in (name, *session.reads.further):
                exact = {each.run_id: each.partners for each in entries if each.table == read}
                note_exact_runs(self._ledger, read, exact, policy.features.terms)
        session.counter = self._register.counter(session.run_id, policy)
        if session.serving is not None:
            self._count_served(session, session.counter)

    def _count_served(self, session: Session, counter: SumCounter) -> None:
        """Count one sum of every row, once for a model and a table: asked again, a row's sum is the same sum."""
        digest = session.reads.digests[f"table {session.opened.table.name}"]
        if not self._store.is_served(session.run_id, digest):
            counter.count(of_every_row=True)
            self._store.save_served(session.run_id, digest)

    @functools.cached_property
    def _register(self) -> Register:
        """Opened by the first session: a party that never served one has no database."""
        paths = {name: str(table.path) for name, table in self._config.tables.items()}
        return open_register(self._config.database_url, first_names(paths))

    def _prepare(self, request: pb.OpenSessionRequest, coordinator: str) -> Session:
        spec = parse_spec(request.spec_yaml)
        names = [entry.name for entry in spec.parties]
        if self._config.name not in names:
            raise MessageInvalid(f"{self._config.name} is not among the run's parties {names}")
        index = spec.index_of(self._config.name)
        check_policy(self._config.policy, spec, index, coordinator)
        self._refuse_others(request.run_id, coordinator)
        digest = spec_digest(spec)
        if self._config.policy.approval == "required":
            why = f"{self._config.name} takes a spec only once its owner has approved it"
            self._approvals.require(why, digest, request.spec_yaml, coordinator)
        algorithm = party_side(spec.train.algorithm)  # imported only now that the policy accepts it
        limit_threads(self._config.threads)
        name, trained = spec.table_of(index), None
        serves = request.purpose == pb.PURPOSE_SERVE
        if request.purpose in (pb.PURPOSE_PREDICT, pb.PURPOSE_SERVE):
            name = request.table or name
            trained = self._trained(request.run_id, algorithm, name)
            self._check_deployment(request, spec, name)
        elif request.purpose != pb.PURPOSE_TRAIN:
            raise MessageInvalid("the purpose of a session is to train or to predict")
        elif request.ids or request.table:
            raise MessageInvalid("a session that trains reads the rows that its spec names: it takes no ids, no table")
        if trained is not None and self._store.spec(request.run_id) is None:
            self._adopt_spec(request.run_id, digest, request.spec_yaml, coordinator, spec.train.algorithm)
        self._refuse_another_spec(request.run_id, digest, request.spec_yaml)
        if request.ids and not serves:
            self._asked.count(self._config.name, coordinator, request.run_id, name, len(request.ids))
        tables = self._tables
        if name == spec.table_of(index):
            tables = aligned_tables(tables, AlignmentStore(self._config.state), spec, name, coordinator)
        policy, told = self._config.policy, tuple(names)
        rows = RowProtection(spec.privacy.features, request.run_id, told, self._local_privacy, policy.features.terms)
        table = self._table(request.run_id, tables, spec, index, None if trained is None else name, coordinator)
        if trained is not None:
            fitted = to_keep(table)
            columns = table.columns if fitted is None else fitted.inputs
            check_prediction(self._config.policy, spec, index, name, columns)
        table = chosen_rows(table, list(request.ids))
        if must_hold_rows(algorithm.maps_rows, spec.privacy.features.kind, predicts=trained is not None):
            tables.require_room(table, spec.train.algorithm)
        table = rows.protect(table)
        reads = DigestingTables(tables, table, rows)
        opened = Opened(
            spec,
            index,
            request.run_id,
            request.session_id,
            table,
            reads,
            predicts=trained is not None,
            model_imports=policy.model_imports,
            privacy=self._local_privacy,
            coordinator=QuestionLine(self._config, self._config.coordinator) if self._config.coordinator else None,
            floors=floors_of(policy),
            engine=self._engine,
            correlations=policy.correlations,
        )
        record = Record(self._config.state, load_identity(self._config.identity).private_key)
        serving = self._serving(request, coordinator, tables, table, name) if serves else None
        return Session(
            opened,
            coordinator,
            algorithm,
            self._store,
            self._worker,
            reads,
            trained,
            serving,
            record,
            policy.peers,
            request.spec_yaml,
            protocol_told(request.version, request.protocol),
            request.table,
        )

    def _check_deployment(self, request: pb.OpenSessionRequest, spec: RunSpec, table: str) -> None:
        """Refuse a deployment that the owner does not allow, or has withdrawn from."""
        if request.purpose != pb.PURPOSE_SERVE:
            return
        name, policy = self._config.name, self._config.policy.predictions
        if not _ID.fullmatch(request.deployment) or request.ids:
            raise MessageInvalid("a session that serves has the name of its deployment, and gets its rows later")
        if not policy.deployments:
            raise PolicyRefused(f"{name}'s policy refuses: `predictions.deployments` is off")
        if policy.tables is not None and table not in policy.tables:
            raise PolicyRefused(f"{name}'s policy refuses: `predictions.tables` does not open table {table}")
        if spec.privacy.aggregation.kind == "two_tree":
            raise PredictionRefused("sums that climb trees cannot be deployed: train with `aggregation: pairwise`")
        self._require_not_withdrawn(request.run_id)

    def _require_not_withdrawn(self, run_id: str) -> None:
        if self._withdrawals.has(run_id):
            raise DeploymentWithdrawn(f"{self._config.name}'s owner has withdrawn from deployments of run {run_id}")

    def _serving(
        self, request: pb.OpenSessionRequest, coordinator: str, tables: TableStore, table: Table, name: str
    ) -> Serving:
        """What a session that serves is held to."""
        party, policy = self._config.name, self._config.policy.predictions
        stamp, run_id = tables.stamp(name), request.run_id
        is_file = self._config.tables[name].path is not None  # a database is read when the session opens

        def still_stands() -> None:
            self._require_not_withdrawn(run_id)
            if is_file and tables.stamp(name) != stamp:
                raise SessionUnknown(f"table {name} of {party} has changed: open a new session")

        noised = parse_spec(request.spec_yaml).privacy.features.kind == "once"
        return Serving(
            party,
            request.deployment,
            policy,
            Allowance(self._asked, party, coordinator, run_id, name, request.deployment),
            None if noised else to_keep(table),
            still_stands,
            None
            if policy.rows is None
            else frozenset(line.strip() for line in policy.rows.read_text("utf-8").splitlines()),
        )

    def _trained(self, run_id: str, algorithm: PartyAlgorithm, table: str) -> SavedModel:
        """The model that a run has saved here, if it may be used on a table."""
        if algorithm.predictor is None:
            raise PredictionRefused(
                "every party has the whole model of this run: predict with its own model.safetensors"
            )
        trained, open_tables = self._store.load_model(run_id), self._config.policy.tables
        if open_tables is not None and table not in open_tables:
            raise PolicyRefused(f"{self._config.name}'s policy refuses: table {table} is not open to runs")
        return trained

    def _table(
        self, run_id: str, tables: TableStore, spec: RunSpec, index: int, other: str | None, coordinator: str
    ) -> Table:
        """The run's table, or another one for a prediction, treated as the run's training rows taught."""
        kept = self._store.load_preprocessing(run_id)
        saved = None if kept is None else Fitted.from_json(kept)
        columns = chosen_columns(self._config.policy, spec, index)
        table = table_of_run(tables, spec, index, columns, saved=saved, table=other)
        if spec.binned_by is None or saved is not None:
            return table
        return binned_table(tables, spec, index, table, self._found_by(spec.binned_by, coordinator))

    def _found_by(self, run_id: str, coordinator: str) -> list[Coefficient]:
        """What an earlier run of the same coordinator has found here."""
        self._refuse_others(run_id, coordinator)
        try:
            found = coefficients_of(self._store, run_id, self._config.policy.algorithms)
        except (CheckpointMissing, ModelMissing) as missing:
            raise PolicyRefused(
                f"binned_by: {self._config.name} has nothing of run {run_id}: start with that one"
            ) from missing
        if not any(one.figure.endswith(" woe") for one in found):
            raise PolicyRefused(f"binned_by: run {run_id} has found no weights of evidence here: name one that has")
        return found

    def _refuse_others(self, run_id: str, coordinator: str) -> None:
        if self._store.owner(run_id) not in (None, coordinator):
            raise PolicyRefused(f"run {run_id} belongs to another coordinator: choose another run id")

    def _adopt_spec(self, run_id: str, digest: str, text: str, coordinator: str, algorithm: str) -> None:
        """A model of 0.1.0, which kept no specs, has the one that the party's owner says; a coordinator's word is none.

        The spec says with whom this party's part of a prediction is summed.
        """
        why = (
            f"no spec of run {run_id} was kept at {self._config.name} when it trained: its owner says that it was this"
        )
        self._approvals.require(why, digest, text, coordinator)
        self._store.save_spec(run_id, digest)
        self._store.save_spec_yaml(run_id, text)
        self._store.save_algorithm(run_id, algorithm)

    def _refuse_another_spec(self, run_id: str, digest: str, text: str) -> None:
        """A run has one spec, for all its sessions: the one that it began with here."""
        kept = self._store.spec(run_id)
        if kept in (None, digest):
            return
        if self._store.spec_yaml(run_id) == text:
            raise SpecDiffers(
                f"run {run_id} began at {self._config.name} with this spec, but Parley {VERSION} reads it differently "
                "from the version that the run began with: go on with that version, or start a new run"
            )
        raise SpecDiffers(
            f"run {run_id} began at {self._config.name} with the spec of digest {kept[:12]}…, and now comes with "
            f"{digest[:12]}…: start a new run for another spec (or go on with the version of Parley that it began "
            "with, if the spec is the same and only Parley was upgraded)"
        )

    @functools.cached_property
    def _opened_privacy(self) -> LocalPrivacy:
        key = read_or_create_key(self._config.state / "ldp-noise.key")
        policy = self._config.policy
        return LocalPrivacy(self._ledger, KeyedNoise(key), policy.epsilon_budget, policy.features.terms)

    @functools.cached_property
    def _ledger(self) -> Ledger:
        return open_ledger(self._config.database_url)

    def _local_privacy(self) -> LocalPrivacy:
        """The ledger is opened by the first run that charges it."""
        return self._opened_privacy

    def peers_of(self, session_id: str, peer: str) -> PeerLinks:
        """The links of a session that `peer` takes part in."""
        session = self._sessions.get(session_id)
        if session is None or session.peers is None or peer not in session.names:
            raise SessionUnknown(f"{peer} has no such session with this party: it may not have begun here yet")
        return session.peers

    def _coordinator(self, context: grpc.aio.ServicerContext) -> str:
        name = caller_of(context).name
        if name not in self._config.policy.coordinators:
            raise NotAuthorised(f"{self._config.name}'s policy does not name coordinator {name}")
        return name

    def _session(self, session_id: str, context: grpc.aio.ServicerContext) -> Session:
        coordinator, session = self._coordinator(context), self._sessions.get(session_id)
        if session is None or session.coordinator != coordinator:
            raise SessionUnknown("no such session here: open one first (this party may have restarted)")
        return session

    async def _drop(self, unwanted: Callable[[Session], bool]) -> None:
        for session in [session for session in self._sessions.values() if unwanted(session)]:
            del self._sessions[session.session_id]
            await session.close()

    async def _compute(self, function: Callable[..., Result], *arguments: Any) -> Result:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._worker, functools.partial(function, *arguments))


def _asked(session: Session, outputs: int = 1) -> Asked:
    covered = session.offer.coverage
    assert covered is not None  # noqa: S101 (`check_coverage` has looked)
    return asked_of(session.opened, covered, session.reads, outputs)


def _declined(declined: RowsDeclined) -> serving_pb2.Declined:
    return serving_pb2.Declined(reason=declined.reason, message=str(declined), rows=declined.rows)


def _is_left_behind(other: Session, new: Session) -> bool:
    same = (other.run_id, other.coordinator) == (new.run_id, new.coordinator)
    return same and other.serving is not None and other.has_begun and not other.has_stream


def _summary(offer: TableOffer, share: float) -> pb.TableSummary:
    return pb.TableSummary(**asdict(offer), loaded_percent=int(100 * share))


class PeerServicer(peer_grpc.PeerServiceServicer):
    """What other parties of a run may send."""

    def __init__(self, peers_of: Callable[[str, str], PeerLinks], pins: Mapping[str, str]) -> None:
        """`peers_of` finds the links of a session that a sender takes part in, or refuses; `pins` are certificates."""
        self._peers_of, self._pins = peers_of, pins

    async def Push(
        self, request_iterator: AsyncIterator[peer_pb.PushRequest], context: grpc.aio.ServicerContext
    ) -> peer_pb.PushResponse:
        """Partial sums for this party, in order of rounds."""
        following = reader(request_iterator)
        first = await following()
        if first.WhichOneof("body") != "attach":
            raise MessageInvalid("a stream begins with `attach`, which names its session")
        sender = caller_of(context).name
        check_pin(self._pins, sender, certificate_of(context))
        peers = self._peers_of(first.attach.session_id, sender)
        async for request in request_iterator:
            body = request.WhichOneof("body")
            if body in (None, "attach", "chunk"):
                raise MessageInvalid("a partial sum, or a message of the session's algorithm, was expected")
            blobs = await receive(request, following)
            peers.take(sender, str(body), getattr(request, str(body)), blobs)
        return peer_pb.PushResponse()
