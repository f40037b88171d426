"""Bad input gets one named error that says what to do, and the services go on serving.

Specs and files that clients and owners write, messages on a party's streams, and calls by the wrong caller.
"""

import grpc
import numpy as np
import pytest

from parley.client import RequestRefused
from parley.contracts.bambi.v1 import bambi_pb2
from parley.contracts.party.v1 import party_service_pb2, party_service_pb2_grpc
from parley.contracts.peer.v1 import peer_service_pb2, peer_service_pb2_grpc
from parley.contracts.run.v1 import run_service_pb2, run_service_pb2_grpc
from parley.contracts.tensor.v1 import tensor_pb2
from parley.services.wire.certificates import create_authority, issue, load_identity
from parley.services.wire.refusals import reason_of
from parley.services.wire.transport import channel_credentials, channel_options
from parley.services.wire.version import PROTOCOLS, VERSION
from tests.integration.conftest import spec

SPECS = {
    "not yaml": ("a: [", "SPEC_INVALID", "line 1"),
    "no mapping": ("- 1", "SPEC_INVALID", "mapping"),
    "aliases": ("a: &x 1\nb: *x", "SPEC_INVALID", "aliases"),
    "field written twice": ("name: a\nname: b", "SPEC_INVALID", "written twice"),
    "unknown field": (spec(train__upper__stepz=3), "SPEC_INVALID", "train.upper.stepz: no such field"),
    "missing section": ("name: a\nparties: [bank, shop]", "SPEC_INVALID", "train: missing"),
    "unknown algorithm": (spec(train__algorithm="magic"), "SPEC_INVALID", "algorithm"),
    "negative steps": (spec(train__lower__steps=-1), "SPEC_INVALID", "must be at least 1"),
    "infinite step size": (spec(train__upper__optimiser={"step": float("inf")}), "SPEC_INVALID", "finite"),
    "shares above one": (spec(split={"lower": 0.9, "upper": 0.9, "test": 0.1}), "SPEC_INVALID", "must not pass 1"),
    "rows beyond the table": (spec(split={"lower": "0:99999", "upper": 0.1, "test": 0}), "SPEC_INVALID", "1797"),
    "newton with zeroth order": (spec(train__hypergradient="zeroth_order"), "SPEC_INVALID", "solver: sgd"),
    "ring too small": (spec(privacy__aggregation={"fraction_bits": 60}), "SPEC_INVALID", "does not fit a ring"),
    "two trees for two": (
        spec(parties=["bank", "shop"], privacy__aggregation={"kind": "two_tree"}),
        "SPEC_INVALID",
        "three parties",
    ),
    "private regression": (spec(train__loss="squared"), "SPEC_INVALID", "bins of a declared range"),
    "party twice": (spec(parties=["bank", "bank"]), "SPEC_INVALID", "listed twice"),
    "unknown party": (spec(parties=["bank", "nobody"]), "PARTY_UNKNOWN", "nobody is not in .* address book"),
    "plain where it is not allowed": (spec(privacy__aggregation={"kind": "plain"}), "POLICY_REFUSED", "bank.*plain"),
    "table that is not there": (spec(table="secret"), "POLICY_REFUSED", "table secret is not open"),
    "rows that differ in number": (spec(table="uneven"), "ROWS_DIFFER", "shop has 100 rows where bank has 1797.*align"),
    "rows that differ in ids": (spec(table="unlike"), "ROWS_DIFFER", "not the same ids: align"),
    "broken file": (spec(table="broken"), "DATA_INVALID", "bank.*party's log"),
    "file that is gone": (spec(table="absent"), "DATA_INVALID", "bank.*party's log"),
    "labels that are not there": (spec(labels="nowhere"), "LABELS_MISSING", "no labels 'nowhere'"),
    "too many classes": (spec(train__loss="logistic"), "LABELS_MISSING", "two classes, digits has 10"),
    "unknown column": (spec(parties=[{"name": "bank", "columns": ["x"]}, "shop"]), "DATA_INVALID", "bank"),
    "imported model": (
        spec(train__model={"kind": "import", "factory": "os:system"}),
        "POLICY_REFUSED",
        "does not allow models from 'os:system'",
    ),
}


@pytest.mark.parametrize("case", SPECS)
def test_a_spec_that_cannot_run_is_refused_by_name(client, case):
    text, reason, message = SPECS[case]
    before = len(client.runs())
    with pytest.raises(RequestRefused, match=message) as refusal:
        client.start(text)
    assert refusal.value.reason == reason
    assert len(client.runs()) == before, "a refused run leaves no trace"


def test_a_private_value_is_never_quoted_to_the_coordinator(client):
    with pytest.raises(RequestRefused) as refusal:
        client.start(spec(table="broken"))
    assert "4711" not in str(refusal.value)


def test_an_unknown_run_is_refused_by_every_call(client):
    for call in (client.run, lambda run_id: client.call("CancelRun", run_service_pb2.CancelRunRequest(run_id=run_id))):
        with pytest.raises(RequestRefused, match="RUN_UNKNOWN"):
            call("nothing")
    for method, request in [
        ("WatchRun", run_service_pb2.WatchRunRequest(run_id="nothing")),
        ("Predict", run_service_pb2.PredictRequest(run_id="nothing")),
    ]:
        with pytest.raises(RequestRefused, match="RUN_UNKNOWN"):
            list(client.stream(method, request))
    with pytest.raises(RequestRefused, match="RUN_UNKNOWN"):
        client.call("GetLedger", run_service_pb2.GetLedgerRequest(run_id="nothing"))


def party_channel(federation, party, caller):
    identity = load_identity(federation.identity(caller))
    return grpc.secure_channel(
        federation.addresses[party], channel_credentials(identity), options=channel_options("party", party)
    )


@pytest.fixture
def session(federation):
    """A session at bank, opened and begun as a coordinator would, in a run of bank and shop."""
    text = spec(parties=["bank", "shop"], privacy__labels={"mechanism": "off"})
    with (
        party_channel(federation, "bank", "coordinator") as bank,
        party_channel(federation, "shop", "coordinator") as shop,
    ):
        stubs = [party_service_pb2_grpc.PartyServiceStub(channel) for channel in (bank, shop)]
        request = party_service_pb2.OpenSessionRequest(
            run_id="fuzz",
            session_id=f"s-{np.random.default_rng().integers(1 << 60)}",
            spec_yaml=text,
            version=VERSION,
            protocol=PROTOCOLS[-1],
            purpose=party_service_pb2.PURPOSE_TRAIN,
        )
        opened = [stub.OpenSession(request, timeout=20) for stub in stubs]
        begin = party_service_pb2.BeginSessionRequest(
            session_id=request.session_id,
            keys=[answer.key for answer in opened],
            upper_sizes=[answer.upper_size for answer in opened],
            outputs=10,
            peer_addresses=[federation.addresses["bank"], federation.addresses["shop"]],
        )
        yield stubs[0], request, begin
        for stub in stubs:
            stub.CloseSession(party_service_pb2.CloseSessionRequest(session_id=request.session_id), timeout=20)


def refusal_of(call):
    with pytest.raises(grpc.RpcError) as refusal:
        call()
    return refusal.value.code(), reason_of(refusal.value)


def exchange(stub, begin, *instructions):
    attach = party_service_pb2.Attach(session_id=begin.session_id)
    requests = [party_service_pb2.ExchangeRequest(attach=attach)]
    requests += [
        one if isinstance(one, party_service_pb2.ExchangeRequest) else party_service_pb2.ExchangeRequest(bambi=one)
        for one in instructions
    ]
    return list(stub.Exchange(iter(requests), timeout=20))


def forward(number=1, **outcome):
    return bambi_pb2.Instruction(round=number, lower_forward=bambi_pb2.LowerForward(k=1, t=0), **outcome)


def tensor(array, **changes):
    array = np.asarray(array)
    code = {"f4": tensor_pb2.ELEMENT_TYPE_FLOAT32, "i8": tensor_pb2.ELEMENT_TYPE_INT64}[array.dtype.str[1:]]
    return tensor_pb2.Tensor(**{"element_type": code, "shape": array.shape, "data": array.tobytes()} | changes)


def gradient(**changes):
    return bambi_pb2.IntermediateGradient(theta=tensor(np.zeros((1, 256, 10), np.float32), **changes))


MESSAGES = {
    "no ask": (bambi_pb2.Instruction(round=1), "MESSAGE_INVALID"),
    "round zero": (forward(0), "ROUND_MISMATCH"),
    "round from the future": (forward(7), "ROUND_MISMATCH"),
    "outcome nobody waits for": (forward(1, gradient=gradient()), "ROUND_MISMATCH"),
    "curvature before a gradient": (
        bambi_pb2.Instruction(round=1, curvature_forward=bambi_pb2.CurvatureForward(k=1, system=1)),
        "ROUND_MISMATCH",
    ),
    "unknown system": (
        bambi_pb2.Instruction(round=1, curvature_forward=bambi_pb2.CurvatureForward(k=1, system=9)),
        "MESSAGE_INVALID",
    ),
    "rows of no set": (
        bambi_pb2.Instruction(round=1, rows_forward=bambi_pb2.RowsForward(count=3)),
        "MESSAGE_INVALID",
    ),
    "count out of range": (
        bambi_pb2.Instruction(round=1, lower_forward=bambi_pb2.LowerForward(k=1 << 62)),
        "MESSAGE_INVALID",
    ),
    "nan": (forward(1, gradient=gradient(data=np.full((1, 256, 10), np.nan, np.float32).tobytes())), "MESSAGE_INVALID"),
    "wrong element type": (forward(1, gradient=gradient(element_type=3)), "MESSAGE_INVALID"),
    "unset element type": (forward(1, gradient=gradient(element_type=0)), "MESSAGE_INVALID"),
    "shape and bytes differ": (forward(1, gradient=gradient(shape=[1, 256, 11])), "MESSAGE_INVALID"),
    "shape overflow": (forward(1, gradient=gradient(shape=[1 << 40, 1 << 40, 1 << 40])), "MESSAGE_INVALID"),
    "two axes": (forward(1, gradient=gradient(shape=[256, 10])), "MESSAGE_INVALID"),
    "huge announced tensor": (
        party_service_pb2.ExchangeRequest(
            bambi=forward(1, gradient=gradient(data=b"", chunked_bytes=1 << 50)), following_bytes=[1 << 50]
        ),
        "MESSAGE_INVALID",
    ),
    "tensor in chunks that nobody announced": (
        forward(1, gradient=gradient(data=b"", chunked_bytes=10240)),
        "MESSAGE_INVALID",
    ),
    "announced tensor of another size": (
        party_service_pb2.ExchangeRequest(
            bambi=forward(1, gradient=gradient(data=b"", chunked_bytes=10240)), following_bytes=[0]
        ),
        "MESSAGE_INVALID",
    ),
    "chunk that nobody announced": (
        party_service_pb2.ExchangeRequest(chunk=tensor_pb2.Chunk(data=b"x")),
        "MESSAGE_INVALID",
    ),
    "empty message": (party_service_pb2.ExchangeRequest(), "MESSAGE_INVALID"),
    "attached twice": (
        party_service_pb2.ExchangeRequest(attach=party_service_pb2.Attach(session_id="x")),
        "MESSAGE_INVALID",
    ),
}


@pytest.mark.parametrize("case", MESSAGES)
def test_a_bad_message_is_refused_by_name_and_the_session_goes_on(session, case):
    stub, _, begin = session
    message, reason = MESSAGES[case]
    stub.BeginSession(begin, timeout=20)
    assert refusal_of(lambda: exchange(stub, begin, message))[1] == reason
    assert exchange(stub, begin, forward(1))[0].bambi.round == 1


def test_a_gradient_of_the_wrong_size_is_refused_and_the_state_is_kept(session):
    stub, _, begin = session
    stub.BeginSession(begin, timeout=20)
    first = exchange(stub, begin, forward(1))
    small = bambi_pb2.IntermediateGradient(theta=tensor(np.zeros((1, 3, 10), np.float32)))
    assert refusal_of(lambda: exchange(stub, begin, forward(2, gradient=small)))[1] == "MESSAGE_INVALID"
    assert exchange(stub, begin, forward(1)) == first, "the answer to round 1 is still the same bytes"


def test_a_retry_replays_the_same_bytes_and_another_message_under_its_number_is_refused(session):
    stub, _, begin = session
    stub.BeginSession(begin, timeout=20)
    assert exchange(stub, begin, forward(1)) == exchange(stub, begin, forward(1))
    other = bambi_pb2.Instruction(round=1, upper_forward=bambi_pb2.UpperForward(k=1))
    assert refusal_of(lambda: exchange(stub, begin, other))[1] == "ROUND_MISMATCH"


def test_a_session_refuses_keys_that_others_did_not_sign(session):
    stub, _, begin = session
    forged = party_service_pb2.BeginSessionRequest.FromString(begin.SerializeToString())
    forged.keys[1].public_key = bytes(32)[:-1] + b"\x09"
    assert refusal_of(lambda: stub.BeginSession(forged, timeout=20)) == (
        grpc.StatusCode.PERMISSION_DENIED,
        "KEY_REFUSED",
    )
    swapped = party_service_pb2.BeginSessionRequest.FromString(begin.SerializeToString())
    swapped.keys[1].CopyFrom(begin.keys[0])
    assert refusal_of(lambda: stub.BeginSession(swapped, timeout=20))[1] == "KEY_REFUSED"
    too_few = party_service_pb2.BeginSessionRequest(session_id=begin.session_id, outputs=10)
    assert refusal_of(lambda: stub.BeginSession(too_few, timeout=20))[1] == "MESSAGE_INVALID"


def test_a_party_refuses_a_protocol_that_it_does_not_speak_and_strange_names(session):
    stub, request, _ = session
    old = party_service_pb2.OpenSessionRequest.FromString(request.SerializeToString())
    old.version, old.protocol = "0.1.0", 0
    assert refusal_of(lambda: stub.OpenSession(old, timeout=20)) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "VERSION_MISMATCH",
    )
    old.version, old.protocol = VERSION, 9
    assert refusal_of(lambda: stub.OpenSession(old, timeout=20))[1] == "VERSION_MISMATCH"
    path = party_service_pb2.OpenSessionRequest.FromString(request.SerializeToString())
    path.run_id = "../../etc"
    assert refusal_of(lambda: stub.OpenSession(path, timeout=20))[1] == "MESSAGE_INVALID"
    assert refusal_of(lambda: exchange(stub, party_service_pb2.BeginSessionRequest(session_id="none")))[1] == (
        "SESSION_UNKNOWN"
    )


def test_a_missing_checkpoint_and_a_missing_model_are_named(session):
    stub, request, begin = session
    late = party_service_pb2.BeginSessionRequest.FromString(begin.SerializeToString())
    late.checkpoint = 40
    assert refusal_of(lambda: stub.BeginSession(late, timeout=20))[1] == "CHECKPOINT_MISSING"
    untrained = party_service_pb2.OpenSessionRequest.FromString(request.SerializeToString())
    untrained.purpose = party_service_pb2.PURPOSE_PREDICT
    assert refusal_of(lambda: stub.OpenSession(untrained, timeout=20))[1] == "MODEL_MISSING"


def test_only_the_right_role_may_call(federation, session):
    _, _, begin = session
    for caller in ("client", "shop"):
        with party_channel(federation, "bank", caller) as channel:
            wrong = party_service_pb2_grpc.PartyServiceStub(channel)
            assert refusal_of(lambda stub=wrong: stub.Describe(party_service_pb2.DescribeRequest(), timeout=20)) == (
                grpc.StatusCode.PERMISSION_DENIED,
                "NOT_AUTHORISED",
            )
    with party_channel(federation, "bank", "grocer") as channel:
        peer = peer_service_pb2_grpc.PeerServiceStub(channel)
        attach = peer_service_pb2.PushRequest(attach=peer_service_pb2.Attach(session_id=begin.session_id))
        assert refusal_of(lambda: peer.Push(iter([attach]), timeout=20))[1] == "SESSION_UNKNOWN"
    identity = load_identity(federation.identity("shop"))
    options = channel_options("coordinator", "coordinator")
    with grpc.secure_channel(
        federation.addresses["coordinator"], channel_credentials(identity), options=options
    ) as channel:
        runs = run_service_pb2_grpc.RunServiceStub(channel)
        assert refusal_of(lambda: runs.ListRuns(run_service_pb2.ListRunsRequest(), timeout=20))[1] == "NOT_AUTHORISED"


def test_a_certificate_of_another_authority_gets_no_connection(federation, tmp_path):
    create_authority(tmp_path / "authority", "elsewhere")
    foreign = load_identity(issue(tmp_path / "authority", "coordinator", "coordinator", ["localhost"]))
    ours = load_identity(federation.identity("client")).ca
    credentials = grpc.ssl_channel_credentials(ours, foreign.private_key, foreign.certificate_chain)
    with grpc.secure_channel(
        federation.addresses["bank"], credentials, options=channel_options("party", "bank")
    ) as channel:
        stub = party_service_pb2_grpc.PartyServiceStub(channel)
        assert refusal_of(lambda: stub.Describe(party_service_pb2.DescribeRequest(), timeout=10))[0] in (
            grpc.StatusCode.UNAVAILABLE,
        )
    with grpc.insecure_channel(federation.addresses["bank"]) as channel:
        stub = party_service_pb2_grpc.PartyServiceStub(channel)
        assert refusal_of(lambda: stub.Describe(party_service_pb2.DescribeRequest(), timeout=10))[0] is (
            grpc.StatusCode.UNAVAILABLE
        )


def test_bytes_that_are_no_message_are_refused_by_name(federation):
    with party_channel(federation, "bank", "coordinator") as channel:
        call = channel.unary_unary("/parley.party.v1.PartyService/OpenSession", request_serializer=bytes)
        assert refusal_of(lambda: call(b"\xff\xff\xff\xff", timeout=20)) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "MESSAGE_INVALID",
        )


def test_after_all_this_the_federation_still_trains(client):
    assert client.start(spec()).result()["test accuracy"] > 0.3
