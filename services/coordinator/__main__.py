"""Run a coordinator: `python -m parley.services.coordinator --config coordinator.yaml`."""

import argparse
import functools

import sqlalchemy as sa

from parley.contracts.coordinator.v1 import coordinator_service_pb2, coordinator_service_pb2_grpc
from parley.contracts.run.v1 import run_service_pb2, run_service_pb2_grpc
from parley.privacy.ledger import open_ledger
from parley.privacy.noise import read_or_create_key
from parley.services.coordinator.alignment import REFUSALS, AlignmentRunner, chosen_rows
from parley.services.coordinator.config import CoordinatorConfig
from parley.services.coordinator.fleet import Fleet
from parley.services.coordinator.labels import LabelStore
from parley.services.coordinator.programs import ProgramFactory
from parley.services.coordinator.refusals import CATALOGUE
from parley.services.coordinator.registry import Registry
from parley.services.coordinator.runs import RunSupervisor
from parley.services.coordinator.servicer import PartiesServicer, RunServicer
from parley.services.coordinator.web import web_page, web_runs
from parley.services.wire.authorisation import HEALTH, REFLECTION, Policy
from parley.services.wire.certificates import load_identity
from parley.services.wire.configuration import ConfigInvalid, load_config
from parley.services.wire.process import run, serve
from parley.services.wire.refusals import BoundaryInterceptor
from parley.services.wire.state_directory import prepare_state
from parley.services.wire.transport import add_health_and_reflection, listen, make_server
from parley.tables.alignments import AlignmentStore

RUNS = run_service_pb2.DESCRIPTOR.services_by_name["RunService"]
PARTIES = coordinator_service_pb2.DESCRIPTOR.services_by_name["CoordinatorService"]
POLICY = Policy(
    HEALTH
    | REFLECTION
    | {f"/{RUNS.full_name}/{method.name}": frozenset({"client"}) for method in RUNS.methods}
    | {f"/{PARTIES.full_name}/{method.name}": frozenset({"party"}) for method in PARTIES.methods}
)


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
    registry = Registry(sa.create_engine(config.database_url))
    ledger = open_ledger(config.database_url)
    fleet = Fleet(config.identity, config.parties)
    key = read_or_create_key(config.state / "label-noise.key")
    labels = LabelStore(config.labels, functools.partial(chosen_rows, AlignmentStore(config.state), config.name))
    runs = RunSupervisor(registry, fleet, labels, ProgramFactory(labels, ledger, key), config.runs)
    alignments = AlignmentRunner(config.name, config.state, config.labels, fleet)
    server = make_server(BoundaryInterceptor(POLICY, {**CATALOGUE, **REFUSALS}))
    run_service_pb2_grpc.add_RunServiceServicer_to_server(
        RunServicer(runs, registry, fleet, ledger, alignments), server
    )
    parties = PartiesServicer(fleet, registry, runs)
    coordinator_service_pb2_grpc.add_CoordinatorServiceServicer_to_server(parties, server)
    await add_health_and_reflection(server, [RUNS.full_name, PARTIES.full_name])
    host = config.listen.rpartition(":")[0]
    address = f"{host}:{listen(server, config.listen, config.identity)}"
    runs.resume_unfinished()
    try:
        async with web_page(config, web_runs(runs, registry, fleet, ledger)):
            await serve(server, address, given.ready_file)
    finally:
        await runs.stop()
        await fleet.close()


if __name__ == "__main__":
    run(main, __doc__)
