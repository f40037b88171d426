"""Deployments of this coordinator: deploy, swap, roll back, answer, and open again after a restart."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from parley.protocols.tensor.codec import MessageInvalid
from parley.services.coordinator.async_registry import AsyncRegistry
from parley.services.coordinator.database_threads import READ_SECONDS, DatabaseThreads
from parley.services.coordinator.deployment_records import DeploymentRecord, DeploymentRecords, unknown
from parley.services.coordinator.fleet import Fleet
from parley.services.coordinator.programs import ProgramFactory
from parley.services.coordinator.registry import now
from parley.services.coordinator.runs import trained_run
from parley.services.coordinator.warm_models import DeploymentAway, Features, WarmModel, close_quietly

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")
RUN_ID = re.compile(r".*-[0-9a-f]{10}")
"""What a run's id looks like: a deployment is never taken for one."""
MOST_ROWS = 100_000
"""Rows of one request."""
State = Literal["SERVING", "OPENING", "REFUSED"]


@dataclass(frozen=True)
class DeploymentStatus:
    """A deployment as it stands."""

    record: DeploymentRecord
    state: State
    problem: str
    earlier: Sequence[int]
    rows: int
    sums: int


@dataclass(frozen=True)
class Answer:
    """Scores of rows, all by one version."""

    scores: NDArray[np.floating]
    classes: Sequence[str]
    record: DeploymentRecord


@dataclass(frozen=True)
class CallerFeatures:
    """Features of one party's block for every row of a request."""

    party: str
    columns: Sequence[str]
    values: Sequence[str]


class Deployments:
    """Every deployment of this coordinator."""

    def __init__(
        self,
        registry: AsyncRegistry,
        records: DeploymentRecords,
        threads: DatabaseThreads,
        fleet: Fleet,
        programs: ProgramFactory,
    ) -> None:
        self._registry, self._records, self._threads = registry, records, threads
        self._fleet, self._programs = fleet, programs
        self._live: dict[str, WarmModel] = {}
        self._turns: dict[str, asyncio.Lock] = {}
        self._unopened: dict[str, tuple[DeploymentRecord, str]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Open again what was deployed when this coordinator stopped."""
        for record in await self._threads.read(self._records.all):
            if record.current:
                try:
                    model = await self._model(record)
                except Exception as error:
                    self._unopened[record.name] = (record, str(error))
                    continue
                self._live[record.name] = model
                model.start()

    async def deploy(self, name: str, run_id: str, table: str, by: str) -> DeploymentStatus:
        """Keep a run ready under a name; it answers once it is open, and the version before it until then."""
        if not NAME.fullmatch(name) or RUN_ID.fullmatch(name):
            raise MessageInvalid(
                "name: a deployment's name has 1 to 40 letters, digits, dashes and underscores, begins with a letter, "
                "and does not end like a run's id"
            )
        async with self._turns.setdefault(name, asyncio.Lock()):
            version = await self._threads.read(self._records.next_version, name)
            return await self._swap(DeploymentRecord(name, version, run_id, table, True, by, now()))

    async def roll_back(self, name: str) -> DeploymentStatus:
        """Let the version before the present one answer again."""
        async with self._turns.setdefault(name, asyncio.Lock()):
            return await self._swap(await self._threads.read(self._records.earlier, name))

    async def _swap(self, record: DeploymentRecord) -> DeploymentStatus:
        model = await self._model(record)
        await model.open()
        try:
            await self._threads.write_within(READ_SECONDS, self._records.make_current, record)
        except BaseException:
            await model.stop()
            raise
        old = self._live.get(record.name)
        self._live[record.name] = model
        self._unopened.pop(record.name, None)
        model.start()
        if old is not None:
            self._close(old)
        return await self._status(model)

    async def undeploy(self, name: str) -> None:
        """Close a deployment and forget it."""
        async with self._turns.setdefault(name, asyncio.Lock()):
            self._known(name)
            await self._threads.write_within(READ_SECONDS, self._records.forget, name)
            model = self._live.pop(name, None)
            self._unopened.pop(name, None)
            if model is not None:
                await close_quietly(model)

    async def all(self) -> list[DeploymentStatus]:
        """Every deployment, by name."""
        every = await self._threads.read(self._records.all)
        found = []
        for record in every:
            if record.current:
                earlier = [
                    other.version for other in every if other.name == record.name and other.version < record.version
                ]
                found.append(self._stands(record, earlier))
        return found

    def is_deployed(self, name: str) -> bool:
        """Whether something is deployed under a name."""
        return name in self._live or name in self._unopened

    def run_of(self, name: str) -> tuple[str, str]:
        """The run and the table of a deployment."""
        record = self._known(name)
        return record.run_id, record.table_name

    @property
    def run_ids(self) -> set[str]:
        """Runs that are in use."""
        return {model.record.run_id for model in self._live.values()}

    async def predict(
        self, name: str, caller: str, ids: Sequence[str], features: Sequence[CallerFeatures] = ()
    ) -> Answer:
        """Scores of rows by the version that is current when they are asked for."""
        model = self._live.get(name)
        if model is None:
            problem = self._unopened[name][1] if name in self._unopened else None
            raise unknown(name) if problem is None else DeploymentAway(f"{name} cannot be opened: {problem}")
        if not 0 < len(ids) <= MOST_ROWS:
            raise MessageInvalid(f"ids: name 1 to {MOST_ROWS} rows")
        given = {} if not features else _given(model, features, len(ids))
        scores = await model.ask(caller, ids, given)
        return Answer(scores, model.predictor.classes, model.record)

    async def stop(self) -> None:
        """Close every session; they are opened again when this coordinator comes back."""
        await asyncio.gather(*(model.stop() for model in self._live.values()), *self._closing)

    async def _model(self, record: DeploymentRecord) -> WarmModel:
        run = await self._registry.get(record.run_id)
        spec, predictor = await trained_run(self._programs, run)
        return WarmModel(self._fleet, run, spec, predictor, record)

    def _close(self, model: WarmModel) -> None:
        closing = asyncio.create_task(close_quietly(model))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def _known(self, name: str) -> DeploymentRecord:
        if name in self._live:
            return self._live[name].record
        if name in self._unopened:
            return self._unopened[name][0]
        raise unknown(name)

    async def _status(self, model: WarmModel) -> DeploymentStatus:
        record = model.record
        versions = await self._threads.read(self._records.versions, record.name)
        return self._stands(record, [other.version for other in versions if other.version < record.version])

    def _stands(self, record: DeploymentRecord, earlier: Sequence[int]) -> DeploymentStatus:
        model = self._live.get(record.name)
        if model is None:
            return DeploymentStatus(record, "REFUSED", self._unopened.get(record.name, (record, ""))[1], earlier, 0, 0)
        state: State = "SERVING" if model.is_open else "REFUSED" if model.refused else "OPENING"
        return DeploymentStatus(record, state, model.problem, earlier, model.rows, model.sums)


def _given(model: WarmModel, features: Sequence[CallerFeatures], rows: int) -> Mapping[int, Sequence[Features]]:
    """Features by party and row.

    Raises:
        MessageInvalid: if they are not one party's of the run, or not for every row.
    """
    names, found = [entry.name for entry in model.spec.parties], {}
    for block in features:
        width = len(block.columns)
        if block.party not in names or names.index(block.party) in found:
            raise MessageInvalid(f"features: {block.party:.64} is no party of the run, or comes twice")
        if not width or len(block.values) != width * rows:
            raise MessageInvalid(f"features of {block.party}: give a value of each column for each of the {rows} rows")
        found[names.index(block.party)] = [
            Features(block.columns, block.values[row * width : (row + 1) * width]) for row in range(rows)
        ]
    return found
