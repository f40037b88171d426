"""docker-compose.yml as a user runs it: up, train, predict, renew certificates, look inside."""

import json
import socket
import ssl
import subprocess
import sys
import time

import httpx
import pytest

from tests.e2e.composition import PARTIES, ROOT, SERVICES, output

pytestmark = pytest.mark.e2e
SPEC = ROOT / "deploy" / "compose" / "specs" / "digits.yaml"


def served_certificate(port: int) -> bytes:
    """The certificate that the coordinator shows in a new handshake."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", port)) as plain, context.wrap_socket(plain) as secure:
        return secure.getpeercert(binary_form=True)


def test_all_services_are_healthy_within_thirty_seconds(federation):
    if federation.busy > 1:
        pytest.skip(f"other work takes this host's cores; it took {federation.up_seconds:.0f} s")
    assert federation.up_seconds <= 30


def test_the_documented_command_trains_and_prints_the_result(federation):
    started = time.monotonic()
    printed = federation.checked("run", "--rm", "-T", "client", "run", "start", "/specs/digits.yaml", "--watch")
    assert time.monotonic() - started <= 120
    assert "completed" in printed.splitlines()[-1]
    assert "accuracy 0.9" in printed


def test_a_plain_grpc_client_with_reflection_trains(federation, tmp_path):
    folder = federation.export_client(tmp_path)
    program = ROOT / "deploy" / "compose" / "plain_client.py"
    command = [sys.executable, str(program), f"localhost:{federation.port}", str(folder), str(SPEC)]
    # another directory: the program must not find Parley's own modules
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "completed test accuracy 0.9" in done.stdout


def test_the_web_page_opens_with_the_token_and_not_without(federation, tmp_path):
    folder = federation.export_client(tmp_path)
    trust = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    token = federation.checked("exec", "-T", "coordinator", "cat", "/state/web.token").strip()
    with httpx.Client(base_url=f"https://localhost:{federation.web_port}", verify=trust, timeout=20) as browser:
        opened = browser.get("/api/parties", headers={"Authorization": f"Bearer {token}"})
        assert opened.status_code == 200
        assert "telco" in opened.text
        assert browser.get("/api/parties").status_code == 401


def test_every_container_is_confined(federation):
    for service in SERVICES:
        host = federation.inspect(service)["HostConfig"]
        assert host["ReadonlyRootfs"], service
        assert host["CapDrop"] == ["ALL"], service
        assert "no-new-privileges:true" in host["SecurityOpt"], service
        status = federation.checked("exec", "-T", service, "cat", "/proc/self/status")
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        assert fields["Uid"].split()[0] == "10001", service
        assert {int(fields[name], 16) for name in ("CapEff", "CapPrm", "CapBnd")} == {0}, service


def test_a_party_is_on_no_network_but_the_federation_which_leads_nowhere_else(federation):
    for party in PARTIES:
        assert list(federation.inspect(party)["NetworkSettings"]["Networks"]) == [f"{federation.project}_federation"]
    network = json.loads(output("docker", "network", "inspect", f"{federation.project}_federation"))[0]
    assert network["Internal"] is True


def test_a_service_holds_no_key_but_its_own(federation):
    assert federation.checked("exec", "-T", "bank", "ls", "/certificates").split() == [
        "ca.pem",
        "certificate.pem",
        "key.pem",
    ]
    assert federation.compose("exec", "-T", "coordinator", "ls", "/federation/authority").stdout == b""


def test_renewed_certificates_are_served_without_a_restart(federation, client):
    before = served_certificate(federation.port)
    started = {service: federation.inspect(service)["State"]["StartedAt"] for service in SERVICES}
    federation.checked("run", "--rm", "-T", "certificates", "--renew")
    assert served_certificate(federation.port) != before
    run = client.start(SPEC)
    assert run.result()["test accuracy"] > 0.9
    assert {service: federation.inspect(service)["State"]["StartedAt"] for service in SERVICES} == started
    assert {federation.health(service) for service in SERVICES} == {"healthy"}


def test_a_second_up_finds_its_own_port_and_changes_nothing(federation):
    before = {service: federation.container(service) for service in SERVICES}
    federation.checked("up", "-d", "--no-build")
    assert {service: federation.container(service) for service in SERVICES} == before
