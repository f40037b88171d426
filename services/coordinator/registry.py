"""Runs and their events, in the database: what was registered, where it stands, and what happened."""

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, TypeVar

import sqlalchemy as sa

from parley.services.coordinator.registry_tables import (
    ACTIVE,
    BRIEF,
    DRIVEN,
    HISTORY,
    QUEUED,
    EventRecord,
    RunRecord,
    event_of,
    record_of,
    row_of,
)
from parley.services.coordinator.registry_tables import events as _events
from parley.services.coordinator.registry_tables import kept as _kept
from parley.services.coordinator.registry_tables import runs as _runs
from parley.services.coordinator.registry_tables import writer as _writer
from parley.spec.events import Body, newest, to_json
from parley.spec.run import LEAST_CHECKPOINTS
from parley.storage.engines import open_engine, require_whole, write_transaction
from parley.storage.failures import StorageDamaged, damaged, named_failures
from parley.storage.migrations import upgrade

WHOSE = "the coordinator"
DIGEST_BYTES = 32
"""What is kept ends with its SHA-256, as the parties' checkpoints do."""
Record = TypeVar("Record")
LONGEST_ID = 64
"""A longer id names no run, and is not repeated in what is told of it."""


class RunUnknown(LookupError):
    """There is no such run."""

    @classmethod
    def named(cls, run_id: str) -> "RunUnknown":
        """What is told of an id that names no run."""
        shown = run_id if len(run_id) <= LONGEST_ID else run_id[:LONGEST_ID] + "…"
        return cls(f"no run {shown!r}: `parley run list` shows the runs that there are")


class StateMissing(LookupError):
    """The coordinator's own state of a checkpoint is not there, or is damaged."""


class NotTheWriter(RuntimeError):
    """Another coordinator has taken the database over; this one may not write any more."""


@dataclass(frozen=True)
class Filter:
    """Which runs a list shows."""

    states: tuple[str, ...] = ()
    """Any of them; all if empty."""
    algorithm: str = ""
    name: str = ""
    """Part of the run's id or name, or one of its tags."""
    tag: str = ""

    @property
    def conditions(self) -> list[sa.ColumnElement[bool]]:
        """As SQL."""
        found: list[sa.ColumnElement[bool]] = []
        if self.states:
            found.append(_runs.c.state.in_(self.states))
        if self.algorithm:
            found.append(_runs.c.algorithm == self.algorithm)
        if self.name:
            part = f"%{_literal(self.name)}%"
            named = [column.ilike(part, escape="\\") for column in (_runs.c.run_id, _runs.c.name)]
            found.append(sa.or_(*named, _tagged(self.name)))
        if self.tag:
            found.append(_tagged(self.tag))
        return found


def _tagged(tag: str) -> sa.ColumnElement[bool]:
    """Whether a run has a tag, as the column spells it."""
    return _runs.c.tags.like(f"%{_literal(json.dumps(tag))}%", escape="\\")


ALL = Filter()


def open_registry(url: str) -> "Registry":
    """The registry at a database URL, its file read through once.

    Raises:
        StorageAway, StorageDamaged: if the database cannot be read.
        DatabaseRefused: if a newer version of this program has written it.
    """
    require_whole(WHOSE, url)
    return Registry(open_engine(url))


class Registry:
    """The coordinator's runs."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._token: str | None = None
        with self._named_failures():
            upgrade(engine, HISTORY)

    def close(self) -> None:
        """Give the connections back."""
        self._engine.dispose()

    def claim(self, token: str) -> None:
        """Become the one that writes: whoever was before is refused from now on."""
        with self._named_failures(), write_transaction(self._engine) as connection:
            connection.execute(_writer.delete())
            connection.execute(_writer.insert().values(one=1, token=token))
        self._token = token

    def writer(self) -> str | None:
        """The token of the coordinator that may write."""
        with self.reading() as connection:
            return connection.scalar(sa.select(_writer.c.token))

    def create(self, record: RunRecord) -> RunRecord:
        """Register a run."""
        time = now()
        values = row_of(record) | {"created": time, "changed": time}
        with self.writing() as connection:
            connection.execute(_runs.insert().values(values))
        return self.get(record.run_id)

    def get(self, run_id: str) -> RunRecord:
        """One run."""
        with self.reading() as connection:
            row = connection.execute(_runs.select().where(_runs.c.run_id == run_id)).mappings().first()
            if row is None:
                raise RunUnknown.named(run_id)
            return self._placed(connection, [self._read(record_of, row)])[0]

    def by_request(self, request_id: str) -> RunRecord | None:
        """The run that a request started, if it started one."""
        with self.reading() as connection:
            row = connection.execute(_runs.select().where(_runs.c.request_id == request_id)).mappings().first()
            return None if row is None else self._placed(connection, [self._read(record_of, row)])[0]

    def page(self, limit: int, before: int | None = None, only: Filter = ALL) -> list[tuple[int, RunRecord]]:
        """Runs without their specs, newest first, each with its number; `before` goes on after the last of a page."""
        query = sa.select(*BRIEF).where(*only.conditions).order_by(_runs.c.number.desc()).limit(limit)
        if before is not None:
            query = query.where(_runs.c.number < before)
        with self.reading() as connection:
            rows = connection.execute(query).mappings().all()
            records = self._placed(connection, [self._read(record_of, row) for row in rows])
        return [(row["number"], record) for row, record in zip(rows, records, strict=True)]

    def states(self) -> dict[str, int]:
        """How many runs are in each state."""
        query = sa.select(_runs.c.state, sa.func.count()).group_by(_runs.c.state)
        with self.reading() as connection:
            return {state: int(number) for state, number in connection.execute(query)}

    def unfinished(self) -> list[RunRecord]:
        """Runs that were active when the coordinator stopped."""
        query = _runs.select().where(_runs.c.state.in_(DRIVEN)).order_by(_runs.c.number)
        with self.reading() as connection:
            rows = connection.execute(query).mappings().all()
        return [self._read(record_of, row) for row in rows]

    def queued(self) -> list[RunRecord]:
        """Runs that wait for their turn, without their specs, the next one first."""
        with self.reading() as connection:
            rows = connection.execute(_in_turn(*BRIEF)).mappings().all()
        return [self._read(record_of, row) for row in rows]

    def waiting(self, party: str) -> list[str]:
        """Runs that are paused and that a party takes part in."""
        query = sa.select(_runs.c.run_id, _runs.c.parties).where(_runs.c.state == "PAUSED").order_by(_runs.c.number)
        with self.reading() as connection:
            return [run_id for run_id, parties in connection.execute(query) if party in json.loads(parties)]

    def change(self, run_id: str, body: Body, message: str, *, time: str = "", **changes: Any) -> EventRecord:
        """Change a run and note the event, in one transaction.

        The body's metrics are merged into the newest ones; `kept` is the coordinator's own state of the new
        `checkpoint`, and `keep` how many checkpoints' states stay; `at` is the event's own step where that is not the
        run's. A caller that may try again gives a `time`, the same with each try: a retry then finds what the first has
        written, if it has. Without one, every call notes an event, also in the same millisecond.
        """
        kept, tried_before = changes.pop("kept", None), time
        time = time or now()
        keep = changes.pop("keep", LEAST_CHECKPOINTS)
        at = changes.pop("at", changes.get("step"))
        with self.writing() as connection:
            query = _runs.select().where(_runs.c.run_id == run_id).with_for_update()
            row = connection.execute(query).mappings().first()
            if row is None:
                raise RunUnknown.named(run_id)
            last = _last_event(connection, run_id)
            if last is not None and (last["time"], last["kind"], last["message"]) == (tried_before, body.kind, message):
                return event_of(last)
            merged = newest(json.loads(row["metrics"]), body.metrics)
            values = changes | {"metrics": json.dumps(merged), "changed": time}
            connection.execute(_runs.update().where(_runs.c.run_id == run_id).values(values))
            if kept is not None:
                _keep(connection, run_id, changes["checkpoint"], kept, keep)
            event = EventRecord(
                sequence=(last["sequence"] if last is not None else 0) + 1,
                time=time,
                kind=body.kind,
                message=message,
                step=row["step"] if at is None else at,
                metrics=dict(body.metrics),
                state=changes.get("state", row["state"]),
                body=body,
            )
            written = {"run_id": run_id, "metrics": json.dumps(event.metrics), "body": to_json(body)}
            connection.execute(_events.insert().values(vars(event) | written))
        return event

    def tag(self, run_id: str, add: Sequence[str], remove: Sequence[str]) -> RunRecord:
        """Put tags on a run and take others off."""
        with self.writing() as connection:
            query = sa.select(_runs.c.tags).where(_runs.c.run_id == run_id).with_for_update()
            found = connection.scalar(query)
            if found is None:
                raise RunUnknown.named(run_id)
            tags = sorted((set(json.loads(found)) | set(add)) - set(remove))
            connection.execute(_runs.update().where(_runs.c.run_id == run_id).values(tags=json.dumps(tags)))
        return self.get(run_id)

    def delete(self, run_ids: Sequence[str]) -> list[str]:
        """Forget ended runs: their records, their events and what was kept; ledgers stay. Returns which it were."""
        with self.writing() as connection:
            ended = sa.select(_runs.c.run_id).where(_runs.c.run_id.in_(run_ids), _runs.c.state.not_in(ACTIVE))
            found = list(connection.scalars(ended.order_by(_runs.c.number)))
            for table in (_runs, _events, _kept):
                connection.execute(table.delete().where(table.c.run_id.in_(found)))
        return found

    def ended_before(self, time: str, limit: int, states: Sequence[str] = ()) -> list[str]:
        """Runs that ended before a time, RFC 3339 in UTC, oldest first."""
        ended = _runs.c.state.in_(states) if states else _runs.c.state.not_in(ACTIVE)
        query = sa.select(_runs.c.run_id).where(ended, _runs.c.changed < time).order_by(_runs.c.number).limit(limit)
        with self.reading() as connection:
            return list(connection.scalars(query))

    def kept(self, run_id: str, checkpoint: int) -> bytes:
        """The coordinator's own state of a committed checkpoint."""
        query = sa.select(_kept.c.content).where(_kept.c.run_id == run_id, _kept.c.checkpoint == checkpoint)
        with self.reading() as connection:
            content = connection.scalar(query)
        if content is None:
            raise StateMissing(f"nothing was kept of checkpoint {checkpoint}")
        data, digest = bytes(content)[:-DIGEST_BYTES], bytes(content)[-DIGEST_BYTES:]
        if hashlib.sha256(data).digest() != digest:
            raise StateMissing(f"what was kept of checkpoint {checkpoint} is damaged: its checksum does not fit")
        return data

    def events(self, run_id: str, after: int, limit: int = 1000) -> list[EventRecord]:
        """Events of a run after a sequence number, oldest first."""
        query = (
            _events.select()
            .where(_events.c.run_id == run_id, _events.c.sequence > after)
            .order_by(_events.c.sequence)
            .limit(limit)
        )
        with self.reading() as connection:
            rows = connection.execute(query).mappings().all()
        return [self._read(event_of, row) for row in rows]

    @contextlib.contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """A connection that looks."""
        with self._named_failures(), self._engine.connect() as connection:
            yield connection

    @contextlib.contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """A transaction of the one coordinator that may write."""
        with self._named_failures(), write_transaction(self._engine) as connection:
            if self._token is not None and connection.scalar(sa.select(_writer.c.token)) != self._token:
                raise NotTheWriter("another coordinator has taken this database over: stop one of the two")
            yield connection

    def _placed(self, connection: sa.Connection, records: list[RunRecord]) -> list[RunRecord]:
        """The same records, with their places among those that wait."""
        if not any(record.state == QUEUED for record in records):
            return records
        places = {run_id: place for place, run_id in enumerate(connection.scalars(_in_turn(_runs.c.run_id)), 1)}
        return [replace(record, position=places.get(record.run_id, 0)) for record in records]

    def _named_failures(self) -> contextlib.AbstractContextManager[None]:
        return named_failures(WHOSE, self._engine)

    def _read(self, decode: Callable[[sa.RowMapping], Record], row: sa.RowMapping) -> Record:
        """A row's content; one that is not what was written is damage, whatever the database says of its pages."""
        try:
            return decode(row)
        except (ValueError, TypeError, KeyError) as error:
            raise self._damaged(str(row.get("run_id", ""))) from error

    def _damaged(self, run_id: str) -> StorageDamaged:
        return damaged(f"{WHOSE}'s database {self._engine.url.database}", f"what it has of run {run_id!r} is no record")


def _in_turn(*columns: sa.ColumnElement[Any]) -> sa.Select[Any]:
    """Columns of runs that wait for their turn, the next one first; a run last changed when it was queued."""
    order = (_runs.c.priority.desc(), _runs.c.changed, _runs.c.number)
    return sa.select(*columns).where(_runs.c.state == QUEUED).order_by(*order)


def _last_event(connection: sa.Connection, run_id: str) -> sa.RowMapping | None:
    query = _events.select().where(_events.c.run_id == run_id).order_by(_events.c.sequence.desc()).limit(1)
    return connection.execute(query).mappings().first()


def _keep(connection: sa.Connection, run_id: str, checkpoint: int, content: bytes, keep: int) -> None:
    """Keep the state of a checkpoint, once; older ones beyond the newest few are dropped."""
    mine = _kept.c.run_id == run_id
    connection.execute(_kept.delete().where(mine, _kept.c.checkpoint >= checkpoint))
    sealed = content + hashlib.sha256(content).digest()
    connection.execute(_kept.insert().values(run_id=run_id, checkpoint=checkpoint, content=sealed))
    newest = connection.scalars(sa.select(_kept.c.checkpoint).where(mine).order_by(_kept.c.checkpoint.desc())).all()
    connection.execute(_kept.delete().where(mine, _kept.c.checkpoint.in_(newest[keep:])))


def _literal(text: str) -> str:
    """Text for LIKE, its wildcards as plain characters."""
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def now() -> str:
    """The time, as the registry notes it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
