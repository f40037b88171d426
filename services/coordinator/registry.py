"""Runs and their events, in the database: what was registered, where it stands, and what happened."""

import contextlib
import hashlib
import json
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from parley.spec.events import Body, from_json, to_json
from parley.storage.migrations import History, upgrade

metadata = sa.MetaData()
_runs = sa.Table(
    "runs",
    metadata,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("run_id", sa.String(64), nullable=False, unique=True),
    sa.Column("request_id", sa.String(128), nullable=False, unique=True),
    sa.Column("name", sa.String(64), nullable=False),
    sa.Column("algorithm", sa.String(32), nullable=False),
    sa.Column("parties", sa.Text, nullable=False),
    sa.Column("spec_yaml", sa.Text, nullable=False),
    sa.Column("state", sa.String(32), nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("step", sa.BigInteger, nullable=False),
    sa.Column("steps", sa.BigInteger, nullable=False),
    sa.Column("checkpoint", sa.BigInteger, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("metrics", sa.Text, nullable=False),
    sa.Column("created", sa.String(40), nullable=False),
    sa.Column("changed", sa.String(40), nullable=False),
)
_events = sa.Table(
    "events",
    metadata,
    sa.Column("run_id", sa.String(64), primary_key=True),
    sa.Column("sequence", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("time", sa.String(40), nullable=False),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("message", sa.Text, nullable=False),
    sa.Column("step", sa.BigInteger, nullable=False),
    sa.Column("metrics", sa.Text, nullable=False),
    sa.Column("state", sa.String(32), nullable=False),
    sa.Column("body", sa.Text, nullable=True),  # JSON; events of 0.1.0 have none
)

_kept = sa.Table(
    "kept",
    metadata,
    sa.Column("run_id", sa.String(64), primary_key=True),
    sa.Column("checkpoint", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("content", sa.LargeBinary, nullable=False),
)
HISTORY = History("registry", metadata, Path(__file__).parent / "registry_revisions", newest="0002")
DIGEST_BYTES = 32
"""What is kept ends with its SHA-256, as the parties' checkpoints do."""
KEPT = 3
"""Checkpoints whose state is kept for each run, as many as the parties keep."""

ENDED = frozenset({"COMPLETED", "FAILED", "CANCELLED", "BUDGET_EXHAUSTED"})


class RunUnknown(LookupError):
    """There is no such run."""


class StateMissing(LookupError):
    """The coordinator's own state of a checkpoint is not there, or is damaged."""


class StorageFailed(OSError):
    """The database did not take a write; what was there before is untouched."""


@dataclass(frozen=True)
class RunRecord:
    """A run as the database has it."""

    run_id: str
    request_id: str
    name: str
    algorithm: str
    parties: tuple[str, ...]
    spec_yaml: str
    steps: int
    state: str = "PENDING"
    reason: str = ""
    step: int = 0
    checkpoint: int = 0
    attempt: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    created: str = ""
    changed: str = ""

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen unless it is resumed."""
        return self.state in ENDED


@dataclass(frozen=True)
class EventRecord:
    """An event as the database has it."""

    sequence: int
    time: str
    kind: str
    message: str
    step: int
    metrics: Mapping[str, float]
    state: str
    body: Body | None = None
    """What happened; none in events that 0.1.0 wrote."""


class Registry:
    """The coordinator's runs."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        if engine.dialect.name == "sqlite":
            sa.event.listen(engine, "connect", _wait_for_other_writers)
        with _naming_failures():
            upgrade(engine, HISTORY)

    def create(self, record: RunRecord) -> RunRecord:
        """Register a run."""
        now = _now()
        values = _row(record) | {"created": now, "changed": now}
        with _naming_failures(), self._engine.begin() as connection:
            connection.execute(_runs.insert().values(values))
        return self.get(record.run_id)

    def get(self, run_id: str) -> RunRecord:
        """One run."""
        with self._engine.connect() as connection:
            row = connection.execute(_runs.select().where(_runs.c.run_id == run_id)).mappings().first()
        if row is None:
            raise RunUnknown(f"no run {run_id!r}: `parley run list` shows the runs that there are")
        return _record(row)

    def by_request(self, request_id: str) -> RunRecord | None:
        """The run that a request started, if it started one."""
        with self._engine.connect() as connection:
            row = connection.execute(_runs.select().where(_runs.c.request_id == request_id)).mappings().first()
        return None if row is None else _record(row)

    def recent(self, limit: int) -> list[RunRecord]:
        """Runs, newest first."""
        query = _runs.select().order_by(_runs.c.number.desc()).limit(limit)
        with self._engine.connect() as connection:
            return [_record(row) for row in connection.execute(query).mappings()]

    def states(self) -> dict[str, int]:
        """How many runs are in each state."""
        query = sa.select(_runs.c.state, sa.func.count()).group_by(_runs.c.state)
        with self._engine.connect() as connection:
            return {state: int(number) for state, number in connection.execute(query)}

    def unfinished(self) -> list[RunRecord]:
        """Runs that were active when the coordinator stopped."""
        query = _runs.select().where(_runs.c.state.not_in(ENDED)).order_by(_runs.c.number)
        with self._engine.connect() as connection:
            return [_record(row) for row in connection.execute(query).mappings()]

    def change(self, run_id: str, body: Body, message: str, **changes: Any) -> EventRecord:
        """Change a run and note the event, in one transaction.

        The body's metrics are merged into the newest ones; `kept` is the coordinator's own state of the new
        `checkpoint`.
        """
        kept = changes.pop("kept", None)
        with _naming_failures(), self._engine.begin() as connection:
            query = _runs.select().where(_runs.c.run_id == run_id).with_for_update()
            row = connection.execute(query).mappings().first()
            if row is None:
                raise RunUnknown(f"no run {run_id!r}")
            merged = {**json.loads(row["metrics"]), **body.metrics}
            values = changes | {"metrics": json.dumps(merged), "changed": _now()}
            connection.execute(_runs.update().where(_runs.c.run_id == run_id).values(values))
            if kept is not None:
                _keep(connection, run_id, changes["checkpoint"], kept)
            last = connection.scalar(sa.select(sa.func.max(_events.c.sequence)).where(_events.c.run_id == run_id))
            event = EventRecord(
                sequence=(last or 0) + 1,
                time=values["changed"],
                kind=body.kind,
                message=message,
                step=changes.get("step", row["step"]),
                metrics=dict(body.metrics),
                state=changes.get("state", row["state"]),
                body=body,
            )
            written = {"run_id": run_id, "metrics": json.dumps(event.metrics), "body": to_json(body)}
            connection.execute(_events.insert().values(vars(event) | written))
        return event

    def kept(self, run_id: str, checkpoint: int) -> bytes:
        """The coordinator's own state of a committed checkpoint."""
        query = sa.select(_kept.c.content).where(_kept.c.run_id == run_id, _kept.c.checkpoint == checkpoint)
        with self._engine.connect() as connection:
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
        with self._engine.connect() as connection:
            return [_event(row) for row in connection.execute(query).mappings()]


@contextlib.contextmanager
def _naming_failures() -> Iterator[None]:
    try:
        yield
    except (sa.exc.DatabaseError, sqlite3.Error, UnicodeDecodeError) as error:
        if isinstance(error, sa.exc.IntegrityError):
            raise
        raise StorageFailed(
            f"the coordinator's database cannot be written ({getattr(error, 'orig', None) or type(error).__name__}): "
            "make room on its disk, or bring its server back, then resume the run; a damaged file is restored from a "
            "backup"
        ) from error


def _keep(connection: sa.Connection, run_id: str, checkpoint: int, content: bytes) -> None:
    """Keep the state of a checkpoint, once; older ones beyond the newest few are dropped."""
    mine = _kept.c.run_id == run_id
    connection.execute(_kept.delete().where(mine, _kept.c.checkpoint >= checkpoint))
    sealed = content + hashlib.sha256(content).digest()
    connection.execute(_kept.insert().values(run_id=run_id, checkpoint=checkpoint, content=sealed))
    newest = connection.scalars(sa.select(_kept.c.checkpoint).where(mine).order_by(_kept.c.checkpoint.desc())).all()
    connection.execute(_kept.delete().where(mine, _kept.c.checkpoint.in_(newest[KEPT:])))


def _row(record: RunRecord) -> dict[str, Any]:
    return vars(record) | {"parties": json.dumps(record.parties), "metrics": json.dumps(dict(record.metrics))}


def _record(row: sa.RowMapping) -> RunRecord:
    values = {name: row[name] for name in RunRecord.__dataclass_fields__}
    values["parties"], values["metrics"] = tuple(json.loads(row["parties"])), json.loads(row["metrics"])
    return RunRecord(**values)


def _event(row: sa.RowMapping) -> EventRecord:
    values = {name: row[name] for name in EventRecord.__dataclass_fields__}
    body = None if row["body"] is None else from_json(row["kind"], row["body"])
    return EventRecord(**values | {"metrics": json.loads(row["metrics"]), "body": body})


def _wait_for_other_writers(connection: Any, _record: Any) -> None:
    """Many runs and the ledger write to one file; a slow disk makes them queue, not fail."""
    cursor = connection.cursor()
    cursor.execute("PRAGMA busy_timeout=30000")
    cursor.close()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
