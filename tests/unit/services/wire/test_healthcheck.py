"""Health over mutual TLS, certificates renewed under a running server, and a state directory that is tried first."""

import asyncio
import socket
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml

from parley.services.wire.authorisation import HEALTH, Policy
from parley.services.wire.certificates import CertificateExpired, create_authority, issue
from parley.services.wire.healthcheck import Unhealthy, address_of, check
from parley.services.wire.refusals import BoundaryInterceptor
from parley.services.wire.state_directory import StateNotWritable, prepare_state
from parley.services.wire.transport import add_health_and_reflection, listen, make_server


@pytest.fixture
def identity(tmp_path):
    create_authority(tmp_path / "authority", "test-authority", now=datetime.now(UTC) - timedelta(days=60))
    return issue(tmp_path / "authority", "bank", "party", [])


@pytest.fixture
async def address(identity):
    """A server that answers for its health, and where it listens."""
    server = make_server(BoundaryInterceptor(Policy(HEALTH), {}))
    await add_health_and_reflection(server, ["parley.party.v1.PartyService"])
    port = listen(server, "127.0.0.1:0", identity)
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(0)


async def served_certificate(address: str) -> bytes:
    """The certificate that a new handshake shows."""
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

    def shake() -> bytes:
        with socket.create_connection((host, int(port)), 5) as plain, context.wrap_socket(plain) as secure:
            return secure.getpeercert(binary_form=True)

    return await asyncio.to_thread(shake)


async def test_a_service_that_serves_is_healthy_by_its_own_certificate(address, identity):
    await asyncio.to_thread(check, address, identity)


async def test_a_service_that_does_not_answer_is_named(identity):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
    with pytest.raises(Unhealthy, match=f"party bank at 127.0.0.1:{port} does not answer"):
        await asyncio.to_thread(check, f"127.0.0.1:{port}", identity)


async def test_another_service_at_the_same_address_is_not_taken_for_this_one(address, identity, tmp_path):
    other = issue(tmp_path / "authority", "shop", "party", [])
    with pytest.raises(Unhealthy, match="party shop"):
        await asyncio.to_thread(check, address, other)


async def test_an_expired_certificate_is_named_with_what_to_do(address, identity, tmp_path):
    past = datetime.now(UTC) - timedelta(days=30)
    issue(tmp_path / "authority", "bank", "party", [], 1, force=True, now=past)
    with pytest.raises(CertificateExpired, match=r"certificate\.pem expired on .*: have it signed again"):
        await asyncio.to_thread(check, address, identity)


async def test_a_renewed_certificate_is_shown_in_the_next_handshake(address, identity, tmp_path):
    before = await served_certificate(address)
    assert await served_certificate(address) == before
    issue(tmp_path / "authority", "bank", "party", [], force=True)
    assert await served_certificate(address) != before
    await asyncio.to_thread(check, address, identity)


async def test_a_half_replaced_pair_leaves_the_old_certificate_in_place(address, identity):
    before = await served_certificate(address)
    whole = (identity / "certificate.pem").read_bytes()
    (identity / "certificate.pem").write_bytes(b"half a file")
    assert await served_certificate(address) == before
    (identity / "certificate.pem").write_bytes(whole)
    await asyncio.to_thread(check, address, identity)


@pytest.mark.parametrize(
    ("listening", "dialled"),
    [("0.0.0.0:7700", "127.0.0.1:7700"), ("[::]:7700", "[::1]:7700"), ("10.1.2.3:7700", "10.1.2.3:7700")],
)
def test_a_service_is_dialled_where_its_configuration_says(tmp_path, listening, dialled):
    config = tmp_path / "party.yaml"
    config.write_text(yaml.safe_dump({"name": "bank", "listen": listening, "identity": "certificates"}))
    assert address_of(config) == (dialled, tmp_path / "certificates")


def test_a_port_left_to_chance_cannot_be_asked(tmp_path):
    config = tmp_path / "party.yaml"
    config.write_text(yaml.safe_dump({"listen": "127.0.0.1:0", "identity": "certificates"}))
    with pytest.raises(Unhealthy, match="name a port"):
        address_of(config)


def test_a_state_directory_is_made_and_holds_nothing_but_its_lock(tmp_path):
    prepare_state(tmp_path / "state" / "bank")
    assert [path.name for path in (tmp_path / "state" / "bank").iterdir()] == ["service.lock"]


def test_a_state_directory_that_cannot_be_written_is_named_with_what_to_do():
    with pytest.raises(StateNotWritable, match=r"/proc/parley cannot be written by uid \d+ .*chown -R"):
        prepare_state(Path("/proc/parley"))
