"""The registry's tables and records."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from parley.spec.events import Body, RunTotals, from_json
from parley.storage.migrations import History

metadata = sa.MetaData()
runs = sa.Table(
    "runs",
    metadata,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("run_id", sa.String(64), nullable=False, unique=True),
    sa.Column("request_id", sa.String(128), nullable=False, unique=True),
    sa.Column("name", sa.String(64), nullable=False),
    sa.Column("algorithm", sa.String(32), nullable=False),
    sa.Column("parties", sa.Text, nullable=False),
    sa.Column("spec_yaml", sa.Text, nullable=False),
    sa.Column("state", sa.String(32), nullable=False, index=True),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("step", sa.BigInteger, nullable=False),
    sa.Column("steps", sa.BigInteger, nullable=False),
    sa.Column("checkpoint", sa.BigInteger, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("metrics", sa.Text, nullable=False),
    sa.Column("created", sa.String(40), nullable=False),
    sa.Column("changed", sa.String(40), nullable=False),
    sa.Column("tags", sa.Text, nullable=False, server_default="[]"),
    sa.Column("owner", sa.String(200), nullable=False, server_default=sa.text("''")),
    sa.Column("priority", sa.Integer, nullable=False, server_default="0"),
    sa.Column("protocol", sa.Integer, nullable=False, server_default="0"),
)
events = sa.Table(
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
    sa.Column("body", sa.Text, nullable=True),  # JSON; most events of 0.1.0 have none
)
kept = sa.Table(
    "kept",
    metadata,
    sa.Column("run_id", sa.String(64), primary_key=True),
    sa.Column("checkpoint", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("content", sa.LargeBinary, nullable=False),
)
writer = sa.Table(
    "registry_writer",
    metadata,
    sa.Column("one", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("token", sa.String(64), nullable=False),  # of the one coordinator that may write
)
deployments = sa.Table(
    "deployments",
    metadata,
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("run_id", sa.String(64), nullable=False),
    sa.Column("table_name", sa.String(255), nullable=False),
    sa.Column("current", sa.Boolean, nullable=False),  # the version that answers
    sa.Column("deployed_by", sa.String(255), nullable=False),
    sa.Column("deployed", sa.String(40), nullable=False),
)
HISTORY = History("registry", metadata, Path(__file__).parent / "registry_revisions", newest="0007")

DRIVEN = ("PENDING", "RUNNING", "PAUSED")
QUEUED = "QUEUED"
ACTIVE = (QUEUED, *DRIVEN)
ENDED = frozenset({"COMPLETED", "FAILED", "CANCELLED", "BUDGET_EXHAUSTED"})
BRIEF = [column for column in runs.columns if column.name != "spec_yaml"]
"""What a list of runs shows: a spec may be a megabyte."""


@dataclass(frozen=True)
class RunRecord:
    """A run as the database has it."""

    run_id: str
    request_id: str
    name: str
    algorithm: str
    parties: tuple[str, ...]
    spec_yaml: str
    """Empty in lists."""
    steps: int
    state: str = "PENDING"
    reason: str = ""
    step: int = 0
    checkpoint: int = 0
    attempt: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    created: str = ""
    changed: str = ""
    tags: tuple[str, ...] = ()
    owner: str = ""
    """Who started it, such as `client analyst`; empty for runs of versions that did not note it."""
    priority: int = 0
    """Of runs that wait, the highest goes first."""
    protocol: int = 0
    """Version of the protocol in which its parties were last asked; 0 if nobody noted it."""
    position: int = 0
    """Its place among those that wait, from 1; 0 if it does not."""

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen unless it is resumed."""
        return self.state in ENDED

    @property
    def totals(self) -> RunTotals:
        """The work of all attempts so far."""
        return RunTotals.of(self.metrics)


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
    """What happened; none in most events that 0.1.0 wrote."""


def row_of(record: RunRecord) -> dict[str, Any]:
    """A record as its row."""
    lists = {"parties": json.dumps(record.parties), "tags": json.dumps(record.tags)}
    values = {name: value for name, value in vars(record).items() if name != "position"}
    return values | lists | {"metrics": json.dumps(dict(record.metrics))}


def record_of(row: sa.RowMapping) -> RunRecord:
    """A row as its record; without the spec if the row has none."""
    values = {name: row[name] for name in RunRecord.__dataclass_fields__ if name in row}
    values["parties"], values["metrics"] = tuple(json.loads(row["parties"])), json.loads(row["metrics"])
    values["tags"] = tuple(json.loads(row["tags"]))
    return RunRecord(**{"spec_yaml": ""} | values)


def event_of(row: sa.RowMapping) -> EventRecord:
    """A row as its event."""
    values = {name: row[name] for name in EventRecord.__dataclass_fields__}
    body = None if row["body"] is None else from_json(row["kind"], row["body"])
    return EventRecord(**values | {"metrics": json.loads(row["metrics"]), "body": body})
