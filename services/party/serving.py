"""A deployed model at this party: its part of every row's sum, computed once, and what the owner's policy asks.

A session that serves stays open. Each round names rows; this party adds what it has ready for them, under the masks of
the round. A question that the policy or the table does not allow is declined, and the session goes on: nothing of this
party leaves in that round, so that its sum does not open.
"""

import asyncio
import hashlib
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from google.protobuf.message import Message
from numpy.typing import NDArray

from parley.contracts.serving.v1 import serving_pb2 as pb
from parley.party.roles import BackgroundRole, Begun, PartyAlgorithm, Plan, PlanningRole, Role, SavedModel
from parley.privacy.release import Release
from parley.protocols.tensor.codec import Blobs, MessageInvalid
from parley.services.party.asked_rows import Allowance, TooManyRowsAsked
from parley.services.party.config import PredictionPolicy
from parley.tables.errors import TableError
from parley.tables.loading import Table
from parley.tables.preprocessing import Fitted, apply
from parley.tables.spelling import DateColumn

if TYPE_CHECKING:
    from torch import Tensor

PAGE_ROWS = 4096
"""Rows that are computed at a time when a session begins."""
MOST_ROWS = 4096
"""Most rows of one round."""
MINUTE_SECONDS = 60.0
LOOK_SECONDS = 1.0
"""How often a session looks whether its table has changed, or its owner withdrawn it."""
Drafts = NDArray[np.floating[Any]]


class RowsDeclined(Exception):
    """This party takes no part in a round; the session goes on."""

    def __init__(self, reason: str, message: str, rows: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.reason, self.rows = reason, rows


class DeploymentWithdrawn(PermissionError):
    """The party's owner takes no part in deployments of this run."""


@dataclass(frozen=True)
class Question:
    """The rows of one round, and the algorithm's instruction that asks for their sum."""

    instruction: Any
    served: pb.ServedRows
    features: pb.GivenFeatures

    @property
    def common(self) -> bytes:
        """SHA-256 of what every party is told of the rows."""
        return hashlib.sha256(self.served.SerializeToString(deterministic=True)).digest()


@dataclass
class Serving:
    """What a session that serves knows beside its model."""

    party: str
    deployment: str
    policy: PredictionPolicy
    allowance: Allowance
    fitted: Fitted | None
    """How features that callers bring along are preprocessed; None takes none."""
    still_stands: Callable[[], None]
    """Raises where the session must end: the table has changed, or the owner has withdrawn."""
    open_rows: frozenset[str] | None = None
    """The ids that may be asked for; None for all of the table."""
    _looked: float = field(default_factory=time.monotonic)
    _minute: deque[tuple[float, int]] = field(default_factory=deque)

    def look(self) -> None:
        """End the session if it must end; costs nothing most of the time."""
        now = time.monotonic()
        if now - self._looked >= LOOK_SECONDS:
            self._looked = now
            self.still_stands()

    def admit(self, served: pb.ServedRows, names: Sequence[str]) -> None:
        """Ask the policy about a question, before anything is looked up.

        Raises:
            RowsDeclined: naming the line of the policy.
        """
        allowed = self.policy.callers
        if allowed is not None:
            wrong = {place for place, caller in enumerate(served.callers) if caller not in allowed}
            if wrong:
                raise RowsDeclined(
                    "CALLER_REFUSED",
                    f"`predictions.callers` of {self.party}'s policy does not name who asks",
                    [row for row, caller in enumerate(served.asked_by) if caller in wrong],
                )
        for block in served.given:
            if names[block.party] not in self.policy.given:
                raise RowsDeclined(
                    "FEATURES_REFUSED",
                    f"`predictions.given` of {self.party}'s policy does not name {names[block.party]}, so that no "
                    "caller may bring its features along",
                    block.rows,
                )

    def count(self, served: pb.ServedRows, rows: Sequence[int]) -> None:
        """Write down that rows were asked for, a block ahead.

        Raises:
            RowsDeclined: if the policy allows no more of them now.
        """
        self._count_minute(len(rows))
        by_caller: dict[str, int] = {}
        for row in rows:
            caller = served.callers[served.asked_by[row]]
            by_caller[caller] = by_caller.get(caller, 0) + 1
        try:
            for caller, count in by_caller.items():
                self.allowance.take(caller, count)
        except TooManyRowsAsked as limit:
            raise RowsDeclined("TOO_MANY_ROWS_ASKED", str(limit)) from None

    def _count_minute(self, rows: int) -> None:
        limit, now = self.policy.rows_per_minute, time.monotonic()
        if limit is None:
            return
        while self._minute and self._minute[0][0] < now - MINUTE_SECONDS:
            self._minute.popleft()
        if sum(count for _, count in self._minute) + rows > limit:
            raise RowsDeclined(
                "TOO_MANY_ROWS_ASKED",
                f"{self.party} answers about {limit} rows a minute (`predictions.rows_per_minute`): ask more slowly",
            )
        self._minute.append((now, rows))


class ServingRole:
    """A party's part in the sums of a deployed model."""

    def __init__(self, begun: Begun, algorithm: PartyAlgorithm, trained: SavedModel, serving: Serving) -> None:
        self._begun, self._algorithm, self._trained, self._serving = begun, algorithm, trained, serving
        table = begun.opened.table
        self._role, self._state = self._made(table)
        self._place = {identity: row for row, identity in enumerate(table.ids.tolist())}
        if serving.open_rows is not None:
            self._place = {identity: row for identity, row in self._place.items() if identity in serving.open_rows}
        self._drafts = None if algorithm.rows_asked is None else self._computed(len(table))

    def begin(self, checkpoint: "Mapping[str, Tensor] | None") -> None:
        """There is no state: each round stands for itself."""

    def plan(self, _: None, question: Question) -> Plan:
        """This party's addends for the rows of a round."""
        served, serving = question.served, self._serving
        serving.look()
        given = self._checked(question)
        serving.admit(served, self._begun.opened.names)
        looked_up = [row for row in range(len(served.ids)) if row not in given]
        missing = [row for row in looked_up if served.ids[row] not in self._place]
        serving.count(served, missing or range(len(served.ids)))
        if missing:
            raise RowsDeclined("ROWS_DIFFER", f"{serving.party} has no such row for {serving.deployment}", missing)
        known = self._known([self._place[served.ids[row]] for row in looked_up], question.instruction)
        if not given:
            return Plan(None, draft=known.ravel(), row_sums=0)
        brought = self._brought(question.features, list(given))
        whole = np.empty((len(served.ids), brought.shape[1]), brought.dtype)
        whole[list(given)] = brought
        if looked_up:
            whole[looked_up] = known
        return Plan(None, draft=whole.ravel(), row_sums=0)

    def cost_class(self, question: Question) -> Hashable:
        """Rows that are ready cost about the same; those that callers bring have a model made for them."""
        return len(question.served.ids) if self._drafts is not None and not question.features.rows else None

    def encode(self, number: int, question: Question, release: Release[Any] | None) -> tuple[Message, Blobs]:
        """The algorithm's own contribution."""
        encoded: tuple[Message, Blobs] = self._role.encode(number, question.instruction, release)
        return encoded

    async def stop(self, _: None) -> Plan:
        """Let the model's own threads end."""
        if isinstance(self._role, BackgroundRole):
            await self._role.stop(self._state)
        self._serving.allowance.close()
        return Plan(None)

    def tensors(self, _: None) -> "dict[str, Tensor]":
        """Nothing: a session that serves keeps no checkpoint."""
        return {}

    def model_tensors(self, _: None) -> "dict[str, Tensor]":
        """Nothing: the model is saved already."""
        return {}

    def _checked(self, question: Question) -> dict[int, None]:
        """Refuse a question that breaks its contract; returns the rows whose features came along for this party."""
        served, count, parties = question.served, len(question.served.ids), len(self._begun.opened.names)
        if not 0 < count <= MOST_ROWS or len(served.asked_by) != count:
            raise MessageInvalid(f"a round serves 1 to {MOST_ROWS} rows, and says who asks for each")
        if any(caller >= len(served.callers) for caller in served.asked_by):
            raise MessageInvalid("asked_by: there is no such caller")
        own: dict[int, None] = {}
        for block in served.given:
            if block.party >= parties or any(row >= count for row in block.rows):
                raise MessageInvalid("given: there is no such party or row")
            if block.party == self._begun.index:
                own |= dict.fromkeys(block.rows)
        if len(question.features.rows) != len(own):
            raise MessageInvalid("features: one row for each place that `given` names")
        wanted = self._algorithm.rows_asked
        if wanted is not None and question.instruction != wanted(0, count):
            raise MessageInvalid("the instruction asks for something else than the rows that are named")
        return own

    def _known(self, rows: list[int], instruction: Any) -> Drafts:
        """The addends of rows of the table."""
        if not rows or self._drafts is not None:
            return np.empty((0, 1)) if self._drafts is None else self._drafts[rows]
        chosen = np.array(rows)
        table = self._begun.opened.table
        return self._fresh(replace(table, ids=table.ids[chosen], features=table.features[chosen]), instruction)

    def _brought(self, features: pb.GivenFeatures, rows: Sequence[int]) -> Drafts:
        """The addends of rows that came along, preprocessed as the training rows taught."""
        fitted = self._serving.fitted
        if fitted is None or self._algorithm.rows_asked is None:
            raise RowsDeclined("FEATURES_REFUSED", "this run takes no features of callers: name rows by id", rows)
        table = apply_given(features, fitted, self._serving.deployment, rows)
        return self._fresh(table, self._algorithm.rows_asked(0, len(table)))

    def _fresh(self, table: Table, instruction: Any) -> Drafts:
        role, state = self._made(table)
        try:
            draft = _planned(role, state, instruction).draft
        finally:
            if isinstance(role, BackgroundRole):
                asyncio.run(role.stop(state))
        if draft is None:
            raise MessageInvalid("the instruction asks for no sum over rows")
        return np.asarray(draft).reshape(len(table), -1)

    def _made(self, table: Table) -> tuple[Any, Any]:
        assert self._algorithm.predictor is not None  # noqa: S101 (a session that serves is opened only then)
        begun = replace(self._begun, opened=replace(self._begun.opened, table=table))
        role = self._algorithm.predictor(begun, self._trained)
        return role, role.begin(None)

    def _computed(self, count: int) -> Drafts:
        """The addends of every row, ready for any question."""
        asked = self._algorithm.rows_asked
        assert asked is not None  # noqa: S101 (the caller has looked)
        pages = []
        for first in range(0, count, PAGE_ROWS):
            some = min(PAGE_ROWS, count - first)
            draft = _planned(self._role, self._state, asked(first, some)).draft
            pages.append(np.asarray(draft).reshape(some, -1))
        return np.concatenate(pages)


def _planned(role: Role, state: Any, instruction: Any) -> Plan:
    """What a role answers; one that awaits its own threads does so here, in the compute thread."""
    return (
        role.plan(state, instruction)
        if isinstance(role, PlanningRole)
        else asyncio.run(_acted(role, state, instruction))
    )


async def _acted(role: Any, state: Any, instruction: Any) -> Plan:
    plan: Plan = await role.act(state, instruction)
    return plan


def apply_given(features: pb.GivenFeatures, fitted: Fitted, name: str, rows: Sequence[int]) -> Table:
    """Features that came along as a table, preprocessed."""
    numbers = [entry.column for entry in fitted.numbers]
    values = np.empty((len(features.rows), len(numbers)))
    dates = {date.column: date for date in fitted.dates}
    texts = {column: np.empty(len(features.rows), dtype=object) for column in fitted.categorical}
    for place, row in enumerate(features.rows):
        found = dict(zip(row.columns, row.values, strict=False))
        if len(row.columns) != len(row.values) or set(found) != set(fitted.inputs):
            raise RowsDeclined(
                "FEATURES_REFUSED",
                f"features of a row must be its {len(fitted.inputs)} columns that the run was trained on, each once",
                [rows[place]],
            )
        try:
            values[place] = [_given_number(found[column], dates.get(column)) for column in numbers]
        except ValueError:
            problem = "a value of a numeric column is no number, or one of a date no date"
            raise RowsDeclined("FEATURES_REFUSED", problem, [rows[place]]) from None
        if np.isinf(values[place]).any():
            raise RowsDeclined("FEATURES_REFUSED", "a value of a numeric column is infinite", [rows[place]])
        for column, into in texts.items():
            into[place] = found[column] or None
    ids = np.array([str(place) for place in range(len(features.rows))])
    try:
        return apply(fitted, Table(ids, values, numbers, name, texts=texts))
    except TableError:
        raise RowsDeclined(
            "FEATURES_REFUSED", "a value is missing, and the run was trained without any missing", rows
        ) from None


def _given_number(text: str, date: DateColumn | None) -> float:
    """A number, or the days of a date; NaN where there is none."""
    if date is not None:
        return date.day_of(text)
    return float(text) if text else np.nan


class Withdrawals:
    """Runs whose deployments this party's owner takes no part in any more: a file for each, by `parley withdraw`."""

    def __init__(self, state: Path) -> None:
        self._folder = state / "withdrawn"

    def withdraw(self, run_id: str) -> None:
        """Take no further part in deployments of a run."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self._folder / run_id).touch(mode=0o600)

    def take_back(self, run_id: str) -> None:
        """Take part again."""
        (self._folder / run_id).unlink(missing_ok=True)

    def has(self, run_id: str) -> bool:
        """Whether the owner has withdrawn a run."""
        return (self._folder / run_id).exists()

    @property
    def runs(self) -> list[str]:
        """Every run that was withdrawn."""
        return sorted(path.name for path in self._folder.glob("*"))
