"""Runs beyond the limit wait for their turn, by priority, over a restart too; a schedule starts runs by the clock."""

import time
from datetime import UTC, datetime, timedelta

import pytest

from parley.client import RequestRefused
from parley.services.wire.audit import read_trail
from parley.testing.federations import ForkedFederation
from tests.integration.conftest import PARTIES, spec, tables_of

PATIENCE_SECONDS = 240


@pytest.fixture(scope="module")
def narrow(data, tmp_path_factory):
    """A coordinator that drives one run at a time, lets two wait, and has a schedule that was due a minute ago."""
    directory = tmp_path_factory.mktemp("narrow")
    (directory / "nightly.yaml").write_text(spec(name="nightly", train__upper__steps=1))
    due = datetime.now(UTC) - timedelta(minutes=1)
    local = ForkedFederation(
        directory,
        {party: {"digits": tables_of(data, party)["digits"]} for party in PARTIES[:3]},
        {"digits": {"path": str(data / "digits" / "labels.parquet"), "budget": {"epsilon": 1e5}}},
        coordinator_options={
            "runs": 1,
            "queue": 2,
            "schedules": {"nightly": {"every": f"day at {due:%H:%M}", "spec": "nightly.yaml"}},
        },
    )
    with local:
        yield local


def until(condition):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_schedule_starts_one_run_for_each_moment_and_is_in_the_audit_trail(narrow):
    with narrow.connect() as client:
        until(lambda: [run.state for run in client.runs(name="nightly")] == ["COMPLETED"])
        (run,) = client.runs(name="nightly")
        assert run.message.started_by == "schedule nightly"
    narrow.kill("coordinator")
    narrow.restart("coordinator")
    with narrow.connect() as client:
        client.parties()
        assert len(client.runs(name="nightly")) == 1, "its moment started it once"
    entries = list(read_trail(narrow.directory / "state" / "coordinator"))
    assert ("schedule", "nightly", "start", "admitted") in [(e.role, e.name, e.action, e.outcome) for e in entries]


def test_runs_beyond_the_limit_wait_by_priority_and_outlast_a_restart(narrow):
    with narrow.connect() as client:
        until(lambda: [run.state for run in client.runs(name="nightly")] == ["COMPLETED"])
        first = client.start(spec(name="first", train__upper__steps=100_000, evaluate_every=0))
        later = client.start(spec(name="later", train__upper__steps=1))
        urgent = client.start(spec(name="urgent", train__upper__steps=1), priority=5)
        assert (later.state, later.message.queue_position) == ("QUEUED", 1)
        assert (urgent.state, urgent.message.queue_position) == ("QUEUED", 1)
        assert urgent.message.started_by == "client client"
        assert later.refresh().message.queue_position == 2
        listed = {run.run_id: run.message.queue_position for run in client.runs(states=["QUEUED"])}
        assert listed == {urgent.run_id: 1, later.run_id: 2}
        with pytest.raises(RequestRefused, match="TOO_MANY_RUNS"):
            client.start(spec(name="refused"))
        with pytest.raises(RequestRefused, match="RUN_ACTIVE"):
            later.resume()
    narrow.kill("coordinator")
    narrow.restart("coordinator")
    with narrow.connect() as client:
        first, later, urgent = (client.run(run.run_id) for run in (first, later, urgent))
        assert (urgent.message.queue_position, later.message.queue_position) == (1, 2)
        assert later.cancel().state == "CANCELLED"
        first.cancel()
        events = list(urgent.watch())
        assert urgent.state == "COMPLETED"
        messages = [event.message for event in events]
        assert messages[0].startswith("waits for its turn as number 1")
        assert messages[1] == "its turn has come"
        assert later.refresh().state == "CANCELLED", "nobody starts it"


def test_a_queued_run_of_an_unknown_party_is_refused_at_once(narrow):
    with narrow.connect() as client:
        first = client.start(spec(name="first", train__upper__steps=100_000, evaluate_every=0))
        with pytest.raises(RequestRefused, match="PARTY_UNKNOWN"):
            client.start(spec(parties=["bank", "nobody"]))
        first.cancel()
