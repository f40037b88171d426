"""Run a party: `python -m parley.services.party --config party.yaml`."""

import argparse
import asyncio
import contextlib
import logging

import grpc

from parley.contracts.alignment.v1 import alignment_service_pb2, alignment_service_pb2_grpc
from parley.contracts.coordinator.v1 import coordinator_service_pb2, coordinator_service_pb2_grpc
from parley.contracts.party.v1 import party_service_pb2, party_service_pb2_grpc
from parley.contracts.peer.v1 import peer_service_pb2, peer_service_pb2_grpc
from parley.party.roles import RowEngine
from parley.privacy.ledger import open_ledger
from parley.services.party.algorithms import limit_threads, with_loaded
from parley.services.party.alignment import REFUSALS, AlignmentServicer
from parley.services.party.config import PartyConfig
from parley.services.party.exposure import open_register
from parley.services.party.refusals import CATALOGUE
from parley.services.party.servicer import PartyServicer, PeerServicer
from parley.services.wire import metrics
from parley.services.wire.audit import AuditTrail
from parley.services.wire.authorisation import HEALTH, REFLECTION, Policy
from parley.services.wire.certificates import load_identity
from parley.services.wire.configuration import ConfigInvalid, load_config
from parley.services.wire.process import run, serve
from parley.services.wire.refusals import BoundaryInterceptor
from parley.services.wire.relay_line import RelayLine
from parley.services.wire.revocation import Standing
from parley.services.wire.routes import SERVICE_SOCKET, SOCKETS, Routes
from parley.services.wire.state_directory import prepare_state
from parley.services.wire.traces import open_traces
from parley.services.wire.transport import CONTROL_SECONDS, add_health_and_reflection, listen, make_server, open_channel
from parley.services.wire.tunnels import socket_address
from parley.services.wire.version import VERSION
from parley.storage.engines import require_whole

SERVICE = party_service_pb2.DESCRIPTOR.services_by_name["PartyService"]
PEERS = peer_service_pb2.DESCRIPTOR.services_by_name["PeerService"]
ALIGNMENT = alignment_service_pb2.DESCRIPTOR.services_by_name["AlignmentService"]
POLICY = Policy(
    HEALTH
    | REFLECTION
    | {f"/{ALIGNMENT.full_name}/{method.name}": frozenset({"coordinator"}) for method in ALIGNMENT.methods}
    | {f"/{SERVICE.full_name}/{method.name}": frozenset({"coordinator"}) for method in SERVICE.methods}
    | {f"/{PEERS.full_name}/{method.name}": frozenset({"party"}) for method in PEERS.methods}
)
logger = logging.getLogger(__name__)


async def main(given: argparse.Namespace) -> None:
    """Serve until stopped."""
    config = load_config(given.config, PartyConfig)
    identity = load_identity(config.identity)
    if identity.peer != ("party", config.name):
        raise ConfigInvalid(
            f"{given.config}: name is {config.name}, but the certificate says {identity.peer.role} "
            f"{identity.peer.name}: correct one of them"
        )
    prepare_state(config.state)
    if config.has_database:  # upgrades an old one, and reports one that cannot be used, at the start
        require_whole(config.name, config.database_url)
        open_ledger(config.database_url).close()
        open_register(config.database_url).close()
    limit_threads(config.threads)
    catalogue, trail = with_loaded({**CATALOGUE, **REFUSALS}), AuditTrail(config.state)
    server = make_server(BoundaryInterceptor(POLICY, catalogue, Standing(config.identity), trail))
    sockets = config.state / SOCKETS
    line = RelayLine(config.relays[0], config.identity, sockets) if config.connect is not None else None
    lines = {} if line is None else {(line.place.role, line.place.name): line}
    routes = Routes(config.identity, sockets, known=config.relays, lines=lines)
    traces = open_traces(config.traces, "party", config.name)
    engine = await _engine_of(config)
    servicer = PartyServicer(config, routes, traces, engine)
    party_service_pb2_grpc.add_PartyServiceServicer_to_server(servicer, server)
    peer_service_pb2_grpc.add_PeerServiceServicer_to_server(
        PeerServicer(servicer.peers_of, config.policy.peers), server
    )
    alignment_service_pb2_grpc.add_AlignmentServiceServicer_to_server(AlignmentServicer(config), server)
    await add_health_and_reflection(server, [SERVICE.full_name, PEERS.full_name, ALIGNMENT.full_name])
    if line is None:
        host = config.listen.rpartition(":")[0]
        address = f"{host}:{listen(server, config.listen, config.identity)}"
        greeting = asyncio.create_task(_announce(config))
    else:
        sockets.mkdir(exist_ok=True, mode=0o700)
        address = socket_address(sockets / SERVICE_SOCKET)
        listen(server, address, config.identity)
        greeting = asyncio.create_task(_stay_registered(line, config))
    metrics.SESSIONS.set_function(lambda: servicer.open_sessions)
    if config.metrics_listen is not None:
        logger.info("metrics at port %d", metrics.listen(config.metrics_listen, config.identity))
    try:
        await serve(server, address, given.ready_file)
    finally:
        greeting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await greeting
        await routes.close()
        await asyncio.to_thread(traces.close)


async def _engine_of(config: PartyConfig) -> RowEngine | None:
    if config.compute is None:
        return None
    from parley.services.party.ray_rows import connect  # an extra

    return await asyncio.to_thread(
        connect, config.compute, config.threads
    )  # Ray leaves signals alone off the main thread


async def _stay_registered(line: RelayLine, config: PartyConfig) -> None:
    """Keep a line to the relay open; a coordinator that is the relay itself needs no announcement."""

    async def registered() -> None:
        if config.relay is not None:
            await _announce(config)

    await line.stay_registered(config.state / SOCKETS / SERVICE_SOCKET, registered)


async def _announce(config: PartyConfig) -> None:
    """Tell the coordinator that this party is up, so that runs which wait for it go on at once."""
    if config.coordinator is None:
        return
    delay = 0.5
    while True:
        coordinator = config.coordinator
        async with open_channel(coordinator.address, config.identity, "coordinator", coordinator.name) as channel:
            stub = coordinator_service_pb2_grpc.CoordinatorServiceStub(channel)
            request = coordinator_service_pb2.AnnounceRequest(version=VERSION)
            try:
                await stub.Announce(request, timeout=CONTROL_SECONDS)
                return
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    logger.warning("the coordinator did not take the announcement: %s", error.details())
                    return
        await asyncio.sleep(delay)
        delay = min(2 * delay, 30.0)


if __name__ == "__main__":
    run(main, __doc__)
