"""Run a coordinator: `python -m parley.services.coordinator --config coordinator.yaml`."""

import argparse
import asyncio
import functools
import hmac
import logging
import secrets
from collections.abc import Callable, Collection, Coroutine
from typing import Any

from parley.contracts.coordinator.v1 import coordinator_service_pb2, coordinator_service_pb2_grpc
from parley.contracts.relay.v1 import relay_service_pb2_grpc
from parley.contracts.run.v1 import run_service_pb2, run_service_pb2_grpc
from parley.privacy.evaluations import open_register
from parley.privacy.ledger import open_ledger
from parley.services.coordinator.alignment import REFUSALS, AlignmentRunner, chosen_rows
from parley.services.coordinator.async_registry import AsyncRegistry
from parley.services.coordinator.config import CoordinatorConfig
from parley.services.coordinator.database_threads import DatabaseThreads
from parley.services.coordinator.deployment_records import DeploymentRecords
from parley.services.coordinator.deployments import Deployments
from parley.services.coordinator.fleet import Fleet, PartyUnknown
from parley.services.coordinator.labels import LabelStore
from parley.services.coordinator.permissions import ClientPolicy
from parley.services.coordinator.programs import ProgramFactory
from parley.services.coordinator.queue import Limits
from parley.services.coordinator.refusals import CATALOGUE
from parley.services.coordinator.registry import open_registry
from parley.services.coordinator.reports import LedgerReports
from parley.services.coordinator.runs import RunSupervisor
from parley.services.coordinator.schedules import Schedules
from parley.services.coordinator.servicer import PartiesServicer, RunServicer
from parley.services.coordinator.tracking import Tracking, open_trackers
from parley.services.coordinator.web import WebRuns, web_page
from parley.services.relay.servicer import METHODS as RELAY_METHODS
from parley.services.relay.servicer import REFUSALS as RELAY_REFUSALS
from parley.services.relay.servicer import SERVICE as RELAY
from parley.services.relay.servicer import RelayServicer
from parley.services.relay.switchboard import OwnLine, Switchboard
from parley.services.wire.audit import AuditTrail
from parley.services.wire.authorisation import HEALTH, REFLECTION, Caller, Policy
from parley.services.wire.certificates import load_identity
from parley.services.wire.configuration import ConfigInvalid, load_config
from parley.services.wire.key_commands import noise_key
from parley.services.wire.process import run, serve, standing_by
from parley.services.wire.refusals import BoundaryInterceptor
from parley.services.wire.revocation import Standing
from parley.services.wire.routes import SOCKETS, Routes
from parley.services.wire.state_directory import prepare_state
from parley.services.wire.traces import open_traces
from parley.services.wire.transport import add_health_and_reflection, listen, make_server
from parley.storage.failures import StorageFailed
from parley.storage.leases import Lease, await_lease, take_lease
from parley.tables.alignments import AlignmentStore

DAY_SECONDS, PRUNE_SECONDS = 86400.0, 3600.0
RUNS = run_service_pb2.DESCRIPTOR.services_by_name["RunService"]
PARTIES = coordinator_service_pb2.DESCRIPTOR.services_by_name["CoordinatorService"]
POLICY = Policy(
    HEALTH
    | REFLECTION
    | {f"/{RUNS.full_name}/{method.name}": frozenset({"client"}) for method in RUNS.methods}
    | {f"/{PARTIES.full_name}/{method.name}": frozenset({"party"}) for method in PARTIES.methods}
    | RELAY_METHODS
)

logger = logging.getLogger(__name__)


async def main(given: argparse.Namespace) -> None:
    """Serve until stopped."""
    config = load_config(given.config, CoordinatorConfig)
    identity = load_identity(config.identity)
    if identity.peer != ("coordinator", config.name):
        raise ConfigInvalid(
            f"{given.config}: name is {config.name}, but the certificate says {identity.peer.role} "
            f"{identity.peer.name}: correct one of them"
        )
    prepare_state(config.state)
    lease = await _lease(config)
    recorded, ledger = open_registry(config.database_url), open_ledger(config.database_url)  # or nothing is touched
    evaluations = open_register(config.database_url)
    key = noise_key(config.key_command, config.state / "label-noise.key")
    token, threads = f"{secrets.token_hex(16)}.{_fingerprint(key)}", DatabaseThreads()
    if config.standby:
        _require_same_key(recorded.writer(), token)
    recorded.claim(token)
    registry = AsyncRegistry(recorded, threads)
    switchboard = Switchboard(arrived=lambda party: fleet.arrived(party))
    own_line = OwnLine(switchboard, Caller("coordinator", config.name), config.state / SOCKETS)
    routes = Routes(config.identity, config.state / SOCKETS, lines={("coordinator", config.name): own_line})
    traces = open_traces(config.traces, "coordinator", config.name)
    outbound = {name for name, party in config.parties.items() if party.connects}
    fleet = Fleet(
        config.identity,
        config.addresses,
        routes,
        absence=lambda party: switchboard.absence(party) if party in outbound else "",
        traces=traces,
    )
    labels = LabelStore(config.labels, functools.partial(chosen_rows, AlignmentStore(config.state), config.name))
    programs = ProgramFactory(labels, ledger, key, evaluations, config.problem_imports)
    limits = Limits(config.runs, config.queue, config.runs_per_client, config.queue_per_client)
    runs = RunSupervisor(registry, fleet, labels, programs, limits)
    deployments = Deployments(registry, DeploymentRecords(recorded), threads, fleet, programs)
    runs.in_use = lambda: deployments.run_ids
    alignments = AlignmentRunner(config.name, config.state, config.labels, fleet)
    trail = AuditTrail(config.state)
    schedules = Schedules(config.schedules, runs, trail)
    policy, standing = ClientPolicy(POLICY.methods, config.clients), Standing(config.identity)
    server = make_server(BoundaryInterceptor(policy, {**CATALOGUE, **REFUSALS, **RELAY_REFUSALS}, standing, trail))
    run_service_pb2_grpc.add_RunServiceServicer_to_server(
        RunServicer(
            runs, registry, fleet, LedgerReports(registry, ledger, evaluations, threads), alignments, deployments
        ),
        server,
    )
    parties = PartiesServicer(fleet, registry, runs)
    coordinator_service_pb2_grpc.add_CoordinatorServiceServicer_to_server(parties, server)
    relay = RelayServicer(switchboard, functools.partial(_require_outbound, fleet, outbound))
    relay_service_pb2_grpc.add_RelayServiceServicer_to_server(relay, server)
    await add_health_and_reflection(server, [RUNS.full_name, PARTIES.full_name, RELAY.full_name])
    host = config.listen.rpartition(":")[0]
    address = f"{host}:{listen(server, config.listen, config.identity)}"
    web = WebRuns(runs, registry, fleet, ledger, threads, trail, deployments)
    tracking = Tracking(open_trackers(config.tracking), web)
    runs.driven = tracking.follow
    await runs.resume_unfinished()
    await deployments.start()
    beside = [asyncio.create_task(each) for each in (_prune(runs, config.retention_days), schedules.keep())]
    try:
        async with web_page(config, web, trail):
            await _while_held(serve(server, address, given.ready_file), lease, lambda: recorded.writer() == token)
    finally:
        for task in beside:
            task.cancel()
        ledger.close()  # first: a run that waits for the database in a thread gives up
        evaluations.close()
        await deployments.stop()
        await runs.stop()
        await tracking.stop()
        await asyncio.to_thread(traces.close)
        await fleet.close()
        await routes.close()
        threads.close()
        recorded.close()


async def _lease(config: CoordinatorConfig) -> Lease:
    """The database, at once or, where this coordinator stands by, once the one that serves it has ended."""
    if not config.standby:
        return take_lease(config.database_url, config.name)
    async with standing_by():
        lease = await await_lease(
            config.database_url, config.name, lambda reason: logger.info("standing by: %s", reason)
        )
    logger.info("took the database over")
    return lease


def _fingerprint(key: bytes) -> str:
    """Tells keys of label noise apart, and nothing else of them."""
    return hmac.digest(key, b"parley/label-noise-key/v1", "sha256").hex()[:16]


def _require_same_key(before: str | None, token: str) -> None:
    """Refuse to take over with another key: what was released would be drawn again, with other noise."""
    known = (before or "").partition(".")[2]
    if known and known != token.partition(".")[2]:
        raise ConfigInvalid(
            "`key_command` prints another key of label noise than that of the coordinator that served this database "
            "before: give both the same key"
        )


def _require_outbound(fleet: Fleet, outbound: Collection[str], party: str) -> None:
    """Let a party register that the configuration expects to dial in."""
    address = fleet.address(party)
    if party not in outbound:
        raise PartyUnknown(
            f"{party} is dialled at {address}: write `{party}: {{connects: true}}` under `parties` in the "
            "coordinator's configuration"
        )


async def _prune(runs: RunSupervisor, days: float | None) -> None:
    """Forget runs that ended longer ago than the configuration keeps them."""
    while days is not None:
        try:
            found, more = await runs.prune(days * DAY_SECONDS)
            if found:
                logger.info("%d runs ended more than %g days ago and are forgotten", len(found), days)
        except StorageFailed as failure:
            logger.warning("old runs are not forgotten now: %s", failure)
            more = False
        await asyncio.sleep(0.0 if more else PRUNE_SECONDS)


async def _while_held(serving: Coroutine[Any, Any, None], lease: Lease, is_ours: Callable[[], bool]) -> None:
    """Serve as long as the database is ours."""
    tasks = [asyncio.ensure_future(each) for each in (serving, lease.keep(is_ours))]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in done:
        task.result()


if __name__ == "__main__":
    run(main, __doc__)
