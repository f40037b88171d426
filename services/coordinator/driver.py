"""Driving a run: sessions, rounds, checkpoints, waiting for lost parties, and how it ends."""

import asyncio
import functools
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeVar

from google.protobuf.message import Message

from parley.coordinator.programs import AnsweringProgram, CommonRows, KeepingProgram, PausingProgram, Program, Report
from parley.coordinator.stopping import EarlyStopping, is_evaluation
from parley.privacy.dataset_ledger import RecordsChanged, UnprotectedRefused
from parley.privacy.ledger import BudgetExhausted, LedgerUnusable
from parley.privacy.receipts import LedgerHead
from parley.protocols.tensor.codec import Blobs, MessageInvalid
from parley.services.coordinator.accounting import UnwrittenFigures, WorkTally
from parley.services.coordinator.async_registry import AsyncRegistry
from parley.services.coordinator.earlier_runs import as_begun, require_same_steps
from parley.services.coordinator.fleet import Fleet, PartyLost, PartyRefused
from parley.services.coordinator.programs import ProgramFactory, coordinator_side
from parley.services.coordinator.registry import NotTheWriter, StateMissing
from parley.services.coordinator.registry_tables import RunRecord
from parley.services.coordinator.sessions import Session
from parley.services.coordinator.waiting import Going, Paused
from parley.services.wire.adaptive_executor import AdaptiveExecutor
from parley.spec.events import (
    Body,
    RunData,
    RunEvaluation,
    RunParty,
    RunPrivacy,
    RunProgress,
    RunStateChange,
)
from parley.spec.parsing import parse_spec
from parley.storage.failures import StorageFailed

PROGRESS_SECONDS = 0.5
"""Progress events are written no more often than this; evaluations always are."""
STORAGE_SECONDS = 2.0
"""Between two tries to note how a run ended."""
ANSWERS = 8
"""Questions of parties that are answered at once."""
STOP_SECONDS = 2.0
"""How long a run that is stopped waits for its database to take the last figures."""

Result = TypeVar("Result")
logger = logging.getLogger(__name__)


class RunDriver:
    """One run, from its first session to its end."""

    def __init__(
        self,
        record: RunRecord,
        registry: AsyncRegistry,
        fleet: Fleet,
        programs: ProgramFactory,
        changed: Callable[[str], None],
    ) -> None:
        self._record, self._registry, self._fleet = as_begun(record), registry, fleet
        self._programs, self._changed = programs, changed
        self._spec = parse_spec(self._record.spec_yaml)
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"run-{record.run_id}")
        self._work = AdaptiveExecutor(self._worker)
        self._answering = ThreadPoolExecutor(ANSWERS, thread_name_prefix=f"answers-{record.run_id}")
        self._began = datetime.fromisoformat(record.created).timestamp() if record.created else time.time()
        self._step, self._written = record.checkpoint, 0.0
        self._figures, self.tally = UnwrittenFigures(), WorkTally(record.totals)
        self._reports: list[Report] = []
        self._session: Session | None = None
        self._program: Program | None = None
        self._refusal: BudgetExhausted | RecordsChanged | UnprotectedRefused | None = None
        self._goes_on = self._spec.train.works_unattended
        self._waiting: Going | Paused = Going(self._spec.wait_seconds, time.monotonic())
        self._privacy: RunPrivacy | None = None
        self._stopping: EarlyStopping | None = None

    @property
    def run_id(self) -> str:
        """The run."""
        return self._record.run_id

    @property
    def session_id(self) -> str | None:
        """The session that the parties are in now."""
        return self._session.session_id if self._session is not None else None

    async def answer(self, party: str, question: Any, blobs: Blobs) -> tuple[Message, Blobs]:
        """The program's answer to a party's question; a spent budget, or labels that may not leave, end the run."""
        session, program = self._session, self._program
        if session is None or party not in session.names or not isinstance(program, AnsweringProgram):
            raise MessageInvalid(f"{party} cannot ask questions in this session")
        try:
            # In threads of the run: one that waits for the ledger's database takes none from anything else.
            asked = functools.partial(program.answer, session.names.index(party), question, blobs)
            return await asyncio.get_running_loop().run_in_executor(self._answering, asked)
        except (BudgetExhausted, RecordsChanged, UnprotectedRefused) as refusal:
            self._refusal = refusal
            raise

    async def prepare(self) -> Session:
        """Open a session at every party and check data and labels; what cannot start is refused here."""
        require_same_steps(self._record)
        protocol = coordinator_side(self._spec).protocol
        session = Session(self._fleet, self._spec, self._record.spec_yaml, self.run_id, protocol)
        try:
            await session.open()
            first = session.opened[0]
            rows = CommonRows(first.rows, first.id_digest, session.names[0])
            await self._compute(self._programs.check, self._spec, self.run_id, rows)
        except BaseException:
            await session.close()
            raise
        return session

    async def run(self, session: Session | None) -> None:
        """Drive the run until it ends; never raises but for cancellation."""
        try:
            await self._until_done(session)
        except BudgetExhausted as error:
            await self._end("BUDGET_EXHAUSTED", str(error), str(error))
        except asyncio.CancelledError:
            await self._write_last_figures()
            raise
        except (PartyLost, PartyRefused, ArithmeticError, ValueError, LookupError) as error:
            await self._end("FAILED", f"failed: {error}", str(error))
        except (StorageFailed, LedgerUnusable) as error:
            logger.error("run %s stops: %s", self.run_id, error)
            await self._end("FAILED", f"failed: {error}", f"STORAGE_FAILED: {error}")
        except Exception as error:
            logger.exception("run %s failed", self.run_id)
            reason = f"an internal error ({type(error).__name__}); the coordinator's log has the detail"
            await self._end("FAILED", reason, reason)
        finally:
            if self._session is not None:
                await self._session.close()
            self._worker.shutdown(wait=False)
            self._answering.shutdown(wait=False)

    def trace(self, state: str) -> None:
        """Tell traces that the run has ended."""
        self._fleet.traces.run(self.run_id, self._began, {"parley.state": state, "parley.steps": self._step})

    async def _end(self, state: str, message: str, reason: str) -> None:
        """Note how the run ended, however long the database takes no writes: a run must not seem to go on for ever."""
        while True:
            try:
                await self._write_figures()
                body = RunStateChange(reason=reason, totals=self.tally.totals)
                await self._note(body, message, state=state, reason=reason)
                self.trace(state)
                return
            except StorageFailed:
                await asyncio.sleep(STORAGE_SECONDS)

    async def _until_done(self, session: Session | None) -> None:
        """Attempt the run until it ends, and wait for lost parties in between; `session` is for the first attempt."""
        lost: PartyLost | None = None
        while True:
            try:
                session = session or await self._prepare_again(lost)
                await self._attempt(session)
                return
            except PartyLost as error:
                lost, now = error, time.monotonic()
                if self._goes_on and session is not None:
                    await session.leave()
                    session = None
                await self._wait_for(lost, now)
            finally:
                if session is not None:
                    await session.close()
                    session = self._session = None

    async def _prepare_again(self, lost: PartyLost | None) -> Session:
        if self._goes_on and lost is not None:
            await self._fleet.reach(lost.party)  # the others are left alone until it is back
        return await self.prepare()

    async def _wait_for(self, lost: PartyLost, now: float) -> None:
        """Wait a while for a party that was lost at `now`; raises PartyLost once the run has waited for too long."""
        if isinstance(self._waiting, Going):
            record = await self._registry.get(self.run_id, self._spec.wait_seconds)
            self._waiting = self._waiting.lost(now, record.checkpoint)
            meanwhile = "the others go on as far as they may" if self._goes_on else "paused"
            body = RunParty(lost.party, "lost", str(lost), goes_on=self._goes_on)
            await self._note(body, f"{meanwhile}: {lost}", state="PAUSED", reason=str(lost))
        if self._waiting.is_over(now):
            waited = f"it was waited for {self._spec.wait_seconds:g} s; start it and resume the run"
            raise PartyLost(lost.party, waited) from lost
        await self._fleet.wait_for_arrival(lost.party, self._waiting.delay_seconds)
        self._waiting = self._waiting.tried()

    async def _attempt(self, session: Session) -> None:
        record = await self._registry.get(self.run_id, self._spec.wait_seconds)
        program = await self._compute(self._programs.make, self._spec, self.run_id)
        done = await self._restored(session, program, record.checkpoint)
        self._session, self._program = session, program
        await session.begin(done, program)
        self._step = done
        for name, answer in zip(session.names, session.opened, strict=True):
            opened = RunData(answer.rows, name, answer.features, answer.id_digest.hex())
            sentence = f"{name}: {opened.rows} rows, {opened.columns} columns, ids sha256 {opened.id_sha256}"
            await self._note(opened, sentence)
            for warning in answer.warnings:
                await self._note(RunParty(name, "warned", warning), f"{name} warns: {warning}")
        if self._spec.alignment is not None:
            aligned = RunData(session.opened[0].rows, alignment=self._spec.alignment)
            await self._note(aligned, f"alignment {aligned.alignment}: {aligned.rows} rows are common")
        began, attempt = "resumed from iteration" if record.attempt else "started at iteration", record.attempt + 1
        body = RunStateChange(attempt, from_step=done)
        spoken: dict[str, Any] = {
            "attempt": attempt,
            "protocol": session.protocol_number,
            "spec_yaml": self._record.spec_yaml,
        }
        await self._note(body, f"{began} {done}", state="RUNNING", reason="", step=done, **spoken)
        self._waiting = self._waiting.resumed(time.monotonic())
        stopping = self._stopping = await self._evaluations_until(done)
        self.tally.begin(session.traffic)
        try:
            best = await self._rounds(session, program, done)
        except BudgetExhausted:
            best = None if stopping is None else stopping.best
            if best is None:
                await self._finish(session, program)
            else:
                await self._keep_best(session, best)
            await self._note_privacy()
            raise
        finally:
            self.tally.end()
        if best is not None:
            await self._keep_best(session, best)
        await self._write_figures()
        await self._note_privacy()
        gone, ended = tuple(session.names[party] for party in sorted(session.left)), "completed"
        if gone:
            ended = f"completed without {', '.join(gone)}: left during the run, so without the final model"
        body = RunStateChange(left_out=gone, totals=self.tally.totals)
        if best is not None and stopping is not None:
            early = f"stopped early after iteration {self._step}" if stopping.is_over else ended
            ended, body = f"{early}: {stopping.sentence}", replace(body, model_step=best.k, measured=best.metrics)
        await self._note(body, ended, state="COMPLETED", reason="", step=self._step)
        self.trace("COMPLETED")

    async def _evaluations_until(self, done: int) -> EarlyStopping | None:
        """What the run's evaluations have shown up to checkpoint `done`; None if it is not to be stopped by them."""
        if self._spec.stop is None:
            return None
        found: dict[int, Report] = {}
        after = 0
        while events := await self._registry.events(self.run_id, after, self._spec.wait_seconds):
            for event in events:
                if isinstance(event.body, RunEvaluation) and event.step <= done:
                    found[event.step] = Report(event.step, dict(event.body.measured))
            after = events[-1].sequence
        return EarlyStopping(self._spec.stop, (found[k] for k in sorted(found)))

    async def _keep_best(self, session: Session, best: Report) -> None:
        """Let every party go back to the checkpoint of the best evaluation, and save that model."""
        await session.close()  # what it has signed is delivered before another one begins
        again = await self.prepare()
        try:
            program = await self._compute(self._programs.make, self._spec, self.run_id)
            if await self._restored(again, program, best.k) != best.k:
                raise ValueError(
                    f"the best model is that of iteration {best.k}, and not every party can read its checkpoint any "
                    "more: bring it back from a backup and resume the run, or start it again"
                )
            await again.begin(best.k, program)
            self.tally.begin(again.traffic)
            await self._finish(again, program)
        finally:
            self.tally.end()
            await again.close()

    async def _finish(self, session: Session, program: Program) -> None:
        """Let every party save its model as it is."""
        session.ledger = await self._ledger_head()
        await session.exchange(program.gate.release(program.finish))

    async def _restored(self, session: Session, program: Program, committed: int) -> int:
        """Begin from the newest checkpoint that the parties and this coordinator can read; 0 begins anew."""
        while True:
            done = session.common_checkpoint(committed)
            if not done or not isinstance(program, KeepingProgram):
                return done
            try:
                program.restore(await self._registry.kept(self.run_id, done, self._spec.wait_seconds))
                return done
            except StateMissing as missing:
                logger.warning("run %s falls back: %s", self.run_id, missing)
                committed = done - 1

    async def _rounds(self, session: Session, program: Program, done: int) -> Report | None:
        """Every round; returns the evaluation of the model to go back to, if a later model than the best is there."""
        if self._stopping is not None and self._stopping.is_over:
            return self._stopping.best
        rounds = program.rounds(done, self._reports.append)
        current = await self._compute(next, rounds)
        pausing = program if isinstance(program, PausingProgram) else None
        while True:
            if pausing is not None:
                await asyncio.sleep(pausing.pause_seconds(current))
            if self._refusal is not None:
                raise self._refusal
            if current.keeps == "model" and self._stopping is not None and self._stopping.earlier_best is not None:
                return self._stopping.earlier_best
            if current.keeps != "nothing":
                session.ledger = await self._ledger_head()
            before = set(session.left)
            total = await session.exchange(program.gate.release(current))
            for party in sorted(session.left.keys() - before):
                name, remaining = session.names[party], len(session.names) - len(session.left)
                left = RunParty(name, "left", goes_on=True, round=current.iteration, remaining=remaining)
                await self._note(left, f"{name} left at round {left.round}; going on with {remaining}")
            if current.label_release is not None:
                self.tally.release(current.label_release)
            if current.keeps == "checkpoint":
                await self._commit(current.iteration, program)
            if current.keeps == "model":
                await self._flush()
                return None
            # What comes next may have to be paid for first, which waits for the database: never in the event loop.
            paid = program.gate.is_known_paid(self.tally.next_release + 1)
            current = await self._work.do(current.cost_class if paid else None, rounds.send, total)
            await self._flush()
            if self._stopping is not None and self._stopping.is_over:
                return self._stopping.best

    async def _commit(self, k: int, program: Program) -> None:
        """Second phase: every party has written and synced checkpoint k; the coordinator's own state goes with it."""
        kept: dict[str, Any] = {}
        if isinstance(program, KeepingProgram):
            kept = {"kept": program.kept(), "keep": self._spec.kept_checkpoints}
        await self._note(RunProgress(self.tally.totals, k), f"checkpoint {k}", checkpoint=k, step=k, **kept)
        await self._note_privacy()

    async def _flush(self) -> None:
        """Write what the label holder may see: evaluations always, progress now and then."""
        evaluated = any(map(is_evaluation, self._reports))
        for report in self._reports:
            if report.warning is not None:
                await self._note(report.warning, report.warning.sentence, at=report.k)
        self._collect()
        if evaluated or (self._figures and time.monotonic() - self._written >= PROGRESS_SECONDS):
            await self._write_figures()
            await self._note_privacy()

    def _collect(self) -> None:
        reports = self._reports[:]
        self._reports.clear()
        for report in reports:
            self._step = report.k
            self.tally.sent_between_parties(report.metrics.get("peer bytes"))
            self._figures.add(report)
        for report in filter(is_evaluation, reports if self._stopping is not None else ()):
            assert self._stopping is not None  # noqa: S101 (or there are none)
            self._stopping.note(report)

    async def _write_figures(self, seconds: float | None = None) -> None:
        """Write every figure that no event tells yet."""
        self._collect()
        for report in self._figures.reports():
            self._written = time.monotonic()
            totals = self.tally.totals
            body = (RunEvaluation if is_evaluation(report) else RunProgress)(totals, measured=report.metrics)
            await self._note(body, f"iteration {report.k}", seconds, step=self._step, at=report.k)
            self._figures.written(report)

    async def _write_last_figures(self) -> None:
        """Whoever stops a run does not wait long for its database."""
        try:
            await self._write_figures(STOP_SECONDS)
        except (StorageFailed, NotTheWriter) as failure:
            logger.warning("the last figures of run %s are not written: %s", self.run_id, failure)

    async def _ledger_head(self) -> LedgerHead:
        """What the parties sign with their receipts: the newest entry of the run's label ledger."""
        spent = await self._compute(self._programs.spent, self.run_id, self._spec.wait_seconds)
        return LedgerHead() if spent is None else LedgerHead(spent.entries, bytes.fromhex(spent.head))

    async def _note_privacy(self) -> None:
        """Tell what labels have cost so far, if that has changed."""
        spent = await self._compute(self._programs.spent, self.run_id, self._spec.wait_seconds)
        if spent is not None and spent != self._privacy:
            self._privacy = spent
            await self._note(spent, f"labels have cost epsilon {spent.epsilon:.6g}, the budget is {spent.budget:.6g}")

    async def _note(self, body: Body, message: str, seconds: float | None = None, **changes: Any) -> None:
        wait_seconds = self._spec.wait_seconds if seconds is None else seconds
        for name in {"step", "at"} & changes.keys():  # asynchronous parties make a few calls more than were asked for
            changes[name] = min(changes[name], self._record.steps)
        try:
            await self._registry.change(self.run_id, body, message, seconds=wait_seconds, **changes)
        finally:
            self._changed(self.run_id)

    async def _compute(self, function: Callable[..., Result], *arguments: Any) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._worker, function, *arguments)
