"""One contract for the run registry, run on SQLite and PostgreSQL."""

import threading
import uuid
from dataclasses import replace

import pytest
import sqlalchemy as sa

from parley.services.coordinator.registry import Filter, NotTheWriter, Registry, RunUnknown, StateMissing
from parley.services.coordinator.registry_tables import RunRecord
from parley.spec.events import RunEvaluation, RunProgress, RunStateChange, RunTotals
from parley.storage.engines import open_engine


@pytest.fixture(params=["sqlite", "postgresql"])
def registry(request, tmp_path):
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres_database")
    registry = Registry(open_engine(url))
    yield registry
    registry.close()


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
    ((_, listed),) = registry.page(1)
    assert listed == replace(run, spec_yaml="")


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


def test_a_change_that_is_tried_again_is_noted_once(registry, run):
    body = RunProgress(RunTotals(rounds=4), checkpoint=2)
    first = registry.change(run.run_id, body, "checkpoint 2", time="2026-01-02T03:04:05.678+00:00", step=2)
    again = registry.change(run.run_id, body, "checkpoint 2", time="2026-01-02T03:04:05.678+00:00", step=2)
    later = registry.change(run.run_id, body, "checkpoint 2", time="2026-01-02T03:04:06.000+00:00", step=2)
    assert (again, later.sequence) == (first, 2)
    assert registry.events(run.run_id, 0) == [first, later]


def test_two_changes_of_one_millisecond_are_two_events(registry, run, monkeypatch):
    monkeypatch.setattr("parley.services.coordinator.registry.now", lambda: "2026-01-02T03:04:05.678+00:00")
    for _ in range(2):
        registry.change(run.run_id, RunProgress(RunTotals()), "iteration")
    assert [event.sequence for event in registry.events(run.run_id, 0)] == [1, 2]


def test_whoever_claimed_the_database_last_writes_alone(registry, run):
    registry.claim("first")
    registry.change(run.run_id, RunStateChange(), "mine")
    successor = Registry(registry._engine)
    successor.claim("second")
    assert registry.writer() == "second"
    for write in (
        lambda: registry.change(run.run_id, RunStateChange(), "late"),
        lambda: registry.create(record()),
        lambda: registry.delete([run.run_id]),
    ):
        with pytest.raises(NotTheWriter, match="taken this database over"):
            write()
    assert [event.message for event in successor.events(run.run_id, 0)] == ["mine"]
    assert successor.get(run.run_id) == registry.get(run.run_id)


def test_pages_hold_every_run_once_newest_first_and_without_specs(registry):
    made = [registry.create(record(spec_yaml="x" * 10_000)).run_id for _ in range(7)]
    found, before = [], None
    while page := registry.page(3, before):
        before = page[-1][0]
        found += [listed for _, listed in page]
    assert [listed.run_id for listed in found] == made[::-1]
    assert {listed.spec_yaml for listed in found} == {""}


def test_lists_are_filtered_by_state_algorithm_and_name(registry):
    first = registry.create(record(name="churn_50%"))
    second = registry.create(record(name="CHURN-weekly", algorithm="asysqn"))
    third = registry.create(record(name="churnx50y"))
    registry.change(first.run_id, RunStateChange(), "completed", state="COMPLETED")

    def listed(**only):
        return {found.run_id for _, found in registry.page(10, only=Filter(**only))}

    everything = {first.run_id, second.run_id, third.run_id}
    assert listed(states=("PENDING", "RUNNING")) == everything - {first.run_id}
    assert listed(algorithm="asysqn") == {second.run_id}
    assert listed(name="churn") == everything
    assert listed(name="churn_50%") == {first.run_id}, "wildcards are plain characters"
    assert listed(name=third.run_id[-6:]) == {third.run_id}
    assert listed(states=("COMPLETED",), algorithm="asysqn") == set()


def test_a_deleted_run_leaves_nothing_and_touches_no_other(registry, run):
    other = registry.create(record())
    for each in (run, other):
        body = RunProgress(RunTotals(), checkpoint=3)
        registry.change(each.run_id, body, "checkpoint 3", checkpoint=3, kept=b"state")
    assert registry.delete([run.run_id]) == [], "it is active"
    registry.change(run.run_id, RunStateChange(), "cancelled", state="CANCELLED")
    assert registry.delete([run.run_id, "nowhere"]) == [run.run_id]
    with pytest.raises(RunUnknown):
        registry.get(run.run_id)
    assert registry.events(run.run_id, 0) == []
    with pytest.raises(StateMissing):
        registry.kept(run.run_id, 3)
    assert registry.kept(other.run_id, 3) == b"state"
    assert len(registry.events(other.run_id, 0)) == 1


def test_ended_runs_are_found_by_their_age_and_active_ones_never(registry):
    old, new, active = (registry.create(record()).run_id for _ in range(3))
    registry.change(old, RunStateChange(), "completed", state="COMPLETED", time="2020-01-01T00:00:00.000+00:00")
    registry.change(new, RunStateChange(), "failed", state="FAILED", time="2026-01-01T00:00:00.000+00:00")
    registry.change(active, RunStateChange(), "started", state="RUNNING", time="2019-01-01T00:00:00.000+00:00")
    assert registry.ended_before("2025-01-01", 10) == [old]
    assert registry.ended_before("2027-01-01", 10) == [old, new]
    assert registry.ended_before("2027-01-01", 10, ["FAILED"]) == [new]


def test_runs_that_wait_for_a_party_are_named(registry):
    waits = registry.create(record(parties=("bank", "shop")))
    registry.create(record(parties=("bank", "shop")))
    registry.change(waits.run_id, RunStateChange(), "paused", state="PAUSED")
    assert registry.waiting("shop") == [waits.run_id]
    assert registry.waiting("telco") == []


def test_runs_that_wait_have_their_place_by_priority_and_by_when_they_were_queued(registry):
    first, urgent, again = (
        registry.create(record(state="QUEUED", priority=priority, owner="client ann")) for priority in (0, 5, 0)
    )
    registry.change(first.run_id, RunStateChange(), "queued anew", time="9999-01-01", state="QUEUED")
    order = [urgent.run_id, again.run_id, first.run_id]
    assert [each.run_id for each in registry.queued()] == order
    assert [registry.get(run_id).position for run_id in order] == [1, 2, 3]
    assert {each.run_id: each.position for _, each in registry.page(9)} == dict(zip(order, (1, 2, 3), strict=True))
    assert registry.unfinished() == []
    assert registry.delete([first.run_id]) == [], "it may still be run"
    registry.change(urgent.run_id, RunStateChange(), "its turn", state="PENDING")
    assert registry.get(urgent.run_id).position == 0
    assert registry.get(again.run_id).position == 1
