"""Whoever connects and asks for nothing does not keep others from being served, nor for long from being hung up on."""

import resource
import socket
import ssl
import time

import httpx
import pytest

from parley.testing.federations import ForkedFederation

DESCRIPTORS = 256
"""What the services may have open: fewer than the idle connections that come."""
IDLE = 500


@pytest.fixture(scope="module")
def scarce(tmp_path_factory):
    """A federation whose processes may open few files."""
    folder = tmp_path_factory.mktemp("scarce")
    (folder / "bank.csv").write_text("id,a\n1,2\n2,3\n")
    (folder / "labels.csv").write_text("id,label\n1,0\n2,1\n")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    local = ForkedFederation(
        folder / "federation",
        {"bank": {"train": {"path": folder / "bank.csv"}}},
        {"train": {"path": folder / "labels.csv"}},
        coordinator_options={"web": {"listen": "127.0.0.1:0"}},
        wrappers={name: ["env"] for name in ("bank", "coordinator")},  # processes of this one, whose limits they get
        ready_seconds=240,
    )
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, hard))
    try:
        local.__enter__()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4 * IDLE)), hard))
    yield local
    local.__exit__(None, None, None)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def web(local):
    return (local.directory / "state" / "coordinator" / "web.address").read_text().strip()


def trust(local):
    return ssl.create_default_context(cafile=str(local.identity("client") / "ca.pem"))


def dial(local):
    host, _, port = web(local).removeprefix("https://").rpartition(":")
    return socket.create_connection((host, int(port)), timeout=10)


def is_hung_up(connection, seconds):
    connection.settimeout(seconds)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def test_idle_connections_take_no_descriptor_that_others_need(scarce):
    idle = [dial(scarce) for _ in range(IDLE)]
    try:
        with scarce.connect() as client:
            assert [party.name for party in client.parties() if party.reachable] == ["bank"]
        assert httpx.get(web(scarce), verify=trust(scarce), timeout=10).status_code == 401
        deadline = time.monotonic() + 30
        assert all(is_hung_up(connection, max(0.1, deadline - time.monotonic())) for connection in idle)
    finally:
        for connection in idle:
            connection.close()
    with scarce.connect() as client:
        assert client.runs() == []


def test_idle_connections_to_the_services_themselves_are_hung_up_on(scarce):
    host, _, port = scarce.addresses["coordinator"].rpartition(":")
    idle = [socket.create_connection((host, int(port)), timeout=10) for _ in range(20)]
    deadline = time.monotonic() + 40
    assert all(is_hung_up(connection, max(0.1, deadline - time.monotonic())) for connection in idle)


def secure(local):
    context = trust(local)
    context.check_hostname = False
    return context.wrap_socket(dial(local))


@pytest.mark.parametrize(
    "beginning",
    [
        b"",
        b"GET / HTTP/1.1\r\nhost: localhost\r\n",
        b"POST /login HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\n\r\ntok",
    ],
    ids=["nothing", "half a head", "half a body"],
)
def test_a_request_that_never_ends_is_hung_up_on(scarce, beginning):
    with secure(scarce) as connection:
        connection.sendall(beginning)
        deadline, hung_up = time.monotonic() + 120, False
        while not hung_up and time.monotonic() < deadline:
            try:
                connection.sendall(b"x: 1\r\n"[:1] if beginning else b"")
            except OSError:
                hung_up = True
            hung_up = hung_up or is_hung_up(connection, 1)
        assert hung_up


def test_whoever_asks_again_in_time_is_served_again(scarce):
    token = (scarce.directory / "state" / "coordinator" / "web.token").read_text().strip()
    with httpx.Client(verify=trust(scarce), timeout=30, headers={"authorization": f"Bearer {token}"}) as page:
        for _ in range(3):
            assert page.get(f"{web(scarce)}/api/runs").status_code == 200
            time.sleep(1)
