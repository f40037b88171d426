"""Servers and channels: mutual TLS, keepalive, bounded messages."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio
from grpc_reflection.v1alpha import reflection

from parley.protocols.tensor.codec import INLINE_BYTES
from parley.services.wire.certificates import Identity, load_identity, tls_name
from parley.services.wire.refusals import BoundaryInterceptor

LARGEST_MESSAGE_BYTES = 4 * INLINE_BYTES
Stamp = tuple[tuple[str, int], ...]
CONTROL_SECONDS = 20.0
"""Deadline of a control call."""
RELAYED_CONNECT_MILLISECONDS = 15_000
"""How long a connection through a relay may take to be made."""

OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", LARGEST_MESSAGE_BYTES),
    ("grpc.max_send_message_length", LARGEST_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),  # which it really waits for an answer; a minute if left out
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # What a stream may hold that nobody reads yet. gRPC's own estimate of it grows with the delay of a busy machine.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 4 * 1024 * 1024),
    ("grpc.so_reuseport", 0),  # a port that is taken is an error; otherwise two servers would share it
    ("grpc.server_handshake_timeout_ms", 20_000),  # a connection on which nothing is sent is closed
]


class PortTaken(OSError):
    """The address cannot be listened on."""


def make_server(interceptor: BoundaryInterceptor) -> grpc.aio.Server:
    """A server whose every call passes the interceptor."""
    return grpc.aio.server(interceptors=[interceptor], options=OPTIONS)


def listen(server: grpc.aio.Server, address: str, identity: Path) -> int:
    """Listen with mutual TLS; returns the port. Renewed certificates are picked up without a restart."""
    credentials = grpc.dynamic_ssl_server_credentials(
        _server_configuration(load_identity(identity)), _Renewal(identity), require_client_authentication=True
    )
    try:
        return int(server.add_secure_port(address, credentials))
    except RuntimeError as error:
        raise PortTaken(f"cannot listen on {address}: is the port taken? Choose another one. ({error})") from None


class _Renewal:
    """Hands out the certificate configuration anew when the files change."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._stamp = identity_stamp(directory)

    def __call__(self) -> grpc.ServerCertificateConfiguration | None:
        stamp = identity_stamp(self._directory)
        if stamp == self._stamp:
            return None
        self._stamp = stamp
        return _server_configuration(load_identity(self._directory))


def identity_stamp(directory: Path) -> Stamp:
    """What changes when a certificate is renewed."""
    return tuple(sorted((path.name, path.stat().st_mtime_ns) for path in directory.glob("*.pem")))


def _server_configuration(identity: Identity) -> grpc.ServerCertificateConfiguration:
    pair = (identity.private_key, identity.certificate_chain)
    return grpc.ssl_server_certificate_configuration([pair], root_certificates=identity.ca)


def channel_options(role: str, name: str) -> list[tuple[str, Any]]:
    """Options of a channel to the service that the certificate must name, wherever it is dialled."""
    return [*OPTIONS, ("grpc.ssl_target_name_override", tls_name(role, name))]


def channel_credentials(identity: Identity) -> grpc.ChannelCredentials:
    """Credentials of a channel: who we are and whom we trust."""
    return grpc.ssl_channel_credentials(identity.ca, identity.private_key, identity.certificate_chain)


def open_channel(
    address: str, identity: Path, role: str, name: str, *, own_connection: bool = False
) -> grpc.aio.Channel:
    """A channel to `role` `name` at `address`; channels share a connection unless one asks for its own."""
    credentials = channel_credentials(load_identity(identity))
    options = dict([*channel_options(role, name), ("grpc.use_local_subchannel_pool", int(own_connection))])
    if address.startswith("unix:"):  # it stands for a service far away, which has to be told of the connection first
        options["grpc.min_reconnect_backoff_ms"] = RELAYED_CONNECT_MILLISECONDS
    return grpc.aio.secure_channel(address, credentials, options=list(options.items()))


async def add_health_and_reflection(server: grpc.aio.Server, services: Sequence[str]) -> health_aio.HealthServicer:
    """Serve health of each service, and reflection."""
    health = health_aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    names = (*services, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server)
    for service in ("", *services):
        await health.set(service, health_pb2.HealthCheckResponse.SERVING)
    return health
