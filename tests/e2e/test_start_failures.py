"""`docker compose up` on a host that is not ready ends with a sentence that says what is wrong and what to do."""

import socket

import pytest

from tests.e2e.composition import TAG, output

pytestmark = pytest.mark.e2e

EXPIRE = """
from datetime import UTC, datetime, timedelta
from parley.services.wire.certificates import create_authority, issue
past = datetime.now(UTC) - timedelta(days=30)
create_authority("/federation/authority", "older-authority", force=True, now=past)
issue("/federation/authority", "bank", "party", [], 1, out="/federation/bank", force=True, now=past)
"""


def failure(composition) -> str:
    """What `up` and the logs say when it fails."""
    done = composition.compose("up", "--no-build", "--abort-on-container-exit")
    assert done.returncode != 0
    return (done.stdout + done.stderr).decode() + composition.checked("logs", "--no-color")


def test_a_port_that_another_program_holds_is_named_with_a_way_out(composition):
    with socket.socket() as other:
        other.bind(("127.0.0.1", composition.port))
        other.listen()
        printed = failure(composition)
    assert f"port {composition.port} of this host is taken by another program" in printed
    assert f"PARLEY_PORT={composition.port + 1}" in printed


def test_a_volume_that_cannot_be_written_is_named_with_a_way_out(composition):
    # A volume that is not empty keeps its owner; an empty one would take that of the image's directory.
    spoil = "touch /state/old && chown 0:0 /state && chmod 755 /state"
    composition.checked("create", "bank")
    volume, image = f"{composition.project}_bank-state:/state", f"parley/party:{TAG}"
    output("docker", "run", "--rm", "--user", "0", "-v", volume, "--entrypoint", "sh", image, "-c", spoil)
    composition.checked("run", "--rm", "-T", "certificates")  # `up` might end with this one's end, before bank's
    done = composition.compose("run", "--rm", "-T", "--no-deps", "bank")
    assert done.returncode != 0
    printed = (done.stdout + done.stderr).decode()
    assert "the state directory /state cannot be written by uid 10001" in printed
    assert "chown -R 10001" in printed


def test_an_expired_certificate_is_named_with_a_way_out(composition):
    composition.checked("run", "--rm", "-T", "certificates")
    composition.checked("run", "--rm", "-T", "--entrypoint", "python", "certificates", "-c", EXPIRE)
    printed = failure(composition)
    assert "/federation/bank/certificate.pem expired on" in printed
    assert "docker compose run --rm certificates --renew" in printed
    alone = composition.compose("run", "--rm", "-T", "--no-deps", "bank")
    assert alone.returncode == 2
    assert "/certificates/certificate.pem expired on" in alone.stderr.decode()
    assert "have it signed again" in alone.stderr.decode()
    composition.checked("run", "--rm", "-T", "certificates", "--renew")
    composition.checked("run", "--rm", "-T", "certificates")
