"""Every RPC of every service, called by everyone: exactly the status and the reason that the table says.

The rows come from the descriptors, so that a new RPC fails here until it has its line.
"""

from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from parley.contracts.alignment.v1 import alignment_service_pb2
from parley.contracts.coordinator.v1 import coordinator_service_pb2
from parley.contracts.party.v1 import party_service_pb2
from parley.contracts.peer.v1 import peer_service_pb2
from parley.contracts.relay.v1 import relay_service_pb2
from parley.contracts.run.v1 import run_service_pb2
from parley.services.wire.certificates import create_authority, issue, load_identity
from parley.services.wire.refusals import reason_of
from parley.services.wire.transport import channel_options

CALLERS = (
    "no certificate",
    "other CA",
    "party",
    "other party",
    "coordinator",
    "other coordinator",
    "client",
    "new client",
)
OK = ("OK", None)
DENIED = ("PERMISSION_DENIED", "NOT_AUTHORISED")
NOT_PERMITTED = ("PERMISSION_DENIED", "NOT_PERMITTED")
NO_CONNECTION = ("UNAVAILABLE", None)
INVALID = ("INVALID_ARGUMENT", "MESSAGE_INVALID")
NO_DEPLOYMENT = ("NOT_FOUND", "DEPLOYMENT_UNKNOWN")
NO_RUN = ("NOT_FOUND", "RUN_UNKNOWN")

SERVICES = [
    ("bank", party_service_pb2.DESCRIPTOR.services_by_name["PartyService"]),
    ("bank", alignment_service_pb2.DESCRIPTOR.services_by_name["AlignmentService"]),
    ("bank", peer_service_pb2.DESCRIPTOR.services_by_name["PeerService"]),
    ("bank", health_pb2.DESCRIPTOR.services_by_name["Health"]),
    ("coordinator", run_service_pb2.DESCRIPTOR.services_by_name["RunService"]),
    ("coordinator", coordinator_service_pb2.DESCRIPTOR.services_by_name["CoordinatorService"]),
    ("coordinator", relay_service_pb2.DESCRIPTOR.services_by_name["RelayService"]),
    ("coordinator", health_pb2.DESCRIPTOR.services_by_name["Health"]),
]
# What an empty request gets from whoever may call; "other coordinator" is one that no policy names, "other party" one
# that is in no address book, "new client" one that no configuration names. Whoever is not listed is denied.
EVERYONE = ("party", "other party", "coordinator", "other coordinator", "client", "new client")
PARTIES = ("party", "other party")
EXPECTED: dict[str, Any] = {
    "PartyService/Describe": {"coordinator": OK},
    "PartyService/OpenSession": {"coordinator": INVALID},
    "PartyService/BeginSession": {"coordinator": ("NOT_FOUND", "SESSION_UNKNOWN")},
    "PartyService/Exchange": {"coordinator": INVALID},
    "PartyService/GetCoefficients": {"coordinator": INVALID},
    "PartyService/CloseSession": {"coordinator": OK},
    "AlignmentService/Intersect": {"coordinator": INVALID},
    "PeerService/Push": dict.fromkeys(PARTIES, INVALID),
    "RunService/CheckSpec": {"client": OK},
    "RunService/StartRun": {"client": INVALID},
    "RunService/GetRun": {"client": NO_RUN},
    "RunService/ListRuns": {"client": OK},
    "RunService/WatchRun": {"client": NO_RUN},
    "RunService/CancelRun": {"client": NO_RUN},
    "RunService/ResumeRun": {"client": NO_RUN},
    "RunService/DeleteRun": {"client": NO_RUN},
    "RunService/TagRun": {"client": NO_RUN},
    "RunService/PruneRuns": {"client": INVALID},
    "RunService/Predict": {"client": NO_RUN},
    "RunService/Deploy": {"client": INVALID},
    "RunService/RollBackDeployment": {"client": NO_DEPLOYMENT},
    "RunService/Undeploy": {"client": NO_DEPLOYMENT},
    "RunService/ListDeployments": {"client": OK},
    "RunService/PredictRows": {"client": NO_DEPLOYMENT},
    "RunService/ListParties": {"client": OK},
    "RunService/GetLedger": {"client": NO_RUN},
    "RunService/GetCoefficients": {"client": NO_RUN},
    "RunService/Align": {"client": INVALID},
    "CoordinatorService/Announce": {"party": OK, "other party": ("NOT_FOUND", "PARTY_UNKNOWN")},
    "CoordinatorService/AskSlopes": dict.fromkeys(PARTIES, INVALID),
    "RelayService/Register": dict.fromkeys(PARTIES, ("NOT_FOUND", "PARTY_UNKNOWN")),
    "RelayService/Accept": dict.fromkeys(PARTIES, ("NOT_FOUND", "CONNECTION_UNKNOWN")),
    "RelayService/Connect": dict.fromkeys(
        (*PARTIES, "coordinator", "other coordinator"), ("UNAVAILABLE", "PARTY_AWAY")
    ),
    "Health/Check": dict.fromkeys(EVERYONE, OK),
    "Health/Watch": dict.fromkeys(EVERYONE, OK),
    "Health/List": dict.fromkeys(EVERYONE, ("UNIMPLEMENTED", "NOT_IMPLEMENTED")),
}
METHODS = [(process, service, method) for process, service in SERVICES for method in service.methods]


@pytest.fixture(scope="module")
def channels(federation, tmp_path_factory):
    """A channel to each service for every caller."""
    scratch = tmp_path_factory.mktemp("callers")
    ours = federation.directory / "certificates" / "authority"
    create_authority(scratch / "authority", "elsewhere")
    foreign = load_identity(issue(scratch / "authority", "coordinator", "coordinator", ["localhost"]))
    identities = {
        "party": load_identity(federation.identity("shop")),
        "other party": load_identity(issue(ours, "nobody", "party", ["localhost"], out=scratch / "nobody")),
        "coordinator": load_identity(federation.identity("coordinator")),
        "other coordinator": load_identity(issue(ours, "rival", "coordinator", ["localhost"], out=scratch / "rival")),
        "client": load_identity(federation.identity("client")),
        "new client": load_identity(issue(ours, "newcomer", "client", ["localhost"], out=scratch / "newcomer")),
    }
    ca = identities["client"].ca
    credentials = {
        caller: grpc.ssl_channel_credentials(ca, identity.private_key, identity.certificate_chain)
        for caller, identity in identities.items()
    }
    credentials["no certificate"] = grpc.ssl_channel_credentials(ca)
    credentials["other CA"] = grpc.ssl_channel_credentials(ca, foreign.private_key, foreign.certificate_chain)
    made = {}
    for process, role in (("bank", "party"), ("coordinator", "coordinator")):
        for caller in CALLERS:
            options = [*channel_options(role, process), ("grpc.use_local_subchannel_pool", 1)]
            address = federation.addresses[process]
            made[process, caller] = grpc.secure_channel(address, credentials[caller], options=options)
    yield made
    for channel in made.values():
        channel.close()


def outcome(channel, service, method):
    """Status and reason of one call with an empty request."""
    path = f"/{service.full_name}/{method.name}"
    requests = iter([b""]) if method.client_streaming else b""
    sort = f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
    call = getattr(channel, sort)(path, request_serializer=bytes, response_deserializer=bytes)
    try:
        answer = call(requests, timeout=30)
        if method.server_streaming:
            next(answer)
            answer.cancel()
    except grpc.RpcError as error:
        return error.code().name, reason_of(error)
    return OK


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize(
    ("process", "service", "method"), METHODS, ids=[f"{p}-{s.name}-{m.name}" for p, s, m in METHODS]
)
def test_each_rpc_gives_each_caller_exactly_the_expected_status(channels, process, service, method, caller):
    allowed = EXPECTED[f"{service.name}/{method.name}"]
    if service.name == "RunService":  # a certificate of the right role is not enough
        allowed = allowed | {"new client": NOT_PERMITTED}
    expected = NO_CONNECTION if caller in ("no certificate", "other CA") else allowed.get(caller, DENIED)
    assert outcome(channels[process, caller], service, method) == expected


def test_the_table_has_a_line_for_every_rpc_and_no_other():
    assert {f"{service.name}/{method.name}" for _, service, method in METHODS} == EXPECTED.keys()


def test_a_method_that_does_not_exist_is_unimplemented_for_whoever_calls(channels):
    for caller in ("party", "coordinator", "client"):
        with pytest.raises(grpc.RpcError) as refusal:
            channels["bank", caller].unary_unary("/parley.party.v1.PartyService/Nothing")(b"", timeout=30)
        assert refusal.value.code() is grpc.StatusCode.UNIMPLEMENTED
