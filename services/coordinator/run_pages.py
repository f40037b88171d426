"""Runs as clients see them: one with its spec, or a page of a list without."""

from collections.abc import Iterable, Sequence

from parley.contracts.run.v1 import run_pb2, run_service_pb2
from parley.protocols.tensor.codec import MessageInvalid
from parley.services.coordinator.registry_tables import RunRecord
from parley.services.wire.event_codec import encode_metrics
from parley.services.wire.pages import PAGE_BYTES, page_token


def run_message(record: RunRecord) -> run_pb2.Run:
    """A run as clients see it."""
    return run_pb2.Run(
        run_id=record.run_id,
        name=record.name,
        algorithm=record.algorithm,
        state=run_pb2.RunState.Value(f"RUN_STATE_{record.state}"),
        reason=record.reason,
        parties=record.parties,
        step=record.step,
        steps=record.steps,
        metrics=encode_metrics(record.metrics),
        created=record.created,
        changed=record.changed,
        spec_yaml=record.spec_yaml,
        attempt=record.attempt,
        tags=record.tags,
        queue_position=record.position,
        priority=record.priority,
        started_by=record.owner,
        protocol=record.protocol,
    )


def runs_page(numbered: Sequence[tuple[int, RunRecord]], limit: int) -> run_service_pb2.ListRunsResponse:
    """A page of at most `limit` runs, with the token of the next one if there is more."""
    page, size = run_service_pb2.ListRunsResponse(), 0
    for number, record in numbered[:limit]:
        message = run_message(record)
        size += message.ByteSize()
        if page.runs and size > PAGE_BYTES:
            break
        page.runs.append(message)
        page.next_page_token = page_token(number)
    if len(page.runs) == len(numbered):
        page.next_page_token = ""
    return page


def decode_states(states: Iterable[int]) -> tuple[str, ...]:
    """States by name, as the registry has them."""
    known = run_pb2.RunState.DESCRIPTOR.values_by_number
    names = [known[state].name if state in known else "" for state in states]
    if any(name in ("", "RUN_STATE_UNSPECIFIED") for name in names):
        raise MessageInvalid("states: name states that a run can have, or none for all")
    return tuple(name.removeprefix("RUN_STATE_") for name in names)
