"""A party's own loop in an asynchronous AsySQN run: read θ, step, and never wait for another party's step.

Three things run beside each other: this loop (its arithmetic in a thread of its own), the answers to other parties
(`theta`, another thread), and the coordinator's evaluations. They share one immutable state.

While some party cannot be reached no sum is complete. The loop then goes on for a while with what it knows: the
others' part of θ as it last read it, and its own part as it is now. Nothing is sent for such a step. Every further one
is half as long: all parties that go on alone move at once, and together they must not pass the largest stable step.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from parley.party.asysqn import steps as asysqn
from parley.party.asysqn.block import Block
from parley.party.asysqn.theta import ThetaPlane
from parley.party.peers import PeerLost
from parley.party.roles import CoordinatorLine
from parley.privacy.release import ClearSumGate, OpenedSum
from parley.protocols.asysqn.codec import decode_slopes, encode_question
from parley.protocols.asysqn.messages import AllRows, Derivative, OpenedTheta, Outcome, RowsName
from parley.protocols.asysqn.settings import AsysqnSpec

FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.1, 2.0
Vector = NDArray[np.float64]
Result = TypeVar("Result")


@dataclass(frozen=True)
class LoopState:
    """Where a party stands: all that a checkpoint holds."""

    state: asysqn.State
    others: Vector
    """The other parties' part of θ, one number for each training row, as it was last read."""
    calls: int = 0
    """Sums asked for, snapshots included."""
    updates_alone: int = 0
    """Updates made without a complete sum."""
    k: int = 0
    """The checkpoint that this is."""
    pending: RowsName | None = None
    """Rows whose sum is under way (synchronous)."""


@dataclass
class Pace:
    """How long an update takes, for studies of slow parties: it sleeps for what its speed leaves over."""

    turn_seconds: float
    speed: float
    busy_seconds: float = 0.0
    """Time spent in updates so far, the sleep included."""

    async def keep(self, began: float) -> None:
        """Sleep until an update that began then may end."""
        worked = time.monotonic() - began
        least = self.turn_seconds / self.speed if self.turn_seconds else worked / self.speed
        if least > worked:
            await asyncio.sleep(least - worked)
        self.busy_seconds += max(least, worked)


class LabelHolder:
    """Asks the coordinator for slopes of the loss at sums that this party opened."""

    def __init__(self, line: CoordinatorLine, session_id: str) -> None:
        self._line, self._session_id, self._gate = line, session_id, ClearSumGate()

    async def ask(self, rows: RowsName, opened: OpenedSum) -> Vector:
        """∂L/∂θ on some rows."""
        question, blobs = encode_question(self._session_id, rows, self._gate.release(opened))
        return decode_slopes(*await self._line.ask(question, blobs))


@dataclass
class UpdateLoop:
    """The loop of one party."""

    block: Block
    index: int
    spec: AsysqnSpec
    loop_state: LoopState
    plane: ThetaPlane
    pace: Pace
    worker: Executor
    """Where updates are computed."""
    patience_seconds: float = 300.0
    """A loop that the coordinator has not asked about for so long makes no further steps until it does."""
    label_holder: LabelHolder | None = None
    """Who turns θ into slopes, where this party has no labels."""
    checkpoint: int = 0
    """The last checkpoint that was written."""
    staleness: int = 0
    """Most calls of others between a reading and the step made from it, so far."""
    failure: Exception | None = None
    started: float = field(default_factory=time.monotonic)
    heard: float = field(default_factory=time.monotonic)
    """When the coordinator last asked for something."""
    _task: asyncio.Task[None] | None = None
    _alone: int = 0
    _retry_at: float = 0.0
    _delay: float = FIRST_WAIT_SECONDS

    def start(self) -> None:
        """Start stepping; a second start is no other loop."""
        if self._task is None:
            self.started = time.monotonic()
            self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop between two steps, whatever is under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def check(self) -> None:
        """Raise what stopped the loop, if something did."""
        failure = self.failure or self.plane.failure
        if failure is not None:
            raise failure

    async def _run(self) -> None:
        try:
            while True:
                if time.monotonic() - self.heard > self.patience_seconds:
                    await asyncio.sleep(LONGEST_WAIT_SECONDS)
                else:
                    await self._turn()
        except Exception as error:  # told to the coordinator at its next ask
            self.failure = error

    async def _turn(self) -> None:
        loop_state = self.loop_state
        rows = self.block.next_rows(loop_state.state)
        own = await self._compute(self.block.share, loop_state.state, self.index, rows)
        calls_before = self.plane.answered
        found = await self._read(rows, own)
        if found is None and (self._alone >= self.spec.asynchrony.steps_alone or self.label_holder is not None):
            await asyncio.sleep(max(0.0, self._retry_at - time.monotonic()))
            return
        theta = self._others(loop_state, rows) + own if found is None else found.values
        began = time.monotonic()
        try:
            outcome = OpenedTheta(theta) if found is None else await self._outcome(rows, found)
        except PeerLost:
            self._back_off()
            await asyncio.sleep(max(0.0, self._retry_at - began))
            return
        state = await self._compute(self._advance, loop_state.state, rows, outcome, 0.5**self._alone)
        if not isinstance(rows, AllRows):
            await self.pace.keep(began)
        if found is None:
            self._alone += 1
            self.loop_state = replace(loop_state, state=state, updates_alone=loop_state.updates_alone + 1)
            return
        age = self.plane.answered - calls_before
        if age > self.spec.asynchrony.staleness:
            self.loop_state = replace(loop_state, calls=loop_state.calls + 1)
            return
        self.staleness = max(self.staleness, age)
        self._alone, self._delay = 0, FIRST_WAIT_SECONDS
        others = self._remember(loop_state, rows, theta - own)
        self.loop_state = replace(loop_state, state=state, others=others, calls=loop_state.calls + 1)

    async def _read(self, rows: RowsName, own: Vector) -> OpenedSum | None:
        """θ of some rows, or None while a party cannot be reached."""
        if time.monotonic() < self._retry_at:
            return None
        try:
            return await self.plane.read(rows, own)
        except PeerLost:
            self._back_off()
            return None

    def _back_off(self) -> None:
        self._retry_at = time.monotonic() + self._delay
        self._delay = min(2 * self._delay, LONGEST_WAIT_SECONDS)

    async def _outcome(self, rows: RowsName, opened: OpenedSum) -> Outcome:
        if self.label_holder is None:
            return OpenedTheta(opened.values)
        return Derivative(await self.label_holder.ask(rows, opened))

    def _advance(self, state: asysqn.State, rows: RowsName, outcome: Outcome, damp: float) -> asysqn.State:
        return self.block.advance(state, self.index, rows, outcome, damp=damp)

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
