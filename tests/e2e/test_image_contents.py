"""What is in the images, and what they may do. tests/contract/test_images.py reads the same from the Dockerfile."""

import json

import pytest

from tests.e2e.composition import TAG, output, run

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("engine")]
HARDENED = ("--rm", "--read-only", "--cap-drop", "ALL", "--network", "none")


def python(image: str, code: str):
    return run("docker", "run", *HARDENED, "--entrypoint", "python", f"parley/{image}:{TAG}", "-c", code)


@pytest.mark.parametrize(
    ("image", "module"),
    [
        ("party", "parley.coordinator"),
        ("party", "parley.services.coordinator"),
        ("coordinator", "parley.party"),
        ("coordinator", "parley.services.party"),
        ("coordinator", "torch"),
    ],
)
def test_an_image_lacks_the_other_roles_code(image, module):
    refused = python(image, f"import {module}")
    assert refused.returncode == 1
    assert f"No module named '{module}'" in refused.stderr.decode()


@pytest.mark.parametrize("image", ["party", "coordinator"])
def test_an_image_holds_its_own_service_and_the_command(image):
    imported = python(image, f"import parley.services.{image}.__main__, parley.cli, parley.services.wire.healthcheck")
    assert imported.returncode == 0, imported.stderr.decode()


@pytest.mark.parametrize("image", ["party", "coordinator"])
def test_an_image_runs_as_a_user_without_rights(image):
    config = json.loads(output("docker", "image", "inspect", f"parley/{image}:{TAG}"))[0]["Config"]
    assert config["User"] == "10001:10001"
    places = ("/", "/opt/parley", "/opt/venv", "/etc/parley", "/usr")
    code = f"import os; print([place for place in {places} if os.access(place, os.W_OK)])"
    # the root file system is writable here, so that only the user's rights stand in the way
    writable = run("docker", "run", "--rm", "--entrypoint", "python", f"parley/{image}:{TAG}", "-c", code)
    assert writable.stdout.decode().strip() == "[]"


@pytest.mark.parametrize(("image", "most_bytes"), [("party", 1_500_000_000), ("coordinator", 700_000_000)])
def test_an_image_stays_small(image, most_bytes):
    size = json.loads(output("docker", "image", "inspect", f"parley/{image}:{TAG}"))[0]["Size"]
    assert size < most_bytes
