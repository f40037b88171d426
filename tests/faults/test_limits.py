"""Limits hold, and what is refused leaves no trace."""

import itertools
import time

import grpc
import pytest

from parley.client import RequestRefused
from parley.contracts.party.v1 import party_service_pb2 as pb
from parley.contracts.party.v1 import party_service_pb2_grpc as pb_grpc
from parley.contracts.run.v1 import run_service_pb2 as run_pb
from parley.contracts.run.v1 import run_service_pb2_grpc as run_grpc
from parley.services.wire.certificates import load_identity
from parley.services.wire.refusals import reason_of
from parley.services.wire.transport import channel_credentials, channel_options
from parley.services.wire.version import VERSION
from tests.faults.cases import CASES, PARTIES, spec_of
from tests.faults.message_faults import resident_megabytes

numbers = itertools.count()
pytestmark = pytest.mark.timeout(600)


def channel(stage, name, caller):
    role = "coordinator" if name == "coordinator" else "party"
    credentials = channel_credentials(load_identity(stage.federation.identity(caller)))
    return grpc.secure_channel(stage.federation.addresses[name], credentials, options=channel_options(role, name))


@pytest.fixture
def parties(stage):
    """Stubs of every party, as its coordinator would call it."""
    channels = {name: channel(stage, name, "coordinator") for name in PARTIES}
    yield {name: pb_grpc.PartyServiceStub(one) for name, one in channels.items()}
    for one in channels.values():
        one.close()


def request(**changes):
    number = next(numbers)
    fields = {
        "run_id": f"limits-{number}",
        "session_id": f"limits-{number}",
        "spec_yaml": spec_of("implicit, pairwise, once"),
        "version": VERSION,
        "purpose": pb.PURPOSE_TRAIN,
    }
    return pb.OpenSessionRequest(**fields | changes)


def reason(call):
    with pytest.raises(grpc.RpcError) as refusal:
        call()
    return reason_of(refusal.value)


def sessions(stub):
    return stub.Describe(pb.DescribeRequest(), timeout=60).sessions


def test_a_session_begins_once_so_that_no_mask_hides_two_values(parties):
    opening = request()
    answers = [stub.OpenSession(opening, timeout=60) for stub in parties.values()]
    begin = pb.BeginSessionRequest(
        session_id=opening.session_id,
        keys=[answer.key for answer in answers],
        upper_sizes=[answer.upper_size for answer in answers],
        peer_addresses=["127.0.0.1:1"] * len(answers),
        outputs=10,
    )
    parties["bank"].BeginSession(begin, timeout=60)
    assert reason(lambda: parties["bank"].BeginSession(begin, timeout=60)) == "ROUND_MISMATCH"
    for sizes in ([1 << 60] * 3, [answers[0].upper_size, 1 << 40, 1]):
        begin.upper_sizes[:] = sizes
        assert reason(lambda: parties["shop"].BeginSession(begin, timeout=60)) == "MESSAGE_INVALID"
    for stub in parties.values():
        stub.CloseSession(pb.CloseSessionRequest(session_id=opening.session_id), timeout=60)


def test_a_refused_session_leaves_none_behind_and_ends_none(parties):
    stub = parties["bank"]
    opening = request()
    stub.OpenSession(opening, timeout=60)
    before = sessions(stub)
    unfit = {**CASES["implicit, pairwise, once"]["train"], "model": {"kind": "cnn", "image_shape": [9, 9], "out": 4}}
    wrong = request(run_id=opening.run_id, spec_yaml=spec_of("implicit, pairwise, once", train=unfit))
    assert reason(lambda: stub.OpenSession(wrong, timeout=60)) is not None
    assert sessions(stub) == before
    assert reason(lambda: stub.OpenSession(opening, timeout=60)) == "MESSAGE_INVALID", "an id names one session"
    stub.CloseSession(pb.CloseSessionRequest(session_id=opening.session_id), timeout=60)


@pytest.mark.parametrize("name", ["..", ".", ".hidden", "a/b", "", "a" * 65])
def test_a_run_id_that_is_no_plain_name_never_becomes_a_path(parties, name):
    assert reason(lambda: parties["bank"].OpenSession(request(run_id=name), timeout=60)) == "MESSAGE_INVALID"


def test_a_party_serves_so_many_sessions_and_no_more(parties):
    stub, opened = parties["telco"], []
    room = 16 - sessions(stub)
    for _ in range(room):
        opened.append(request())
        stub.OpenSession(opened[-1], timeout=60)
    assert reason(lambda: stub.OpenSession(request(), timeout=60)) == "TOO_MANY_SESSIONS"
    for one in opened:
        stub.CloseSession(pb.CloseSessionRequest(session_id=one.session_id), timeout=60)
    assert sessions(stub) == 16 - room


def test_a_coordinator_drives_so_many_runs_and_no_more(stage):
    runs = [stage.start(wait_seconds=60) for _ in range(3)]
    with pytest.raises(RequestRefused, match="TOO_MANY_RUNS"):
        stage.start()
    for run in runs:
        run.cancel()
        assert run.refresh().state == "CANCELLED"


def test_a_link_that_breaks_whenever_the_run_goes_on_fails_it_in_the_end(stage):
    run = stage.start(wait_seconds=4, checkpoint_every=0)
    deadline = time.monotonic() + 60
    while (state := stage.client.run(run.run_id).state) != "FAILED":
        assert time.monotonic() < deadline, "the run is resumed for ever"
        if state == "RUNNING":
            stage.federation.proxies["shop"].cut()
        time.sleep(0.1)
    ended = stage.client.run(run.run_id)
    assert "shop" in ended.reason
    assert "waited for 4 s" in ended.reason
    assert ended.message.attempt > 2


def test_an_oversized_message_is_refused_and_the_service_goes_on(stage, parties):
    large, before = request(ids=["x" * 1000] * 5000), sessions(parties["bank"])
    with pytest.raises(grpc.RpcError) as refusal:
        parties["bank"].OpenSession(large, timeout=60)
    assert refusal.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert sessions(parties["bank"]) <= before
    with pytest.raises(RequestRefused, match="at most"):
        stage.client.start("#" * (1 << 20) + "\nname: x")


def test_a_watcher_that_claims_to_know_more_events_than_there_can_be_gets_none(stage):
    run = stage.start()
    stage.check_end(run)
    assert list(run.watch(after=(1 << 64) - 1)) == []


def test_watchers_that_do_not_read_cost_the_coordinator_no_memory(stage):
    run = stage.start()
    stage.check_end(run)
    process = stage.federation.processes["coordinator"]
    with channel(stage, "coordinator", "client") as client:
        stub = run_grpc.RunServiceStub(client)
        for call in [stub.WatchRun(run_pb.WatchRunRequest(run_id=run.run_id), timeout=60) for _ in range(5)]:
            assert sum(1 for _ in call) > 0, "the first few warm the caches up"
        before = resident_megabytes(process.pid)
        idle = [stub.WatchRun(run_pb.WatchRunRequest(run_id=run.run_id), timeout=60) for _ in range(100)]
        stage.client.runs()
        assert resident_megabytes(process.pid) - before < 50
        for call in idle:
            call.cancel()
