"""One contract for the run registry, run on SQLite and PostgreSQL."""

import threading
import uuid

import pytest
import sqlalchemy as sa

from parley.services.coordinator.registry import Registry, RunRecord, RunUnknown
from parley.spec.events import RunEvaluation, RunProgress, RunStateChange, RunTotals


@pytest.fixture(params=["sqlite", "postgresql"])
def registry(request, tmp_path):
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres_database")
    engine = sa.create_engine(url)
    yield Registry(engine)
    engine.dispose()


@pytest.fixture
def run(registry):
    return registry.create(record())


def record(**changes):
    name = uuid.uuid4().hex
    fields = {"run_id": f"run-{name}", "request_id": name, "name": "small", "algorithm": "bambi"}
    return RunRecord(**fields | {"parties": ("bank", "shop"), "spec_yaml": "name: small", "steps": 10} | changes)


def test_a_run_is_found_again_as_it_was_registered(registry, run):
    found = registry.get(run.run_id)
    assert found == run
    assert (found.state, found.parties, found.steps, found.checkpoint) == ("PENDING", ("bank", "shop"), 10, 0)
    assert registry.by_request(run.request_id) == run
    assert registry.recent(1) == [run]


def test_an_unknown_run_is_named(registry):
    with pytest.raises(RunUnknown, match="nowhere"):
        registry.get("nowhere")
    with pytest.raises(RunUnknown):
        registry.change("nowhere", RunStateChange(), "moved")
    assert registry.by_request("nowhere") is None


def test_one_request_registers_one_run(registry, run):
    with pytest.raises(sa.exc.IntegrityError):
        registry.create(record(request_id=run.request_id))


def test_a_change_and_its_event_are_one(registry, run):
    body = RunEvaluation(RunTotals(rounds=4), {"test accuracy": 0.5})
    event = registry.change(run.run_id, body, "iteration 2", step=2)
    registry.change(run.run_id, RunProgress(RunTotals(rounds=6), measured={"loss": 1.5}), "iteration 3", step=3)
    changed = registry.get(run.run_id)
    newest = {"test accuracy": 0.5, "loss": 1.5, **RunTotals(rounds=6).metrics}
    assert (changed.step, dict(changed.metrics)) == (3, newest)
    assert registry.events(run.run_id, 0)[0] == event
    assert (event.kind, event.body) == ("evaluation", body)
    assert [found.sequence for found in registry.events(run.run_id, 1)] == [2]


def test_runs_that_have_not_ended_are_the_ones_to_go_on_with(registry, run):
    ended = registry.create(record())
    registry.change(ended.run_id, RunStateChange(), "completed", state="COMPLETED")
    unfinished = {found.run_id for found in registry.unfinished()}
    assert run.run_id in unfinished
    assert ended.run_id not in unfinished


def test_events_of_many_writers_are_numbered_without_gaps(registry, run):
    def write():
        for _ in range(10):
            registry.change(run.run_id, RunProgress(RunTotals()), "iteration")

    writers = [threading.Thread(target=write) for _ in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [event.sequence for event in registry.events(run.run_id, 0)] == list(range(1, 41))
