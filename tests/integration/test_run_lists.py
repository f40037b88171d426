"""A coordinator with ten thousand runs: lists, filters, deletion, retention, and watchers of runs that do not exist."""

import json
import time
from pathlib import Path

import grpc
import pytest
import yaml
from typer.testing import CliRunner

from parley.cli import app
from parley.client import RequestRefused
from parley.contracts.run.v1 import run_service_pb2, run_service_pb2_grpc
from parley.privacy.accounting import RandomisedResponse, RecordCounts
from parley.privacy.ledger import Budget, Charge, open_ledger
from parley.services.coordinator.registry import Registry
from parley.services.coordinator.registry_tables import RunRecord, events, row_of, runs
from parley.services.wire.certificates import load_identity
from parley.services.wire.transport import channel_credentials, channel_options
from parley.storage.engines import open_engine
from parley.testing.federations import ForkedFederation
from tests.integration.conftest import spec

RUNS = 10_000
LARGE = 900_000
"""Bytes of the newest runs' specs."""
STATES = ("COMPLETED", "FAILED", "CANCELLED", "BUDGET_EXHAUSTED")


def when(number):
    """Runs end an hour apart, the last ones in 2021."""
    return f"20{20 + number // 8784:02}-01-{1 + number // 24 % 28:02}T{number % 24:02}:00:00.000+00:00"


def fill(url):
    engine = open_engine(url)
    Registry(engine)
    text = spec()
    rows = []
    for number in range(RUNS):
        padding = f"# {'x' * LARGE}\n" if number >= RUNS - 20 else ""
        record = RunRecord(f"old-{number:05}", f"r-{number}", "old", "bambi", ("bank",), padding + text, 9)
        ended = {"state": STATES[number % 4], "created": when(number), "changed": when(number)}
        rows.append(row_of(record) | ended)
    told = {"time": "t", "kind": "state", "message": "completed", "step": 9, "metrics": "{}", "body": None}
    noted = [told | {"run_id": row["run_id"], "sequence": 1, "state": row["state"]} for row in rows]
    with engine.begin() as connection:
        connection.execute(runs.insert(), rows)
        connection.execute(events.insert(), noted)
    engine.dispose()
    ledger = open_ledger(url)
    ledger.open_run("old-00000", 4, Budget(3.0))
    charge = Charge(RandomisedResponse(1.0, 10), ("bank",), RecordCounts.of_batches(4, [[0, 1]]))
    ledger.reserve("old-00000", 0, 1, charge)
    ledger.close()


@pytest.fixture(scope="module")
def local(data, tmp_path_factory):
    directory = tmp_path_factory.mktemp("lists")
    tables = {"bank": {"digits": {"path": data / "digits" / "bank.parquet"}}}
    federation = ForkedFederation(directory, tables, {"digits": {"path": data / "digits" / "labels.parquet"}})
    federation.write()
    (directory / "state" / "coordinator").mkdir(parents=True)
    fill(f"sqlite:///{directory / 'state' / 'coordinator' / 'coordinator.db'}")
    federation.start("coordinator")
    federation.wait_until_ready("coordinator")
    yield federation
    federation.stop()


@pytest.fixture
def client(local):
    with local.connect() as connected:
        yield connected


@pytest.fixture
def stub(local):
    credentials = channel_credentials(load_identity(local.identity("client")))
    options = channel_options("coordinator", "coordinator")
    with grpc.secure_channel(local.addresses["coordinator"], credentials, options=options) as channel:
        yield run_service_pb2_grpc.RunServiceStub(channel)


def command(local, *arguments):
    where = ["--address", local.addresses["coordinator"], "--identity", str(local.identity("client"))]
    return CliRunner().invoke(app, ["run", *arguments, *where])


def resident_megabytes(local):
    status = Path(f"/proc/{local.processes['coordinator'].pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) / 1000


def test_large_specs_do_not_break_the_list_and_each_is_in_its_own_run(client):
    listed = client.runs(50)
    assert [run.run_id for run in listed] == [f"old-{number:05}" for number in range(RUNS - 1, RUNS - 51, -1)]
    assert {run.message.spec_yaml for run in listed} == {""}
    assert len(listed[0].refresh().message.spec_yaml) > LARGE


def test_all_ten_thousand_are_listed_each_once(client):
    assert [run.run_id for run in client.runs(None)] == [f"old-{number:05}" for number in reversed(range(RUNS))]


def test_lists_are_filtered(client):
    failed = client.runs(None, states=["failed"])
    assert len(failed) == RUNS // 4
    assert {run.state for run in failed} == {"FAILED"}
    assert [run.run_id for run in client.runs(name="OLD-0123")] == [f"old-0123{n}" for n in reversed(range(10))]
    assert client.runs(algorithm="asysqn") == []
    with pytest.raises(RequestRefused, match="choose among"):
        client.runs(states=["sleeping"])


@pytest.mark.parametrize("token", ["nonsense", "AAAA", "é"])
def test_a_made_up_page_token_is_refused(stub, token):
    with pytest.raises(grpc.RpcError) as refusal:
        stub.ListRuns(run_service_pb2.ListRunsRequest(page_token=token))
    assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_the_spec_comes_with_the_first_event_only(stub):
    name = f"old-{RUNS - 1:05}"
    (told,) = stub.WatchRun(run_service_pb2.WatchRunRequest(run_id=name))
    assert len(told.run.spec_yaml) > LARGE


def test_runs_that_go_on_are_found_by_their_state_without_reading_all(local):
    engine = open_engine(f"sqlite:///{local.directory / 'state' / 'coordinator' / 'coordinator.db'}")
    query = runs.select().where(runs.c.state.in_(("PENDING", "RUNNING", "PAUSED"))).order_by(runs.c.number)
    with engine.connect() as connection:
        text = str(query.compile(engine, compile_kwargs={"literal_binds": True}))
        plan = " ".join(row[-1] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}"))
    engine.dispose()
    assert "USING INDEX ix_runs_state" in plan


def test_watching_runs_that_are_not_there_leaves_nothing_behind(local, stub):
    def watch(number):
        with pytest.raises(grpc.RpcError) as refusal:
            list(stub.WatchRun(run_service_pb2.WatchRunRequest(run_id=f"{number:04}" + "x" * 1_000_000)))
        assert refusal.value.code() is grpc.StatusCode.NOT_FOUND
        assert len(refusal.value.details()) < 300

    for number in range(40):
        watch(number)
    before = resident_megabytes(local)
    for number in range(40, 240):
        watch(number)
    assert resident_megabytes(local) < before + 120, "200 ids of a megabyte each"
    assert (local.directory / "coordinator.log").stat().st_size < 1_000_000


def test_runs_are_tagged_sorted_and_compared_from_the_command_line(local, client):
    options = ["--address", local.addresses["coordinator"], "--identity", str(local.identity("client"))]
    tag = CliRunner().invoke(app, ["run", "tag", "old-00004", "baseline", "v1.0", *options])
    assert tag.stdout == "old-00004: baseline, v1.0\n", tag.output
    client.run("old-00008").tag("baseline")
    assert [run.run_id for run in client.runs(tag="baseline")] == ["old-00008", "old-00004"]
    assert client.runs(tag="base") == [], "a tag is found whole"
    assert [run.run_id for run in client.runs(name="v1.0")] == ["old-00004"]
    listed = CliRunner().invoke(app, ["run", "list", "--tag", "baseline", "--sort", "run_id", "--json", *options])
    assert [row["run_id"] for row in json.loads(listed.stdout)] == ["old-00008", "old-00004"]
    unknown = CliRunner().invoke(app, ["run", "list", "--tag", "baseline", "--sort", "nonsense", *options])
    assert unknown.exit_code == 1
    compared = CliRunner().invoke(app, ["run", "compare", "old-00004", "old-00008", "--json", *options])
    assert json.loads(compared.stdout)["settings"] == {}
    off = CliRunner().invoke(app, ["run", "tag", "old-00004", "--remove", "baseline", "--remove", "v1.0", *options])
    assert off.stdout == "old-00004: no tags\n"
    with pytest.raises(RequestRefused, match="is no tag"):
        client.run("old-00004").tag("not a word")
    with pytest.raises(RequestRefused, match="32"):
        client.run("old-00004").tag(*(f"t{number}" for number in range(33)))


def test_an_ended_run_is_deleted_and_its_ledger_stays(local, client):
    assert client.run("old-00000").ledger().report.largest_count == 1
    result = command(local, "delete", "old-00000", "old-00001")
    assert (result.exit_code, result.output) == (0, "old-00000 is forgotten\nold-00001 is forgotten\n")
    for name in ("old-00000", "old-00001"):
        with pytest.raises(RequestRefused, match="RUN_UNKNOWN"):
            client.run(name)
    answer = client.call("GetLedger", run_service_pb2.GetLedgerRequest(run_id="old-00000"))
    assert (len(answer.entries), answer.report.largest_count, answer.report.budget) == (1, 1, 3.0)
    with pytest.raises(RequestRefused, match="RUN_UNKNOWN"):
        client.call("GetLedger", run_service_pb2.GetLedgerRequest(run_id="old-00001"))


def test_old_runs_are_pruned_by_age_and_state(local, client):
    failed = ("prune", "--older-than", "1d", "--state", "failed", "--json")
    rehearsal = json.loads(command(local, *failed, "--dry-run").output)
    assert (len(rehearsal["runs"]), rehearsal["forgotten"]) == (RUNS // 4 - 1, False), "one was deleted before"
    assert len(client.runs(None, states=["FAILED"])) == RUNS // 4 - 1
    assert json.loads(command(local, *failed).output) == {"runs": rehearsal["runs"], "forgotten": True}
    assert client.runs(states=["FAILED"]) == []
    assert len(client.runs(None, states=["COMPLETED"])) == RUNS // 4 - 1
    for wrong in ("yesterday", "5", "-3d"):
        assert command(local, "prune", "--older-than", wrong).exit_code == 2
    with pytest.raises(RequestRefused, match="MESSAGE_INVALID"):
        client.prune(60)


def test_a_coordinator_forgets_by_itself_what_its_configuration_does_not_keep(local, client):
    assert client.runs(1)
    path = local.directory / "coordinator.yaml"
    path.write_text(path.read_text() + yaml.safe_dump({"retention_days": 30}))
    local.kill("coordinator")
    local.restart("coordinator")
    deadline = time.monotonic() + 60
    while client.runs(1):
        assert time.monotonic() < deadline, "they are not forgotten"
        time.sleep(0.1)
