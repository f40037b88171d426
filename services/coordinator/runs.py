"""The coordinator's runs: start, watch, cancel, resume, predict."""

import asyncio
import contextlib
import functools
import hashlib
import logging
import math
import re
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
from google.protobuf.message import Message
from numpy.typing import NDArray

from parley.contracts.party.v1 import party_service_pb2 as party_pb
from parley.coordinator.forecasts import WidthsUnknown
from parley.coordinator.programs import Predictor
from parley.privacy.release import OutcomeGate
from parley.protocols.tensor.codec import Blobs
from parley.services.coordinator.async_registry import AsyncRegistry
from parley.services.coordinator.driver import RunDriver
from parley.services.coordinator.fleet import Fleet
from parley.services.coordinator.forecasts import Foretold, Unforetold, foretold
from parley.services.coordinator.labels import LabelStore
from parley.services.coordinator.programs import ProgramFactory, coordinator_side
from parley.services.coordinator.queue import Limits, RunQueue, Waiting
from parley.services.coordinator.registry import NotTheWriter, RunUnknown
from parley.services.coordinator.registry_tables import QUEUED, EventRecord, RunRecord
from parley.services.coordinator.sessions import Session
from parley.services.wire.pages import text_pages
from parley.spec.events import RunProgress, RunStateChange
from parley.spec.parsing import SpecInvalid, parse_spec
from parley.spec.run import RunSpec
from parley.storage.failures import StorageAway, StorageFailed

PAGE_ROWS = 4096
"""Rows that are predicted at a time."""
PRUNED_AT_ONCE = 1000
"""Runs that are forgotten in one transaction, so that other writers get their turn."""
MOST_NAMED = 50_000
"""Runs that a message may name."""
TAG, MOST_TAGS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}"), 32
"""What a tag may look like, and how many a run may have."""
STOP_SECONDS = 2.0
"""How long the last figures wait for the database when this coordinator stops."""
WATCH_SECONDS = 1.0
"""How often a watcher looks for events without having been woken."""

logger = logging.getLogger(__name__)


class RunActive(RuntimeError):
    """The run is active already."""


class RunEnded(RuntimeError):
    """The run has ended."""


class RunUnfinished(RuntimeError):
    """The run has saved no model yet."""


class PredictionRefused(RuntimeError):
    """The run's algorithm has no joint prediction."""


class TagInvalid(ValueError):
    """A tag that is no word, or one too many."""


@dataclass(frozen=True)
class Page:
    """Predictions of some rows."""

    ids: Sequence[str]
    scores: NDArray[np.floating]
    classes: Sequence[str]


async def trained_run(programs: ProgramFactory, record: RunRecord) -> tuple[RunSpec, Predictor]:
    """The spec of a run that is complete, and how its saved models predict.

    Raises:
        RunUnfinished, PredictionRefused: if they cannot.
    """
    if record.state not in ("COMPLETED", "BUDGET_EXHAUSTED"):
        raise RunUnfinished(f"run {record.run_id} is {record.state}: its model is there once it is COMPLETED")
    spec = parse_spec(record.spec_yaml)
    predictor = await asyncio.to_thread(programs.predictor, spec, record.run_id)
    if predictor is None:
        raise PredictionRefused(
            f"run {record.run_id} was trained by {spec.train.algorithm}, which has no joint prediction: every party "
            "predicts with the model that it has saved"
        )
    return spec, predictor


class RunSupervisor:
    """Every run of this coordinator."""

    def __init__(
        self, registry: AsyncRegistry, fleet: Fleet, labels: LabelStore, programs: ProgramFactory, limits: Limits
    ) -> None:
        self._registry, self._fleet, self._labels = registry, fleet, labels
        self._programs, self._queue = programs, RunQueue(limits)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._owners: dict[str, str] = {}
        """Of the runs that are driven."""
        self._reserved: list[str] = []
        """Owners of runs that are being prepared."""
        self._drivers: dict[str, RunDriver] = {}
        self.driven: Callable[[str], None] = lambda _: None
        """Is told of each run that begins to be driven."""
        self._stopped = False
        self._starting: dict[str, tuple[asyncio.Lock, int]] = {}
        self._changes: dict[str, asyncio.Event] = {}
        self.in_use: Callable[[], Collection[str]] = tuple
        """Runs that are deployed, and therefore not forgotten."""

    async def start(self, request_id: str, spec_yaml: str, owner: str = "", priority: int = 0) -> RunRecord:
        """Register and start a run, or let it wait for its turn; the same request starts it once."""
        async with self._one_at_a_time(request_id):
            known = await self._registry.by_request(request_id)
            if known is not None:
                return known
            spec = await asyncio.to_thread(parse_spec, spec_yaml)  # a large text must not hold up other runs
            record = RunRecord(
                run_id=f"{spec.name[:40]}-{hashlib.sha256(request_id.encode()).hexdigest()[:10]}",
                request_id=request_id,
                name=spec.name,
                algorithm=spec.train.algorithm,
                parties=tuple(entry.name for entry in spec.parties),
                spec_yaml=spec_yaml,
                steps=spec.train.run_length,
                owner=owner,
                priority=priority,
            )
            if not self._queue.has_room(owner, self._active()):
                return await self._enqueue_new(record)
            with self._room_for(owner):
                driver = self._driver(record)
                session = await driver.prepare()
                try:
                    record = await self._registry.create(record)
                except BaseException:
                    await session.close()
                    raise
                self._launch(driver, session, owner)
            return record

    def drives(self, owner: str) -> bool:
        """Whether a run of an owner is active, or waits."""
        return owner in self._active() or self._queue.has(owner)

    async def foretell(self, spec_yaml: str) -> Foretold:
        """What a run of a spec would send.

        Raises:
            Unforetold: if that cannot be told before it starts.
        """
        spec = await asyncio.to_thread(parse_spec, spec_yaml)
        try:
            return await asyncio.to_thread(foretold, spec, lambda run: self._programs.forecast(run, {}))
        except WidthsUnknown:
            widths = await self._widths(spec)
        try:
            return await asyncio.to_thread(foretold, spec, lambda run: self._programs.forecast(run, widths))
        except WidthsUnknown as unknown:
            raise Unforetold(str(unknown)) from None

    async def _widths(self, spec: RunSpec) -> dict[str, int]:
        """How many columns each party of a run would use, where it says so."""
        offered = await self._fleet.widths({entry.name: entry.table or spec.table for entry in spec.parties})
        chosen = {entry.name: len(entry.columns) for entry in spec.parties if entry.columns is not None}
        views = {entry.name for entry in spec.parties if entry.view is not None}  # only its owner knows how wide one is
        return {name: width for name, width in (offered | chosen).items() if name not in views}

    @contextlib.asynccontextmanager
    async def _one_at_a_time(self, request_id: str) -> AsyncIterator[None]:
        lock, waiting = self._starting.get(request_id, (asyncio.Lock(), 0))
        self._starting[request_id] = (lock, waiting + 1)
        try:
            async with lock:
                yield
        finally:
            lock, waiting = self._starting.pop(request_id)
            if waiting > 1:
                self._starting[request_id] = (lock, waiting - 1)

    async def resume(self, run_id: str) -> RunRecord:
        """Go on from the last committed checkpoint."""
        async with self._one_at_a_time(run_id):
            record = await self._registry.get(run_id)
            if run_id in self._tasks or record.state == QUEUED:
                raise RunActive(f"run {run_id} is {record.state}: it needs no resume")
            if record.state == "COMPLETED":
                raise RunEnded(f"run {run_id} is complete: start a new one to train further")
            if not self._queue.has_room(record.owner, self._active()):
                self._queue.require_place(record.owner)
                return await self._enqueue(record)
            with self._room_for(record.owner):
                driver = self._driver(record)
                session = await driver.prepare()
                try:
                    await self._registry.change(run_id, RunStateChange(), "resuming", state="PENDING", reason="")
                except BaseException:
                    await session.close()
                    raise
                self._launch(driver, session, record.owner)
            return await self._registry.get(run_id)

    async def resume_unfinished(self) -> None:
        """Go on with the runs that were active when this coordinator stopped, and with the queue."""
        for record in await self._registry.unfinished():
            try:
                driver = self._driver(record)
            except SpecInvalid as invalid:  # written by another version; the other runs go on
                await self._fail_unreadable(record, invalid)
                continue
            self._launch(driver, None, record.owner)
        for record in await self._registry.queued():
            self._queue.add(Waiting(record.run_id, record.owner, record.priority))
        self._take_turns()

    async def cancel(self, run_id: str) -> RunRecord:
        """Stop a run; its last checkpoint is kept."""
        record = await self._registry.get(run_id)
        task, driver = self._tasks.get(run_id), self._drivers.get(run_id)
        if task is None and not self._queue.remove(run_id):
            raise RunEnded(f"run {run_id} is {record.state}: there is nothing to cancel")
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        if not (await self._registry.get(run_id)).ended:
            change = RunStateChange(totals=record.totals if driver is None else driver.tally.totals)
            await self._registry.change(run_id, change, "cancelled by a client", state="CANCELLED", reason="")
            if driver is not None:
                driver.trace("CANCELLED")
        self._wake_watchers(run_id)
        return await self._registry.get(run_id)

    async def tag(self, run_id: str, add: Sequence[str], remove: Sequence[str]) -> RunRecord:
        """Put tags on a run and take others off.

        Raises:
            TagInvalid: if a tag is no word.
        """
        wrong = [tag for tag in add if not TAG.fullmatch(tag)]
        if wrong or len(add) > MOST_TAGS:
            raise TagInvalid(
                f"{wrong[0]!r:.60} is no tag: it has 1 to 32 letters, digits, dots, dashes and underscores"
                if wrong
                else f"{len(add)} tags at once are too many: give at most {MOST_TAGS}"
            )
        record = await self._registry.get(run_id)
        if len(set(record.tags) | set(add)) > MOST_TAGS:
            raise TagInvalid(f"run {run_id} has {len(record.tags)} tags, and may have {MOST_TAGS}: take some off")
        return await self._registry.tag(run_id, add, remove)

    async def delete(self, run_id: str) -> None:
        """Forget a run that has ended; its ledger stays."""
        async with self._one_at_a_time(run_id):  # it is not resumed meanwhile
            record = await self._registry.get(run_id)
            if run_id in self._tasks or not record.ended:
                raise RunActive(f"run {run_id} is {record.state}: cancel it first")
            if run_id in self.in_use():
                raise RunActive(f"run {run_id} is deployed: deploy another one in its place, or undeploy it first")
            await self._registry.delete([run_id])

    async def prune(
        self, seconds: float, states: Sequence[str] = (), *, dry_run: bool = False
    ) -> tuple[list[str], bool]:
        """Forget runs that ended longer ago than this; returns which, and whether there are more."""
        cutoff = (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat(timespec="milliseconds")
        old = await self._registry.ended_before(cutoff, MOST_NAMED if dry_run else PRUNED_AT_ONCE, states)
        if dry_run:
            return old, False
        kept = {*self._tasks, *self.in_use()}
        found = await self._registry.delete([run_id for run_id in old if run_id not in kept])
        return found, len(old) == PRUNED_AT_ONCE

    async def watch(self, run_id: str, after: int) -> AsyncIterator[tuple[EventRecord, RunRecord]]:
        """Events of a run, past ones first, until it has ended."""
        record = await self._registry.get(run_id)  # an id that names no run leaves nothing behind
        while True:
            more = run_id in self._tasks or not record.ended
            news = self._changes.setdefault(run_id, asyncio.Event()) if more else asyncio.Event()
            try:
                record = await self._registry.get(run_id)
                events = await self._registry.events(run_id, after)
            except StorageAway:  # the run outlasts an outage, and so does who watches it
                await asyncio.sleep(WATCH_SECONDS)
                continue
            for event in events:
                after = event.sequence
                yield event, record
            if not events:
                if record.ended and run_id not in self._tasks:
                    return
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(news.wait(), WATCH_SECONDS)

    async def predict(self, run_id: str, table: str, ids: Sequence[str]) -> AsyncIterator[Page]:
        """Scores of rows that every party holds, page by page."""
        record = await self._registry.get(run_id)
        spec, predictor = await trained_run(self._programs, record)
        for named in text_pages(ids):  # a session takes as many ids as fit a message
            async for page in self._predicted(spec, record, predictor, table, named):
                yield page

    async def _predicted(
        self, spec: RunSpec, record: RunRecord, predictor: Predictor, table: str, ids: Sequence[str]
    ) -> AsyncIterator[Page]:
        """Predictions of one session."""
        session = Session(self._fleet, spec, record.spec_yaml, record.run_id, coordinator_side(spec).protocol)
        gate = OutcomeGate(lambda _: False)  # a prediction holds no label
        try:
            await session.open(party_pb.PURPOSE_PREDICT, table, ids)
            await session.begin(0, predictor.form)
            names = list(ids) or await asyncio.to_thread(self._row_names, spec, table, session.opened[0])
            for page in range(math.ceil(len(names) / PAGE_ROWS)):
                chosen = names[page * PAGE_ROWS : (page + 1) * PAGE_ROWS]
                ask = predictor.ask(page * PAGE_ROWS, len(chosen))
                total = await session.exchange(gate.release(ask))
                assert isinstance(total, np.ndarray)  # noqa: S101 (rows are summed, by everyone)
                yield Page(chosen, predictor.scores(total), predictor.classes)
        finally:
            await session.close()

    def _row_names(self, spec: RunSpec, table: str, opened: party_pb.OpenSessionResponse) -> list[str]:
        return self._labels.row_names(spec, table, opened.rows, opened.id_digest)

    async def answer(self, party: str, session_id: str, question: Any, blobs: Blobs) -> tuple[Message, Blobs]:
        """The answer to a party's question in a session that is driven here."""
        for driver in self._drivers.values():
            if driver.session_id == session_id:
                return await driver.answer(party, question, blobs)
        raise RunUnknown("no run is driven in this session: it may have ended, or begun anew")

    async def stop(self) -> None:
        """Leave every run where it is; it goes on when this coordinator comes back."""
        self._stopped = True
        tasks, drivers = list(self._tasks.values()), list(self._drivers.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for driver in drivers:
            body = RunProgress(driver.tally.totals)
            try:
                await self._registry.change(driver.run_id, body, "the coordinator was stopped", seconds=STOP_SECONDS)
            except (StorageFailed, NotTheWriter) as failure:
                logger.warning("the last figures of run %s are not written: %s", driver.run_id, failure)

    def _driver(self, record: RunRecord) -> RunDriver:
        return RunDriver(record, self._registry, self._fleet, self._programs, changed=self._wake_watchers)

    def _active(self) -> list[str]:
        """The owners of all runs that are driven or prepared, each as often as it has one."""
        return [*self._owners.values(), *self._reserved]

    @contextlib.contextmanager
    def _room_for(self, owner: str) -> Iterator[None]:
        """Keep room for a run while it is prepared; if it is refused, somebody else's turn may come."""
        self._reserved.append(owner)
        try:
            yield
        finally:
            self._reserved.remove(owner)
            self._take_turns()

    async def _enqueue_new(self, record: RunRecord) -> RunRecord:
        """Register a run that waits for its turn. Parties are asked then; only their names are checked now."""
        for name in record.parties:
            self._fleet.address(name)
        self._queue.require_place(record.owner)
        return await self._enqueue(await self._registry.create(replace(record, state=QUEUED)))

    async def _enqueue(self, record: RunRecord) -> RunRecord:
        place = self._queue.place(record.priority)
        sentence = f"waits for its turn as number {place}: as many runs are active as may be"
        await self._registry.change(record.run_id, RunStateChange(), sentence, state=QUEUED, reason="")
        self._queue.add(Waiting(record.run_id, record.owner, record.priority))
        self._wake_watchers(record.run_id)
        self._take_turns()  # room may have been made meanwhile
        return await self._registry.get(record.run_id)

    def _take_turns(self) -> None:
        """Let runs that wait begin, as long as there is room."""
        while not self._stopped and (waiting := self._queue.pop(self._active())) is not None:
            self._keep_task(waiting.run_id, waiting.owner, asyncio.create_task(self._take_turn(waiting.run_id)))

    async def _take_turn(self, run_id: str) -> None:
        """Drive a run whose turn has come, however long the database takes no writes."""
        while True:
            try:
                record = await self._registry.get(run_id)
                try:
                    driver = self._driver(record)
                except SpecInvalid as invalid:
                    await self._fail_unreadable(record, invalid)
                    return
                await self._registry.change(run_id, RunStateChange(), "its turn has come", state="PENDING", reason="")
                break
            except StorageFailed:
                await asyncio.sleep(WATCH_SECONDS)
        self._drivers[run_id] = driver
        self._wake_watchers(run_id)
        await driver.run(None)

    async def _fail_unreadable(self, record: RunRecord, invalid: SpecInvalid) -> None:
        reason = f"this version cannot read the run's spec: {invalid}"
        await self._registry.change(record.run_id, RunStateChange(reason=reason), reason, state="FAILED", reason=reason)

    def _launch(self, driver: RunDriver, session: Session | None, owner: str) -> None:
        self._drivers[driver.run_id] = driver
        self._keep_task(driver.run_id, owner, asyncio.create_task(driver.run(session)))

    def _keep_task(self, run_id: str, owner: str, task: asyncio.Task[None]) -> None:
        self._tasks[run_id], self._owners[run_id] = task, owner
        task.add_done_callback(functools.partial(self._done, run_id))
        self.driven(run_id)

    def _done(self, run_id: str, _: asyncio.Task[None]) -> None:
        self._tasks.pop(run_id, None)
        self._owners.pop(run_id, None)
        self._drivers.pop(run_id, None)
        self._wake_watchers(run_id)
        self._take_turns()

    def _wake_watchers(self, run_id: str) -> None:
        """Wake everyone who watches a run."""
        self._changes.pop(run_id, asyncio.Event()).set()
