"""Ask a service on this host how it is: `python -m services.wire.healthcheck --config party.yaml`.

The service's own configuration says where it listens and who it is, and its own certificate opens the connection, so a
health check needs nothing beside them. It is a container's probe: exit code 0, or 1 and one line that says why.
"""

import argparse
import asyncio
import sys
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from pydantic import ConfigDict

from services.wire.certificates import load_identity
from services.wire.configuration import ConfigInvalid, FilePath, load_config
from services.wire.transport import open_channel
from spec.section import Section

CHECK_SECONDS = 5.0
ANY_HOST = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]", "": "127.0.0.1"}  # noqa: S104 (recognised, not bound)


class Unhealthy(RuntimeError):
    """The service does not serve."""


class ServiceAddress(Section):
    """What the configurations of all services have in common, and a health check needs."""

    model_config = ConfigDict(extra="ignore")

    listen: str
    """host:port that the service listens on."""
    identity: FilePath
    """Directory with the certificate, the key and the authority."""


async def check(address: str, identity: Path) -> None:
    """Ask the service at `address` that `identity` belongs to.

    Raises:
        Unhealthy: if it does not answer, or answers anything but SERVING.
    """
    role, name = load_identity(identity).peer
    async with open_channel(address, identity, role, name) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=CHECK_SECONDS)
        except grpc.aio.AioRpcError as error:
            raise Unhealthy(f"{role} {name} at {address} does not answer: {error.details()}") from None
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        state = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
        raise Unhealthy(f"{role} {name} at {address} is {state}")


def address_of(config: Path) -> tuple[str, Path]:
    """Where to dial the service that a configuration file describes, and its identity.

    Raises:
        ConfigInvalid: if the file does not say, or leaves the port to chance.
    """
    service = load_config(config, ServiceAddress)
    host, _, port = service.listen.rpartition(":")
    if port in ("", "0"):
        raise ConfigInvalid(f"{config}: listen is {service.listen!r}: name a port, so that health can be asked for")
    return f"{ANY_HOST.get(host, host)}:{port}", service.identity


def main() -> None:
    """Entry point of a container's health check."""
    parser = argparse.ArgumentParser(description="Ask a service on this host how it is.")
    parser.add_argument("--config", type=Path, required=True, help="the service's YAML configuration")
    given = parser.parse_args()
    try:
        asyncio.run(check(*address_of(given.config)))
    except (Unhealthy, ValueError, OSError) as error:
        sys.stderr.write(f"unhealthy: {error}\n")
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
