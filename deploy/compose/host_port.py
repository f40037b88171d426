"""Say before the coordinator starts whether the ports that it is to be reached at are free on this host."""

import argparse
import asyncio
import errno
import socket
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from parley.services.wire.transport import open_channel

IDENTITY = Path("/certificates")


def is_free(host: str, port: int) -> bool:
    """Whether the port can be listened on."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that just ended do not count
        try:
            probe.bind((host, port))
            probe.listen()
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise SystemExit(f"error: cannot listen on {host}:{port} ({error.strerror}): set PARLEY_HOST") from None
    return True


async def is_ours(address: str) -> bool:
    """Whether this federation's coordinator answers there already, as on a second `up`."""
    async with open_channel(address, IDENTITY, "coordinator", "coordinator") as channel:
        try:
            await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=5)
        except grpc.aio.AioRpcError:
            return False
    return True


def main() -> None:
    """Entry point of the one-shot service."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("host")
    parser.add_argument("ports", nargs="+", metavar="SETTING=PORT", help="gRPC first")
    given = parser.parse_args()
    ports = {setting: int(port) for setting, _, port in (entry.partition("=") for entry in given.ports)}
    taken = {setting: port for setting, port in ports.items() if not is_free(given.host, port)}
    if not taken:
        return
    nearby = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(given.host, given.host)  # noqa: S104 (recognised, not bound)
    if not asyncio.run(is_ours(f"{nearby}:{next(iter(ports.values()))}")):
        setting, port = next(iter(taken.items()))
        raise SystemExit(
            f"error: port {port} of this host is taken by another program: stop that one, or choose another port: "
            f"{setting}={port + 1} docker compose up"
        )


if __name__ == "__main__":
    main()
