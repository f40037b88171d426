"""Run a relay: `python -m parley.services.relay --config relay.yaml`."""

import argparse

from parley.contracts.relay.v1 import relay_service_pb2_grpc

from parley.protocols.refusals import Refusal
from parley.services.relay.config import RelayConfig
from parley.services.relay.servicer import METHODS, REFUSALS, SERVICE, RelayServicer
from parley.services.relay.switchboard import Switchboard
from parley.services.wire.authorisation import HEALTH, REFLECTION, Policy
from parley.services.wire.certificates import load_identity
from parley.services.wire.configuration import ConfigInvalid, load_config
from parley.services.wire.process import run, serve
from parley.services.wire.refusals import BoundaryInterceptor
from parley.services.wire.revocation import Standing
from parley.services.wire.transport import add_health_and_reflection, listen, make_server

POLICY = Policy(HEALTH | REFLECTION | METHODS)


class PartyUnknown(LookupError):
    """The relay's configuration does not name the party."""


async def main(given: argparse.Namespace) -> None:
    """Serve until stopped."""
    config = load_config(given.config, RelayConfig)
    identity = load_identity(config.identity)
    if identity.peer != ("relay", config.name):
        raise ConfigInvalid(
            f"{given.config}: name is {config.name}, but the certificate says {identity.peer.role} "
            f"{identity.peer.name}: correct one of them"
        )

    def require_served(party: str) -> None:
        if config.parties is not None and party not in config.parties:
            raise PartyUnknown(f"{party} is not among `parties` of relay {config.name}: add it there")

    catalogue = {**REFUSALS, PartyUnknown: Refusal("NOT_FOUND", "PARTY_UNKNOWN")}
    server = make_server(BoundaryInterceptor(POLICY, catalogue, Standing(config.identity)))
    servicer = RelayServicer(Switchboard(config.limits), require_served)
    relay_service_pb2_grpc.add_RelayServiceServicer_to_server(servicer, server)
    await add_health_and_reflection(server, [SERVICE.full_name])
    host = config.listen.rpartition(":")[0]
    await serve(server, f"{host}:{listen(server, config.listen, config.identity)}", given.ready_file)


if __name__ == "__main__":
    run(main, __doc__)
