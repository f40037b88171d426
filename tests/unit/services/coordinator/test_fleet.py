"""The coordinator's connections follow the certificate that is on disk."""

import grpc
import pytest

from parley.contracts.party.v1 import party_service_pb2 as pb
from parley.contracts.party.v1 import party_service_pb2_grpc as pb_grpc
from parley.services.coordinator.fleet import Fleet, PartyLost, PartyRefused, as_party_error
from parley.services.wire.authorisation import Policy
from parley.services.wire.certificates import create_authority, issue
from parley.services.wire.refusals import BoundaryInterceptor
from parley.services.wire.routes import Routes
from parley.services.wire.transport import listen, make_server


class Recorder(pb_grpc.PartyServiceServicer):
    """A party that keeps the certificates that callers show."""

    def __init__(self):
        self.shown, self.fails, self.port = [], False, 0

    async def Describe(self, request, context):  # noqa: N802 (the name of the RPC)
        if self.fails:
            raise RuntimeError("a mistake in the party")
        self.shown.append(context.auth_context()["x509_pem_cert"][0])
        return pb.DescribeResponse(name="bank")


@pytest.fixture
def authority(tmp_path):
    return create_authority(tmp_path / "authority", "test-authority").parent


@pytest.fixture
async def party(authority):
    server, recorder = (
        make_server(BoundaryInterceptor(Policy({"/parley.party.v1.PartyService/Describe": {"coordinator"}}), {})),
        Recorder(),
    )
    pb_grpc.add_PartyServiceServicer_to_server(recorder, server)
    recorder.port = listen(server, "127.0.0.1:0", issue(authority, "bank", "party", []))
    await server.start()
    yield recorder
    await server.stop(0)


@pytest.fixture
async def fleet(authority, party):
    identity = issue(authority, "coordinator", "coordinator", [])
    routes = Routes(identity, authority.parent / "sockets")
    fleet = Fleet(identity, {"bank": f"127.0.0.1:{party.port}"}, routes)
    yield fleet
    await fleet.close()


async def test_a_renewed_certificate_is_shown_in_the_next_call(authority, party, fleet):
    await fleet.reach("bank")
    await fleet.reach("bank")
    issue(authority, "coordinator", "coordinator", [], force=True)
    await fleet.reach("bank")
    first, second, renewed = party.shown
    assert first == second != renewed


async def test_a_half_replaced_certificate_leaves_the_old_connection_in_place(authority, party, fleet):
    await fleet.reach("bank")
    (authority.parent / "coordinator" / "certificate.pem").write_bytes(b"half a file")
    await fleet.reach("bank")
    assert len(set(party.shown)) == 1


@pytest.mark.parametrize("code", [grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.UNAVAILABLE])
def test_a_connection_that_broke_in_the_middle_is_waited_for(code):
    broken = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), "Internal error from Core")
    assert isinstance(as_party_error("bank", broken), PartyLost)


async def test_an_error_that_the_party_names_is_a_refusal(party, fleet):
    party.fails = True
    with pytest.raises(PartyRefused, match="INTERNAL"):
        await fleet.reach("bank")


@pytest.mark.parametrize("reason", ["DIVERGED", "RANGE_EXCEEDED"])
def test_whose_values_grow_is_not_told(reason):
    """A client that could ask again with other step sizes would bisect how large that party's values are."""
    refusal = PartyRefused("bank", reason, "take a smaller step")
    assert str(refusal) == f"a party refused ({reason}): take a smaller step"
    assert refusal.party == "bank"
    assert str(PartyRefused("bank", "DATA_INVALID", "a column is missing")).startswith("bank refused")
