"""The coordinator's runs: start, watch, cancel, resume, predict."""

import asyncio
import contextlib
import functools
import hashlib
import logging
import math
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
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
from parley.services.coordinator.registry import NotTheWriter, RunUnknown
from parley.services.coordinator.registry_tables import EventRecord, RunRecord
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


class TooManyRuns(RuntimeError):
    """The coordinator drives as many runs as it may."""


@dataclass(frozen=True)
class Page:
    """Predictions of some rows."""

    ids: Sequence[str]
    scores: NDArray[np.floating]
    classes: Sequence[str]


class RunSupervisor:
    """Every run of this coordinator."""

    def __init__(
        self, registry: AsyncRegistry, fleet: Fleet, labels: LabelStore, programs: ProgramFactory, most_runs: int
    ) -> None:
        self._registry, self._fleet, self._labels = registry, fleet, labels
        self._programs, self._most_runs = programs, most_runs
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._drivers: dict[str, RunDriver] = {}
        self._starting: dict[str, tuple[asyncio.Lock, int]] = {}
        self._changes: dict[str, asyncio.Event] = {}

    async def start(self, request_id: str, spec_yaml: str) -> RunRecord:
        """Register and start a run; the same request starts it once."""
        async with self._one_at_a_time(request_id):
            known = await self._registry.by_request(request_id)
            if known is not None:
                return known
            spec = await asyncio.to_thread(parse_spec, spec_yaml)  # a large text must not hold up other runs
            self._check_room()
            record = RunRecord(
                run_id=f"{spec.name[:40]}-{hashlib.sha256(request_id.encode()).hexdigest()[:10]}",
                request_id=request_id,
                name=spec.name,
                algorithm=spec.train.algorithm,
                parties=tuple(entry.name for entry in spec.parties),
                spec_yaml=spec_yaml,
                steps=spec.train.run_length,
            )
            driver = self._driver(record)
            session = await driver.prepare()
            try:
                record = await self._registry.create(record)
            except BaseException:
                await session.close()
                raise
            self._launch(driver, session)
            return record

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
            if run_id in self._tasks:
                raise RunActive(f"run {run_id} is {record.state}: it needs no resume")
            if record.state == "COMPLETED":
                raise RunEnded(f"run {run_id} is complete: start a new one to train further")
            self._check_room()
            driver = self._driver(record)
            session = await driver.prepare()
            try:
                await self._registry.change(run_id, RunStateChange(), "resuming", state="PENDING", reason="")
            except BaseException:
                await session.close()
                raise
            self._launch(driver, session)
            return await self._registry.get(run_id)

    async def resume_unfinished(self) -> None:
        """Go on with the runs that were active when this coordinator stopped."""
        for record in await self._registry.unfinished():
            try:
                driver = self._driver(record)
            except SpecInvalid as invalid:  # written by another version; the other runs go on
                reason = f"this version cannot read the run's spec: {invalid}"
                await self._registry.change(
                    record.run_id, RunStateChange(reason=reason), reason, state="FAILED", reason=reason
                )
                continue
            self._launch(driver, None)

    async def cancel(self, run_id: str) -> RunRecord:
        """Stop a run; its last checkpoint is kept."""
        record = await self._registry.get(run_id)
        task, driver = self._tasks.get(run_id), self._drivers.get(run_id)
        if task is None or driver is None:
            raise RunEnded(f"run {run_id} is {record.state}: there is nothing to cancel")
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        if not (await self._registry.get(run_id)).ended:
            change = RunStateChange(totals=driver.tally.totals)
            await self._registry.change(run_id, change, "cancelled by a client", state="CANCELLED", reason="")
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
            await self._registry.delete([run_id])

    async def prune(
        self, seconds: float, states: Sequence[str] = (), *, dry_run: bool = False
    ) -> tuple[list[str], bool]:
        """Forget runs that ended longer ago than this; returns which, and whether there are more."""
        cutoff = (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat(timespec="milliseconds")
        old = await self._registry.ended_before(cutoff, MOST_NAMED if dry_run else PRUNED_AT_ONCE, states)
        if dry_run:
            return old, False
        found = await self._registry.delete([run_id for run_id in old if run_id not in self._tasks])
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
        if record.state not in ("COMPLETED", "BUDGET_EXHAUSTED"):
            raise RunUnfinished(f"run {run_id} is {record.state}: its model is there once it is COMPLETED")
        spec = parse_spec(record.spec_yaml)
        predictor = await asyncio.to_thread(self._programs.predictor, spec, run_id)
        if predictor is None:
            raise PredictionRefused(
                f"run {run_id} was trained by {spec.train.algorithm}, which has no joint prediction: every party "
                "predicts with the model that it has saved"
            )
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

    def _launch(self, driver: RunDriver, session: Session | None) -> None:
        task = asyncio.create_task(driver.run(session))
        self._tasks[driver.run_id], self._drivers[driver.run_id] = task, driver
        task.add_done_callback(functools.partial(self._done, driver.run_id))

    def _done(self, run_id: str, _: asyncio.Task[None]) -> None:
        self._tasks.pop(run_id, None)
        self._drivers.pop(run_id, None)
        self._wake_watchers(run_id)

    def _check_room(self) -> None:
        active = len(self._tasks) + len(self._starting) - 1  # the call that asks counts among those that start
        if active >= self._most_runs:
            raise TooManyRuns(f"{active} runs are active, the limit: wait, or raise `runs`")

    def _wake_watchers(self, run_id: str) -> None:
        """Wake everyone who watches a run."""
        self._changes.pop(run_id, asyncio.Event()).set()
