"""A federation of real containers, made by docker-compose.yml under a project name of its own."""

import json
import os
import shutil
import socket
import subprocess
import tarfile
import time
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

from parley.client import Federation, connect

ROOT = Path(__file__).parents[2]
PARTIES = ("bank", "shop", "telco")
SERVICES = (*PARTIES, "coordinator")
TAG = os.environ.get("PARLEY_TAG", "latest")
UP_SECONDS = 300
"""Patience with a busy host; test_federation.py holds `up` to its real limit on one that is not."""


def run(*command: str, stdin: bytes | None = None, seconds: float = UP_SECONDS, **environment: str):
    """A command with its output; not checked."""
    return subprocess.run(
        command, input=stdin, capture_output=True, timeout=seconds, cwd=ROOT, env={**os.environ, **environment}
    )


def output(*command: str, **options) -> str:
    """A command's output; it must succeed."""
    done = run(*command, **options)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.decode()[-3000:]}"
    return done.stdout.decode()


def compose_command() -> list[str]:
    """Compose as this host has it: what PARLEY_COMPOSE says, else v2, else v1."""
    if "PARLEY_COMPOSE" in os.environ:
        return os.environ["PARLEY_COMPOSE"].split()
    if run("docker", "compose", "version").returncode == 0:
        return ["docker", "compose"]
    return [shutil.which("docker-compose") or "docker-compose"]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@dataclass
class Composition:
    """One compose project."""

    project: str
    port: int = field(default_factory=free_port)
    web_port: int = field(default_factory=free_port)
    tag: str = TAG
    """Of both images."""
    up_seconds: float = 0.0
    """From `up` until all are healthy."""
    busy: float = 1.0
    """How many processes waited for each core of this host before that."""

    def command(self, *arguments: str) -> list[str]:
        return [*compose_command(), "-p", self.project, *arguments]

    @property
    def settings(self) -> dict[str, str]:
        return {"PARLEY_PORT": str(self.port), "PARLEY_WEB_PORT": str(self.web_port), "PARLEY_TAG": self.tag}

    def compose(self, *arguments: str, **options):
        return run(*self.command(*arguments), **self.settings, **options)

    def checked(self, *arguments: str, **options) -> str:
        return output(*self.command(*arguments), **self.settings, **options)

    def up(self) -> None:
        """Start everything and wait until all are healthy."""
        self.busy = os.getloadavg()[0] / (os.cpu_count() or 1)
        started = time.monotonic()
        self.checked("up", "-d", "--no-build")
        while (states := {name: self.health(name) for name in SERVICES}) != dict.fromkeys(SERVICES, "healthy"):
            assert time.monotonic() - started < UP_SECONDS, (states, self.checked("logs", "--tail", "5"))
            time.sleep(0.5)
        self.up_seconds = time.monotonic() - started

    def container(self, service: str) -> str:
        names = self.checked("ps", "-q", service).split()
        assert names, f"{service} has no container"
        return names[0]

    def inspect(self, service: str) -> dict:
        return json.loads(output("docker", "inspect", self.container(service)))[0]

    def health(self, service: str) -> str:
        return str(self.inspect(service)["State"].get("Health", {}).get("Status"))

    def replace(self, service: str, tag: str) -> None:
        """One service by another image, as `docker compose up -d` does after a new tag."""
        self.tag, before = tag, self.container(service)
        self.checked("up", "-d", "--no-build", "--no-deps", service)
        assert self.container(service) != before

    def kill(self, service: str) -> None:
        """As a crash or a power cut would."""
        output("docker", "kill", "-s", "KILL", self.container(service))

    def start(self, service: str) -> None:
        self.checked("start", service)

    def cut_network(self, service: str, seconds: float) -> None:
        network, container = f"{self.project}_federation", self.container(service)
        output("docker", "network", "disconnect", network, container)
        time.sleep(seconds)
        output("docker", "network", "connect", "--alias", service, network, container)

    def export_client(self, folder: Path) -> Path:
        """The client's certificate and key, as docs/deploy.md takes them out of their volume."""
        archive = self.compose(
            "run", "--rm", "-T", "--no-deps", "--entrypoint", "tar", "client", "-cC/certificates", "."
        )
        assert archive.returncode == 0, archive.stderr.decode()
        with tarfile.open(fileobj=BytesIO(archive.stdout)) as files:
            files.extractall(folder, filter="data")
        return folder

    def connect(self, folder: Path) -> Federation:
        return connect(f"127.0.0.1:{self.port}", self.export_client(folder))

    def model_digests(self, run_id: str) -> list[str]:
        path = f"/state/runs/{run_id}/model.safetensors"
        return [self.checked("exec", "-T", party, "sha256sum", path).split()[0] for party in PARTIES]

    def down(self) -> None:
        self.checked("--profile", "client", "down", "--volumes", "--remove-orphans", "-t", "5")

    def leftovers(self) -> str:
        """What the engine still holds of this project."""
        label = f"label=com.docker.compose.project={self.project}"
        return "".join(
            output("docker", *kind, "ls", "-q", *extra, "--filter", label)
            for kind, extra in ((["container"], ["-a"]), (["network"], []), (["volume"], []))
        )
