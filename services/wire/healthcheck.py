"""Ask a service on this host how it is: `python -m parley.services.wire.healthcheck --config party.yaml`.

The service's own configuration says where it listens and who it is, and its own certificate opens the connection, so a
health check needs nothing beside them. It is a container's probe: exit code 0, or 1 and one line that says why.

A probe runs every few seconds for as long as the service does, so this module imports as little as it can.
"""

import argparse
import sys
from pathlib import Path

import grpc
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc

from parley.services.wire.certificates import load_identity, tls_name

CHECK_SECONDS = 10.0
ANY_HOST = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]", "": "127.0.0.1"}  # noqa: S104 (recognised, not bound)


class Unhealthy(RuntimeError):
    """The service does not serve, or cannot be asked."""


def check(address: str, identity: Path) -> None:
    """Ask the service at `address` that `identity` belongs to.

    Raises:
        Unhealthy: if it does not answer, or answers anything but SERVING.
    """
    own = load_identity(identity)
    role, name = own.peer
    credentials = grpc.ssl_channel_credentials(own.ca, own.private_key, own.certificate_chain)
    options = [("grpc.ssl_target_name_override", tls_name(role, name))]
    with grpc.secure_channel(address, credentials, options=options) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=CHECK_SECONDS)
        except grpc.RpcError as error:
            raise Unhealthy(f"{role} {name} at {address} does not answer: {error.details()}") from None
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        state = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
        raise Unhealthy(f"{role} {name} at {address} is {state}")


def address_of(config: Path) -> tuple[str, Path]:
    """Where to dial the service that a configuration file describes, and its identity.

    The service has read the whole file and refused it if it is wrong; a probe needs two fields of it.

    Raises:
        Unhealthy: if the file does not say, or lets the system choose the port.
    """
    try:
        content = yaml.safe_load(config.read_text())
        folder = config.resolve().parent
        identity = folder / str(content["identity"])
        if content.get("connect"):  # it listens for itself alone
            return f"unix:{folder / str(content['state']) / 'sockets' / 'service'}", identity
        listen = str(content["listen"])
    except (OSError, yaml.YAMLError, KeyError, TypeError) as error:
        raise Unhealthy(f"{config} does not say where the service listens and who it is: {error}") from None
    host, _, port = listen.rpartition(":")
    if port in ("", "0"):
        raise Unhealthy(f"{config}: listen is {listen!r}: name a port, so that health can be asked for")
    return f"{ANY_HOST.get(host, host)}:{port}", identity


def main() -> None:
    """Entry point of a container's health check."""
    parser = argparse.ArgumentParser(description="Ask a service on this host how it is.")
    parser.add_argument("--config", type=Path, required=True, help="the service's YAML configuration")
    given = parser.parse_args()
    try:
        check(*address_of(given.config))
    except (Unhealthy, ValueError, OSError) as error:
        sys.stderr.write(f"unhealthy: {error}\n")
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
