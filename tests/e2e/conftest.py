"""Containers for the end-to-end tests. `make e2e` prepares the engine and builds the images."""

import zlib

import pytest

from tests.e2e.composition import TAG, Composition, run


def why_not() -> str:
    """Why containers cannot be tested here; empty if they can."""
    try:
        if run("docker", "info").returncode != 0:
            return "no Docker engine answers: start one, or run `make e2e`, which tries to"
    except FileNotFoundError:
        return "there is no docker command: install Docker"
    for image in (f"parley/party:{TAG}", f"parley/coordinator:{TAG}"):
        if run("docker", "image", "inspect", image).returncode != 0:
            return f"image {image} is not built: docker compose build"
    return ""


@pytest.fixture(scope="session")
def engine():
    reason = why_not()
    if reason:
        pytest.skip(reason)


@pytest.fixture
def composition(engine, request):
    """A project of its own, which is taken down after the test."""
    made = Composition(f"parley-e2e-{zlib.crc32(request.node.nodeid.encode())}")
    try:
        yield made
    finally:
        made.down()


@pytest.fixture(scope="module")
def federation(engine):
    """A federation that is up."""
    made = Composition("parley-e2e-federation")
    made.down()
    try:
        made.up()
        yield made
    finally:
        made.down()
        assert made.leftovers() == "", "teardown leaves nothing behind"


@pytest.fixture(scope="module")
def client(federation, tmp_path_factory):
    with federation.connect(tmp_path_factory.mktemp("client")) as connected:
        yield connected
