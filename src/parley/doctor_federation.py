"""What `parley doctor --address` looks at: a coordinator and the parties behind it, as they answer now."""

import socket
import ssl
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from parley.client import RequestRefused, connect
from parley.contracts.run.v1 import run_service_pb2
from parley.doctor import REACH_SECONDS, Check, broken, certificate, expiry, from_error, noticed, ok, reaches, warning
from parley.services.wire.certificates import Identity, PeerRefused, load_identity, peer_identity, tls_name
from parley.services.wire.relay_line import relay_in
from parley.services.wire.version import VERSION

SKEW_SECONDS = 5.0
"""Clocks further apart should be set: certificates are checked against them, and events are ordered by them."""
BROKEN_SKEW_SECONDS = 300.0
"""Beyond this, new certificates are refused as not valid yet."""


def federation(address: str, identity: Path, coordinator: str) -> Iterator[Check]:
    """Check a federation from where a client stands."""
    own = certificate("own certificate", identity, role="client")
    yield own
    if own.state == "broken":
        return
    problem = reaches(address)
    if problem:
        remedy = "start it (parley coordinator --config …), correct --address, or open the firewall"
        yield broken("coordinator", f"nothing answers at {address} ({problem})", remedy)
        return
    server = _server("coordinator", address, load_identity(identity), coordinator)
    yield server
    if server.state == "broken":
        return
    with connect(address, identity, coordinator) as client:
        started = time.time()
        try:
            answer = client.call("ListParties", run_service_pb2.ListPartiesRequest())
        except RequestRefused as refusal:
            yield from_error("coordinator", refusal)
            return
        yield _version("coordinator version", answer.version)
        yield _skew("coordinator clock", _between(answer.clock_seconds, started, time.time()))
    if not answer.parties:
        yield warning("parties", "the coordinator's address book is empty", "list parties in its configuration")
    for party in answer.parties:
        yield from _party(party, load_identity(identity))
    yield from _rows(answer.parties)


def _party(party: Any, identity: Identity) -> Iterator[Check]:
    subject = f"party {party.name}"
    if not party.reachable:
        remedy = f"start it, or correct its address ({party.address}) in the coordinator's configuration"
        if relay_in(party.address):
            remedy = "start it, and see in its log whether it can dial out (`connect`; proxies are honoured)"
        yield broken(subject, party.problem or "does not answer", remedy)
        return
    yield ok(subject, f"answers the coordinator at {party.address} within {party.latency_milliseconds:.0f} ms")
    yield _party_version(f"{subject} version", party)
    yield _skew(f"{subject} clock", party.clock_skew_seconds)
    if not relay_in(party.address) and not reaches(party.address):  # from here too; often only the coordinator may
        yield _server(f"{subject} certificate", party.address, identity, party.name, role="party")
    for table in party.offers:
        yield _offered(f"{subject} table {table.name}", table, party.name)
    if not party.offers:
        yield warning(
            f"{subject} tables", "it offers none", "its owner adds `tables`, or opens them in `policy.tables`"
        )
    accepts = f"accepts {', '.join(party.algorithms)}; sums {', '.join(party.aggregations)}"
    if "plain" in party.aggregations:
        remedy = "its owner takes `plain` out of policy.aggregations, unless the coordinator may see its values"
        yield warning(f"{subject} policy", f"{accepts}; `plain` hides nothing", remedy)
    else:
        yield ok(f"{subject} policy", accepts)


def _offered(subject: str, table: Any, party: str) -> Check:
    if table.problem:
        return broken(subject, table.problem, f"its owner runs: parley doctor --config {party}.yaml")
    if table.loaded_percent < 100:
        return ok(subject, f"loading, {table.loaded_percent} %")
    return noticed(subject, table) if table.notice else ok(subject, f"{table.rows} rows, {table.features} columns")


def _rows(parties: Sequence[Any]) -> Iterator[Check]:
    """Tables of the same name with unlike rows cannot be trained on by columns, until they are aligned."""
    sizes: dict[str, dict[str, int]] = {}
    for party in parties:
        for table in party.offers:
            if not table.problem and table.loaded_percent == 100:
                sizes.setdefault(table.name, {})[party.name] = table.rows
    for name, held in sizes.items():
        if len(set(held.values())) > 1:
            found = ", ".join(f"{party} {rows}" for party, rows in held.items())
            remedy = "find the common rows: parley align (algorithms that share rows need no alignment)"
            yield warning(f"table {name}", f"has unlike numbers of rows: {found}", remedy)


def _version(subject: str, version: str) -> Check:
    if version == VERSION:
        return ok(subject, f"Parley {version}, as here")
    found = f"Parley {version or 'unknown'}, here {VERSION}"
    return warning(subject, found, "install the coordinator's version here, so that this command knows what it says")


def _party_version(subject: str, party: Any) -> Check:
    if not party.protocol:
        return broken(subject, party.problem or f"Parley {party.version or 'unknown'}", "upgrade whoever is behind")
    return ok(subject, f"Parley {party.version}; speaks protocol {party.protocol} with the coordinator")


def _between(clock: float, started: float, ended: float) -> float:
    """How far a clock that was read during a call lies outside the call's span."""
    return clock - started if clock < started else max(0.0, clock - ended)


def _skew(subject: str, seconds: float) -> Check:
    if abs(seconds) < SKEW_SECONDS:
        return ok(subject, f"within {max(abs(seconds), 0.1):.1f} s")
    found = f"{abs(seconds):.0f} s {'ahead' if seconds > 0 else 'behind'}"
    remedy = "run NTP on both hosts"
    return broken(subject, found, remedy) if abs(seconds) > BROKEN_SKEW_SECONDS else warning(subject, found, remedy)


def _server(subject: str, address: str, identity: Identity, name: str, role: str = "coordinator") -> Check:
    """Shake hands and look at the certificate that a service shows."""
    try:
        shown, expires = _handshake(address, identity, role, name)
    except ssl.SSLCertVerificationError as refusal:
        if "Hostname" in str(refusal) or "hostname" in str(refusal):
            found = f"who answers at {address} is not {role} {name}"
            return broken(subject, found, "correct the address, or the name (--coordinator)")
        remedy = "renew it if it has expired; else use certificates of one authority"
        return broken(subject, f"its certificate is refused ({refusal.verify_message})", remedy)
    except (ssl.SSLError, OSError, PeerRefused) as error:
        return broken(subject, f"no TLS with {address} ({error})", "is it a Parley service, and is it up?")
    return expiry(subject, shown, expires)


def _handshake(address: str, identity: Identity, role: str, name: str) -> tuple[str, datetime]:
    context = ssl.create_default_context(cadata=identity.ca.decode())
    context.set_alpn_protocols(["h2"])
    with tempfile.TemporaryDirectory() as scratch:  # the ssl module reads keys from files only
        files = Path(scratch) / "certificate.pem", Path(scratch) / "key.pem"
        files[1].touch(0o600)
        files[0].write_bytes(identity.certificate_chain)
        files[1].write_bytes(identity.private_key)
        context.load_cert_chain(*files)
    host, _, number = address.rpartition(":")
    with (
        socket.create_connection((host.strip("[]"), int(number)), REACH_SECONDS) as plain,
        context.wrap_socket(plain, server_hostname=tls_name(role, name)) as secure,
    ):
        shown = x509.load_der_x509_certificate(secure.getpeercert(binary_form=True) or b"")
    peer = peer_identity(shown.public_bytes(Encoding.PEM))
    return f"{peer.role} {peer.name} at {address}", shown.not_valid_after_utc
