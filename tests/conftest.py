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


@pytest.fixture(scope="session")
def postgres_url():
    """PARLEY_TEST_POSTGRES, or a server that lives as long as the tests."""
    if url := os.environ.get("PARLEY_TEST_POSTGRES"):
        yield url
        return
    initdb, server = postgres_tool("initdb"), postgres_tool("postgres")
    if not initdb or not server:
        pytest.skip("no PostgreSQL: set PARLEY_TEST_POSTGRES or install its server")
    try:
        wrapper = unprivileged()
    except KeyError:
        pytest.skip("running as root and there is no user `postgres` to run the server as")
    with tempfile.TemporaryDirectory(prefix="parley-pg-", dir="/tmp") as directory:  # sockets need short paths
        if wrapper:
            shutil.chown(directory, "postgres")
        data = f"{directory}/data"
        initialise = [*wrapper, initdb, "-D", data, "-U", "postgres", "-A", "trust", "--no-sync"]
        subprocess.run(initialise, check=True, capture_output=True, cwd="/")
        process = subprocess.Popen(
            [*wrapper, server, "-D", data, "-k", directory, "-c", "listen_addresses="],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
        )
        url = f"postgresql+psycopg://postgres@/postgres?host={directory}"
        try:
            wait_for_server(url)
            yield url
        finally:
            process.send_signal(signal.SIGINT)  # a fast shutdown: it does not wait for connections
            process.wait(timeout=30)


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
