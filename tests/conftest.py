"""A real PostgreSQL server for the suites that run on it."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from pathlib import Path

import pytest
import sqlalchemy as sa


def postgres_tool(name: str) -> str | None:
    config = shutil.which("pg_config")
    if config:
        bindir = subprocess.run([config, "--bindir"], capture_output=True, text=True, check=True).stdout.strip()
        if (Path(bindir) / name).exists():
            return str(Path(bindir) / name)
    return shutil.which(name)


def unprivileged() -> list[str]:
    """PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return []
    user = pwd.getpwnam("postgres")
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]


class PostgresServer:
    """A server of its own, in a directory of its own, that can be taken away and frozen."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._process: subprocess.Popen[bytes]
        self.url = f"postgresql+psycopg://postgres@/postgres?host={directory}"
        initdb, self._binary = postgres_tool("initdb"), postgres_tool("postgres")
        if not initdb or not self._binary:
            pytest.skip("no PostgreSQL: set PARLEY_TEST_POSTGRES or install its server")
        try:
            self._wrapper = unprivileged()
        except KeyError:
            pytest.skip("running as root and there is no user `postgres` to run the server as")
        if self._wrapper:
            shutil.chown(directory, "postgres")
        initialise = [*self._wrapper, initdb, "-D", f"{directory}/data", "-U", "postgres", "-A", "trust", "--no-sync"]
        subprocess.run(initialise, check=True, capture_output=True, cwd="/")

    def start(self) -> None:
        command = [self._binary, "-D", f"{self._directory}/data", "-k", self._directory, "-c", "listen_addresses="]
        self._process = subprocess.Popen(
            [*self._wrapper, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/"
        )
        wait_for_server(self.url)

    def stop(self) -> None:
        self._process.send_signal(signal.SIGINT)  # a fast shutdown: it does not wait for connections
        self._process.wait(timeout=30)

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        """To the server and to each of its processes, which are in groups of their own."""
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        for pid in (self._process.pid, *map(int, children)):
            os.kill(pid, number)


@pytest.fixture(scope="session")
def postgres_url():
    """PARLEY_TEST_POSTGRES, or a server that lives as long as the tests."""
    if url := os.environ.get("PARLEY_TEST_POSTGRES"):
        yield url
        return
    with tempfile.TemporaryDirectory(prefix="parley-pg-", dir="/tmp") as directory:  # sockets need short paths
        server = PostgresServer(directory)
        server.start()
        try:
            yield server.url
        finally:
            server.stop()


@pytest.fixture(scope="module")
def postgres_server():
    """A server that tests may take away, and leave running."""
    with tempfile.TemporaryDirectory(prefix="parley-pg-", dir="/tmp") as directory:
        server = PostgresServer(directory)
        server.start()
        try:
            yield server
        finally:
            server.thaw()
            server.stop()


def wait_for_server(url: str) -> None:
    engine = sa.create_engine(url)
    deadline = time.monotonic() + 30
    while True:
        try:
            engine.connect().close()
            break
        except sa.exc.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
    engine.dispose()


@pytest.fixture
def postgres_database(postgres_url):
    """The URL of an empty database of its own."""
    server, name = sa.make_url(postgres_url), f"test_{uuid.uuid4().hex}"
    engine = sa.create_engine(server, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sa.text(f"CREATE DATABASE {name}"))
        yield server.set(database=name).render_as_string(hide_password=False)
        connection.execute(sa.text(f"DROP DATABASE {name} WITH (FORCE)"))
    engine.dispose()
