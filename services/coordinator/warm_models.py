"""A deployed model: one session with every party that stays open, and questions that are summed together.

While a sum is under way, questions gather; the next sum takes all of them, and, where several came together the last
time, those that are still coming in. A session that breaks is opened again, and
what was under way is asked again there: the same rows of the same model have the same sum.
"""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from parley.contracts.party.v1 import party_service_pb2 as party_pb
from parley.contracts.serving.v1 import serving_pb2 as pb
from parley.coordinator.programs import Predictor
from parley.privacy.pairwise import SumDoesNotOpen
from parley.privacy.release import OutcomeGate
from parley.services.coordinator.deployment_records import DeploymentRecord
from parley.services.coordinator.fleet import Fleet, PartyLost, PartyRefused
from parley.services.coordinator.programs import coordinator_side
from parley.services.coordinator.registry_tables import RunRecord
from parley.services.coordinator.sessions import Session
from parley.services.coordinator.streams import Declined
from parley.services.wire.pages import text_pages
from parley.spec.run import RunSpec
from parley.tables.errors import RowsDiffer

MOST_ROWS = 1024
"""Rows of one sum."""
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.2, 5.0
REFUSED_WAIT_SECONDS = 15.0
"""How long until parties are asked again once one has refused."""
GAP_SHARE, SHORTEST_GAP_SECONDS, LONGEST_GAP_SECONDS = 0.25, 0.5e-3, 5e-3
"""A sum that several callers may share begins once no question has come for this share of what a sum takes."""
SUM_WEIGHT = 0.2
"""Of the newest sum in the average of what a sum takes."""
logger = logging.getLogger(__name__)
Scores = NDArray[np.floating]


class DeploymentAway(ConnectionError):
    """A deployed model does not answer now."""


@dataclass(frozen=True)
class Features:
    """One row's features of one party's block, as the caller spells them."""

    columns: Sequence[str]
    values: Sequence[str]


@dataclass
class Question:
    """Rows that a caller asks for together."""

    caller: str
    ids: Sequence[str]
    given: Mapping[int, Sequence[Features]]
    """By party: for each row its features, which the caller has itself."""
    answer: asyncio.Future[Scores]
    tried: int = 0

    def fail(self, error: Exception) -> None:
        """Tell the caller."""
        if not self.answer.done():
            self.answer.set_exception(error)


@dataclass
class WarmModel:
    """One version of a deployment, ready to answer."""

    fleet: Fleet
    run: RunRecord
    spec: RunSpec
    predictor: Predictor
    record: DeploymentRecord
    rows: int = 0
    """Rows that were answered."""
    sums: int = 0
    problem: str = ""
    """Why it does not answer; empty if it does."""
    refused: bool = False
    """Whether a party refuses, so that waiting alone does not help."""
    _session: Session | None = None
    _queue: deque[Question] = field(default_factory=deque)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _task: asyncio.Task[None] | None = None
    _retired: bool = False
    _last: int = 0
    """Questions of the last sum."""
    _sum_seconds: float = 0.0
    """What a sum takes, averaged."""

    @property
    def is_open(self) -> bool:
        """Whether it has a session with every party."""
        return self._session is not None

    async def open(self) -> None:
        """Open a session with every party: keys agreed, models loaded, rows computed."""
        session = Session(
            self.fleet, self.spec, self.run.spec_yaml, self.run.run_id, coordinator_side(self.spec).protocol
        )
        try:
            await session.open(party_pb.PURPOSE_SERVE, self.record.table_name, deployment=self.record.name)
            await session.begin(0, self.predictor.form)
        except BaseException:
            await session.close()
            raise
        self._session, self.problem, self.refused = session, "", False

    def start(self) -> None:
        """Begin to answer."""
        self._task = asyncio.create_task(self._serve())

    async def ask(self, caller: str, ids: Sequence[str], given: Mapping[int, Sequence[Features]]) -> Scores:
        """Scores of rows, in their order."""
        if self._session is None:
            raise self._away()
        answers, first = [], 0
        loop = asyncio.get_running_loop()
        for page in text_pages(ids):
            for start in range(0, len(page), MOST_ROWS):
                some = page[start : start + MOST_ROWS]
                own = {party: rows[first : first + len(some)] for party, rows in given.items()}
                question = Question(caller, some, own, loop.create_future())
                self._queue.append(question)
                answers.append(question.answer)
                first += len(some)
        self._wake.set()
        if len(answers) == 1:
            return await answers[0]
        return np.concatenate(await asyncio.gather(*answers))

    async def retire(self) -> None:
        """Answer what was asked, then close."""
        self._retired = True
        self._wake.set()
        if self._task is not None:
            await asyncio.wait([self._task])
        await self._close()

    async def stop(self) -> None:
        """Close at once."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._fail_all(self._away())
        await self._close()

    async def _close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _serve(self) -> None:
        delay = FIRST_WAIT_SECONDS
        while not (self._retired and not self._queue):
            if self._session is None:
                try:
                    await self.open()
                    logger.info("deployment %s, version %d, is open", self.record.name, self.record.version)
                    delay = FIRST_WAIT_SECONDS
                except (PartyLost, PartyRefused, RowsDiffer) as failure:
                    delay = self._note(failure, delay)
                    await self._wait(failure, delay)
                    continue
            batch = await self._gathered()
            if batch:
                await self._answer(batch)

    def _note(self, failure: Exception, delay: float) -> float:
        """Take down why it is not open, tell who waits, and say how long to wait."""
        self.problem, self.refused = str(failure), not isinstance(failure, PartyLost)
        logger.warning("deployment %s does not answer: %s", self.record.name, failure)
        self._fail_all(failure if self.refused else self._away())
        return REFUSED_WAIT_SECONDS if self.refused else min(2 * delay, LONGEST_WAIT_SECONDS)

    async def _wait(self, failure: Exception, seconds: float) -> None:
        """Wait for a lost party's arrival, or simply for a while; whoever retires the model waits no longer."""
        waits = [asyncio.create_task(self._until_retired())]
        if isinstance(failure, PartyLost):
            waits.append(asyncio.create_task(self.fleet.wait_for_arrival(failure.party, seconds)))
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _until_retired(self) -> None:
        while not self._retired:
            self._wake.clear()
            await self._wake.wait()

    async def _gathered(self) -> list[Question]:
        """All questions that wait, as far as they fit one sum."""
        while not self._queue and not self._retired:
            self._wake.clear()
            await self._wake.wait()
        await self._let_others_in()
        batch: list[Question] = []
        rows = size = 0
        while self._queue:
            question = self._queue[0]
            size += sum(map(len, question.ids))
            rows += len(question.ids)
            if batch and (rows > MOST_ROWS or size > 1 << 20):
                break
            self._queue.popleft()
            if not question.answer.done():  # its caller has gone
                batch.append(question)
        self._last = len(batch)
        return batch

    async def _let_others_in(self) -> None:
        """Wait while further questions come in, no longer than a sum takes; one caller alone never waits.

        A sum costs every party a message however many rows it has, so callers who ask at the same time share one.
        """
        if max(self._last, len(self._queue)) < 2 or self._retired:
            return
        gap = min(max(GAP_SHARE * self._sum_seconds, SHORTEST_GAP_SECONDS), LONGEST_GAP_SECONDS)
        until, waiting = time.perf_counter() + self._sum_seconds, 0
        while waiting < len(self._queue) < MOST_ROWS and time.perf_counter() < until and not self._retired:
            waiting = len(self._queue)
            await asyncio.sleep(gap)

    async def _answer(self, batch: list[Question]) -> None:
        session = self._session
        assert session is not None  # noqa: S101 (`_serve` has opened it)
        served, features = _asked(batch)
        release = OutcomeGate(lambda _: False).release(self.predictor.ask(0, len(served.ids)))  # holds no label
        started = time.perf_counter()
        try:
            outcome = await session.serve(release, served, features)
        except (PartyLost, PartyRefused, SumDoesNotOpen) as failure:
            await self._broken(failure, batch)
            return
        except BaseException as failure:
            for question in batch:
                question.fail(DeploymentAway(f"{self.record.name} was stopped"))
            if isinstance(failure, asyncio.CancelledError):
                raise
            logger.error("deployment %s failed", self.record.name, exc_info=failure)
            await self._close()
            return
        self.sums += 1
        self._sum_seconds += SUM_WEIGHT * (time.perf_counter() - started - self._sum_seconds)
        if isinstance(outcome, Mapping):
            self._decline(batch, outcome)
            return
        scores, first = self.predictor.scores(outcome), 0
        for question in batch:
            if not question.answer.done():
                question.answer.set_result(scores[first : first + len(question.ids)])
            first += len(question.ids)
        self.rows += first

    async def _broken(self, failure: Exception, batch: list[Question]) -> None:
        """Ask again in a new session what was under way, once."""
        logger.warning("deployment %s opens a new session: %s", self.record.name, failure)
        await self._close()
        for question in reversed(batch):
            question.tried += 1
            if question.tried > 1:
                question.fail(failure)
            else:
                self._queue.appendleft(question)
        self._wake.set()

    def _decline(self, batch: list[Question], declined: Mapping[str, Declined]) -> None:
        """Refuse the questions with rows that a party declines, and ask the others again."""
        owner = [question for question in batch for _ in question.ids]
        for party, each in declined.items():
            for row in each.rows or range(len(owner)):
                if row < len(owner):
                    owner[row].fail(PartyRefused(party, each.reason, each.message))
        self._queue.extendleft(question for question in reversed(batch) if not question.answer.done())
        self._wake.set()

    def _fail_all(self, error: Exception) -> None:
        while self._queue:
            self._queue.popleft().fail(error)

    def _away(self) -> Exception:
        return DeploymentAway(
            f"{self.record.name} does not answer now: {self.problem or 'its session is being opened'}; try again"
        )


def _asked(batch: Sequence[Question]) -> tuple[pb.ServedRows, dict[int, pb.GivenFeatures]]:
    """The rows of a sum as every party is told, and the features that each alone is told."""
    served, places = pb.ServedRows(), dict[str, int]()
    given: dict[int, list[int]] = {}
    features: dict[int, pb.GivenFeatures] = {}
    for question in batch:
        first = len(served.ids)
        served.ids.extend(question.ids)
        place = places.setdefault(question.caller, len(places))
        served.asked_by.extend([place] * len(question.ids))
        for party, rows in question.given.items():
            given.setdefault(party, []).extend(range(first, first + len(rows)))
            into = features.setdefault(party, pb.GivenFeatures())
            into.rows.extend(pb.GivenRow(columns=row.columns, values=row.values) for row in rows)
    served.callers.extend(places)
    for party, chosen in sorted(given.items()):
        served.given.append(pb.GivenBlock(party=party, rows=chosen))
    return served, features


async def close_quietly(model: WarmModel) -> None:
    """Retire a model that nobody waits for."""
    with contextlib.suppress(PartyLost, PartyRefused):
        await model.retire()
