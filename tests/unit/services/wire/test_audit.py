import json

import pytest

from parley.contracts.run.v1 import run_service_pb2
from parley.services.wire.audit import FILE, AuditBroken, AuditTrail, is_quiet, origin, read_trail, subject_of
from parley.storage.failures import StorageFailed


def filled(folder, count=3):
    trail = AuditTrail(folder)
    for number in range(count):
        trail.note("client", "analyst", "192.0.2.1:5", "/Run/StartRun", f"run {number}")
    return trail


def test_lines_are_read_as_they_were_written_and_go_on_after_a_restart(tmp_path):
    filled(tmp_path, 2)
    filled(tmp_path, 1)
    entries = list(read_trail(tmp_path))
    assert [(entry.sequence, entry.subject) for entry in entries] == [(1, "run 0"), (2, "run 1"), (3, "run 0")]
    assert {(entry.role, entry.name, entry.address, entry.outcome) for entry in entries} == {
        ("client", "analyst", "192.0.2.1:5", "admitted")
    }
    assert (tmp_path / FILE).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("field", ["time", "role", "name", "address", "action", "subject", "outcome", "previous"])
def test_a_line_that_was_changed_is_found(tmp_path, field):
    filled(tmp_path)
    lines = (tmp_path / FILE).read_text().splitlines()
    lines[1] = json.dumps(json.loads(lines[1]) | {field: "other"})
    (tmp_path / FILE).write_text("\n".join(lines) + "\n")
    with pytest.raises(AuditBroken, match=":2 was changed"):
        list(read_trail(tmp_path))
    with pytest.raises(AuditBroken):
        AuditTrail(tmp_path)


def test_a_line_that_was_taken_out_is_found(tmp_path):
    filled(tmp_path)
    lines = (tmp_path / FILE).read_text().splitlines(keepends=True)
    (tmp_path / FILE).write_text(lines[0] + lines[2])
    with pytest.raises(AuditBroken, match=":2 was changed, or a line before it taken out"):
        list(read_trail(tmp_path))


def test_half_a_line_of_a_host_without_power_is_dropped(tmp_path):
    filled(tmp_path, 2)
    whole = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(whole + b'{"sequence": 3, "ti')
    assert len(list(read_trail(tmp_path))) == 2
    filled(tmp_path, 1)
    assert [entry.sequence for entry in read_trail(tmp_path)] == [1, 2, 3]


def test_what_cannot_be_written_down_is_refused_and_leaves_nothing(tmp_path, monkeypatch):
    trail = filled(tmp_path, 1)
    before = (tmp_path / FILE).read_bytes()
    monkeypatch.setattr("parley.services.wire.audit.os.write", lambda *_: 3)  # a full disk takes some bytes
    with pytest.raises(StorageFailed, match="cannot be written"):
        trail.note("client", "analyst", "", "/Run/StartRun", "")
    monkeypatch.undo()
    assert (tmp_path / FILE).read_bytes() == before
    trail.note("client", "analyst", "", "/Run/StartRun", "")
    assert [entry.sequence for entry in read_trail(tmp_path)] == [1, 2]


def test_a_request_is_named_by_its_ids_and_the_digest_of_its_spec_never_by_rows():
    start = run_service_pb2.StartRunRequest(request_id="r-1", spec_yaml="name: x")
    assert subject_of(start).startswith("request_id r-1, spec sha256 ")
    predict = run_service_pb2.PredictRequest(run_id="run-1", table="train", ids=["patient-7"])
    assert subject_of(predict) == "run_id run-1, table train"
    assert subject_of(iter([])) == ""


def test_looking_is_quiet_and_doing_is_not():
    assert is_quiet("/parley.run.v1.RunService/WatchRun")
    assert is_quiet("/grpc.health.v1.Health/Check")
    assert not is_quiet("/parley.run.v1.RunService/StartRun")
    assert not is_quiet("/parley.party.v1.PartyService/OpenSession")


def test_where_a_call_comes_from():
    assert origin("ipv4:192.0.2.1:5") == "192.0.2.1:5"
    assert origin("unix:") == "relay"
