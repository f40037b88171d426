"""Every RPC has roles, and nothing has a role that is not an RPC."""

import parley.services.coordinator.__main__ as coordinator_main
import parley.services.party.__main__ as party_main
import parley.services.relay.__main__ as relay_main
from parley.contracts.alignment.v1 import alignment_service_pb2
from parley.contracts.coordinator.v1 import coordinator_service_pb2
from parley.contracts.party.v1 import party_service_pb2
from parley.contracts.peer.v1 import peer_service_pb2
from parley.contracts.relay.v1 import relay_service_pb2
from parley.contracts.run.v1 import run_service_pb2
from parley.services.wire.authorisation import HEALTH, REFLECTION

RELAY = {
    "/parley.relay.v1.RelayService/Register": frozenset({"party"}),
    "/parley.relay.v1.RelayService/Accept": frozenset({"party"}),
    "/parley.relay.v1.RelayService/Connect": frozenset({"coordinator", "party"}),
}
SERVED = [
    (
        party_main.POLICY,
        [
            (party_service_pb2, "PartyService", "coordinator"),
            (alignment_service_pb2, "AlignmentService", "coordinator"),
            (peer_service_pb2, "PeerService", "party"),
        ],
        {},
    ),
    (
        coordinator_main.POLICY,
        [(run_service_pb2, "RunService", "client"), (coordinator_service_pb2, "CoordinatorService", "party")],
        RELAY,
    ),
    (relay_main.POLICY, [], RELAY),
]


def test_the_policy_table_names_every_method_with_exactly_its_role():
    for policy, services, others in SERVED:
        expected = dict(HEALTH | REFLECTION) | others
        for module, name, role in services:
            service = module.DESCRIPTOR.services_by_name[name]
            expected |= {f"/{service.full_name}/{method.name}": frozenset({role}) for method in service.methods}
        assert dict(policy.methods) == expected


def test_a_relay_serves_exactly_these_methods():
    service = relay_service_pb2.DESCRIPTOR.services_by_name["RelayService"]
    assert {f"/{service.full_name}/{method.name}" for method in service.methods} == RELAY.keys()
