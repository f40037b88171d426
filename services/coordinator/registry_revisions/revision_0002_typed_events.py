"""Events have a typed body, as JSON.

0.1.0 said in sentences alone which table a party opened, who left, and where an attempt began. A model card needs these
of old runs too, so here, for the last time, they are read out of the sentences. Other old events have no body.
"""

import json
import re

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_DATA = re.compile(r"(?P<party>\S+): (?P<rows>\d+) rows, (?P<columns>\d+) columns, ids sha256 (?P<id_sha256>[0-9a-f]+)")
_LEFT = re.compile(r"(?P<party>\S+) left at round (?P<round>\d+); going on with (?P<remaining>\d+)")
_BEGUN = re.compile(r"(started at|resumed from) iteration (?P<from_step>\d+)")


def upgrade() -> None:
    """Add the column, and fill it from the sentences of 0.1.0."""
    op.add_column("events", sa.Column("body", sa.Text, nullable=True))
    events = sa.table("events", *(sa.column(name) for name in ("run_id", "sequence", "kind", "message", "body")))
    readable = sa.select(events).where(events.c.kind.in_(("data", "party", "state")))
    connection, attempts = op.get_bind(), dict[str, int]()
    for event in connection.execute(readable.order_by(events.c.run_id, events.c.sequence)).all():
        body = _body(event.kind, event.message)
        if body is None:
            continue
        if event.kind == "state":
            attempts[event.run_id] = body["attempt"] = attempts.get(event.run_id, 0) + 1
        this = (events.c.run_id == event.run_id) & (events.c.sequence == event.sequence)
        connection.execute(events.update().where(this).values(body=json.dumps(body)))


def _body(kind: str, message: str) -> dict[str, str | int] | None:
    found = {"data": _DATA, "party": _LEFT, "state": _BEGUN}[kind].fullmatch(message)
    if found is None:
        return None
    numbers = ("rows", "columns", "round", "remaining", "from_step")
    body = {name: int(text) if name in numbers else text for name, text in found.groupdict().items()}
    return body | {"change": "left", "goes_on": True} if kind == "party" else body


def downgrade() -> None:
    """Drop it, with what it holds; the sentences stay."""
    op.drop_column("events", "body")
