"""A party's own loop in an asynchronous AsySQN run: read θ, step, and never wait for another party's step.

Three things run beside each other: this loop (its arithmetic in a thread of its own), the answers to other parties
(`theta`, another thread), and the coordinator's evaluations. The loop alone replaces the party's state; the others read
it.

While some party cannot be reached no sum is complete. The loop then goes on for a while with what it knows: the
others' part of θ as it last read it, and its own part as it is now. Nothing is sent for such a step. Every further one
is half as long: all parties that go on alone move at once, and together they must not pass the largest stable step.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from parley.party.asysqn import steps as asysqn
from parley.party.asysqn.block import Block
from parley.party.asysqn.state import Latest, LoopState
from parley.party.asysqn.theta import ThetaAnswers, ThetaRequests
from parley.party.peers import PeerLost
from parley.party.roles import CoordinatorLine
from parley.privacy.release import ClearSumGate, OpenedSum
from parley.protocols.asysqn.codec import decode_slopes, encode_question
from parley.protocols.asysqn.messages import AllRows, Derivative, OpenedTheta, Outcome, RowsName
from parley.protocols.asysqn.settings import AsynchronySpec

FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.1, 2.0
Vector = NDArray[np.float64]
Result = TypeVar("Result")


def now() -> float:
    """Seconds on the event loop's clock, the one that `asyncio.sleep` sleeps by."""
    return asyncio.get_running_loop().time()


@dataclass
class Pace:
    """How long an update takes, for studies of slow parties: it sleeps for what its speed leaves over."""

    turn_seconds: float
    speed: float
    busy_seconds: float = 0.0
    """Time spent in updates so far, the sleep included."""
    _started: float | None = None

    def start(self) -> None:
        """Count time from now on; a second start changes nothing."""
        self._started = now() if self._started is None else self._started

    @property
    def loop_seconds(self) -> float:
        """Time since the start."""
        return 0.0 if self._started is None else now() - self._started

    async def keep(self, began: float) -> None:
        """Sleep until an update that began then may end."""
        worked = now() - began
        least = self.turn_seconds / self.speed if self.turn_seconds else worked / self.speed
        if least > worked:
            await asyncio.sleep(least - worked)
        self.busy_seconds += max(least, worked)


class RemoteLabels:
    """The labels where the coordinator alone has them: it turns sums that this party opened into slopes of the loss."""

    def __init__(self, line: CoordinatorLine, session_id: str) -> None:
        self._line, self._session_id, self._gate = line, session_id, ClearSumGate()

    async def ask_derivative(self, rows: RowsName, opened: OpenedSum) -> Vector:
        """∂L/∂θ on some rows. Raises PeerLost where the coordinator cannot be reached."""
        question, blobs = encode_question(self._session_id, rows, self._gate.release(opened))
        return decode_slopes(*await self._line.ask(question, blobs))


@dataclass
class UpdateLoop:
    """The loop of one party."""

    block: Block
    index: int
    limits: AsynchronySpec
    latest: Latest
    requests: ThetaRequests
    answers: ThetaAnswers
    pace: Pace
    worker: Executor
    """Where updates are computed."""
    patience_seconds: float = 300.0
    """A loop that the coordinator has not asked about for so long makes no further steps until it does."""
    remote_labels: RemoteLabels | None = None
    """Who turns θ into slopes, where this party has no labels."""
    staleness: int = 0
    """Most calls of others between a reading and the step made from it, so far."""
    failure: Exception | None = None
    """What stopped the loop; told to the coordinator at its next ask."""
    heard: float = 0.0
    """When the coordinator last asked for something."""
    _task: asyncio.Task[None] | None = None
    _alone: int = 0
    """Steps made without a complete sum since the last complete one."""
    _retry_at: float = 0.0
    _delay: float = FIRST_WAIT_SECONDS

    def start(self) -> None:
        """Start stepping; a second start is no other loop."""
        if self._task is None:
            self.pace.start()
            self._task = asyncio.create_task(self._run())

    @property
    def has_started(self) -> bool:
        """Whether there may be steps that no checkpoint holds."""
        return self._task is not None

    async def stop(self) -> None:
        """Stop between two steps, whatever is under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            while True:
                if now() - self.heard > self.patience_seconds:
                    await asyncio.sleep(LONGEST_WAIT_SECONDS)
                else:
                    await self._turn()
        except Exception as error:
            self.failure = error

    async def _turn(self) -> None:
        """Read θ on the rows of the next step, and step."""
        before = self.latest.loop_state
        rows = self.block.next_rows(before.state)
        own = await self._compute(self.block.share, before.state, self.index, rows)
        calls_before = self.answers.answered
        opened = await self._read(rows, own)
        if opened is None:
            await self._step_alone(before, rows, own)
        else:
            await self._step(before, rows, own, opened, calls_before)

    async def _read(self, rows: RowsName, own: Vector) -> OpenedSum | None:
        """θ of some rows, or None while a party cannot be reached."""
        if now() < self._retry_at:
            return None
        try:
            return await self.requests.read(rows, own)
        except PeerLost:
            self._back_off()
            return None

    async def _step(self, before: LoopState, rows: RowsName, own: Vector, opened: OpenedSum, calls_before: int) -> None:
        """Step from a complete sum, unless it has become too old on the way."""
        began = now()
        try:
            outcome = await self._outcome(rows, opened)
        except PeerLost:
            self._back_off()
            await self._wait_to_retry()
            return
        state = await self._advance(before, rows, outcome, began)
        before = replace(before, calls=before.calls + 1)
        age = self.answers.answered - calls_before
        if age > self.limits.staleness:
            self.latest.loop_state = before
            return
        self.staleness = max(self.staleness, age)
        self._alone, self._delay = 0, FIRST_WAIT_SECONDS
        others = self._remember(before, rows, opened.values - own)
        self.latest.loop_state = replace(before, state=state, others=others)

    async def _step_alone(self, before: LoopState, rows: RowsName, own: Vector) -> None:
        """Step from the others' last known part of θ, if there may be one more such step."""
        if self._alone >= self.limits.steps_alone or self.remote_labels is not None:
            await self._wait_to_retry()
            return
        outcome = OpenedTheta(self._others(before, rows) + own)
        state = await self._advance(before, rows, outcome, now())
        self._alone += 1
        self.latest.loop_state = replace(before, state=state, updates_alone=before.updates_alone + 1)

    async def _outcome(self, rows: RowsName, opened: OpenedSum) -> Outcome:
        if self.remote_labels is None:
            return OpenedTheta(opened.values)
        return Derivative(await self.remote_labels.ask_derivative(rows, opened))

    async def _advance(self, before: LoopState, rows: RowsName, outcome: Outcome, began: float) -> asysqn.State:
        damp = 0.5**self._alone
        state = await self._compute(self.block.advance, before.state, self.index, rows, outcome, damp)
        if not isinstance(rows, AllRows):
            await self.pace.keep(began)
        return state

    def _back_off(self) -> None:
        self._retry_at = now() + self._delay
        self._delay = min(2 * self._delay, LONGEST_WAIT_SECONDS)

    async def _wait_to_retry(self) -> None:
        await asyncio.sleep(max(0.0, self._retry_at - now()))

    def _others(self, loop_state: LoopState, rows: RowsName) -> Vector:
        if isinstance(rows, AllRows):
            return loop_state.others
        return loop_state.others[self.block.row_numbers(self.index, rows)]

    def _remember(self, loop_state: LoopState, rows: RowsName, others: Vector) -> Vector:
        if isinstance(rows, AllRows):
            return others
        # In place: the vector belongs to this loop alone, and a copy of n numbers at each step would be more work.
        loop_state.others[self.block.row_numbers(self.index, rows)] = others
        return loop_state.others

    async def _compute(self, function: Callable[..., Result], *arguments: Any) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self.worker, function, *arguments)
