"""Every RPC has roles, and nothing has a role that is not an RPC."""

import parley.services.coordinator.__main__ as coordinator_main
import parley.services.party.__main__ as party_main
from parley.contracts.alignment.v1 import alignment_service_pb2
from parley.contracts.coordinator.v1 import coordinator_service_pb2
from parley.contracts.party.v1 import party_service_pb2
from parley.contracts.peer.v1 import peer_service_pb2
from parley.contracts.run.v1 import run_service_pb2
from parley.services.wire.authorisation import HEALTH, REFLECTION

SERVED = [
    (
        party_main.POLICY,
        [
            (party_service_pb2, "PartyService", "coordinator"),
            (alignment_service_pb2, "AlignmentService", "coordinator"),
            (peer_service_pb2, "PeerService", "party"),
        ],
    ),
    (
        coordinator_main.POLICY,
        [(run_service_pb2, "RunService", "client"), (coordinator_service_pb2, "CoordinatorService", "party")],
    ),
]


def test_the_policy_table_names_every_method_with_exactly_its_role():
    for policy, services in SERVED:
        expected = dict(HEALTH | REFLECTION)
        for module, name, role in services:
            service = module.DESCRIPTOR.services_by_name[name]
            expected |= {f"/{service.full_name}/{method.name}": frozenset({role}) for method in service.methods}
        assert dict(policy.methods) == expected
