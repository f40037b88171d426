"""deploy/party as docs/join-a-federation.md goes through it: the key stays, a request goes out, the party serves."""

import os
import shutil
import time

import pytest

from parley.services.wire.certificates import create_authority, sign
from tests.e2e.composition import ROOT, TAG, compose_command, run

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("engine")]


def test_an_organisation_joins_with_a_key_that_it_made_itself(tmp_path):
    shutil.copytree(ROOT / "deploy" / "party", tmp_path / "party")
    party = tmp_path / "party"
    (party / "data" / "train.csv").write_text("id,age\n1,30\n2,40\n")
    settings = {
        "PARLEY_TAG": TAG,
        "PARLEY_NAME": "bank",
        "PARLEY_UID": str(os.getuid()),
        "PARLEY_GID": str(os.getgid()),
    }
    command = [*compose_command(), "-p", "parley-e2e-party", "-f", str(party / "docker-compose.yml")]

    def compose(*arguments: str):
        return run(*command, *arguments, **settings)

    try:
        asked = compose("run", "--rm", "-T", "request")
        assert asked.returncode == 0, asked.stderr.decode()
        assert {path.name for path in (party / "certificates").glob("*.pem")} == {"key.pem", "request.pem"}
        again = compose("run", "--rm", "-T", "request")
        assert again.returncode != 0, "a key in use is not overwritten"
        create_authority(tmp_path / "authority", "federation")
        answer = tmp_path / "answer"
        sign(party / "certificates" / "request.pem", tmp_path / "authority", name="bank", role="party", out=answer)
        for name in ("certificate.pem", "ca.pem"):
            shutil.copy(answer / name, party / "certificates")
        shown = compose("run", "--rm", "-T", "certificate")
        assert shown.returncode == 0, shown.stderr.decode()
        assert "bank" in shown.stdout.decode()
        assert compose("up", "-d").returncode == 0
        container = compose("ps", "-q", "party").stdout.decode().strip()
        deadline = time.monotonic() + 200
        while (
            health := run("docker", "inspect", "-f", "{{.State.Health.Status}}", container).stdout.decode().strip()
        ) != "healthy":
            assert time.monotonic() < deadline, (health, compose("logs").stdout.decode())
            time.sleep(1)
    finally:
        compose("--profile", "tools", "down", "--volumes", "--remove-orphans", "-t", "5")
