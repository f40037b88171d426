"""One state, one coordinator: whoever comes second says why it does not serve, and ends."""

import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from parley.testing.federations import ForkedFederation

ENDED = 120.0
"""Ten processes that start at once on a small machine take their time."""


@dataclass(frozen=True)
class Started:
    """A coordinator's process, the file that says that it serves, and what it said."""

    process: Any
    ready: Path
    log: Path


@pytest.fixture
def local(data, tmp_path):
    tables = {"bank": {"digits": {"path": data / "digits" / "bank.parquet"}}}
    federation = ForkedFederation(tmp_path, tables, {"digits": {"path": data / "digits" / "labels.parquet"}})
    federation.write()
    return federation


def started(local, number, **changes):
    """A coordinator's process with its own port, and whatever else is changed."""
    config = yaml.safe_load((local.directory / "coordinator.yaml").read_text())
    config |= {"listen": "127.0.0.1:0"} | changes
    path = local.directory / f"coordinator-{number}.yaml"
    path.write_text(yaml.safe_dump(config))
    local.modules = {**local.modules, path.stem: "parley.services.coordinator"}
    local.start(path.stem)
    return Started(local.processes[path.stem], path.with_suffix(".ready"), path.with_suffix(".log"))


def settle(processes):
    """Wait until one serves and every other has ended; returns the one and what the others said."""
    deadline = time.monotonic() + ENDED
    while sum(each.process.poll() is None for each in processes) > 1 or not any(e.ready.exists() for e in processes):
        assert time.monotonic() < deadline, "more than one goes on"
        assert any(each.process.poll() is None for each in processes), "none goes on"
        time.sleep(0.1)
    (server,) = [each.process for each in processes if each.process.poll() is None]
    others = [each for each in processes if each.process is not server]
    assert [each.process.poll() for each in others] == [2] * len(others)
    return server, [each.log.read_text().strip().splitlines()[-1] for each in others]


def end(processes):
    for each in processes:
        each.process.kill()
        each.process.wait()


def test_of_ten_that_start_at_once_on_one_directory_one_serves(local):
    processes = [started(local, number) for number in range(10)]
    try:
        server, told = settle(processes)
        assert len(told) == 9
        for line in told:
            assert line.startswith(f"error: the state directory {local.directory / 'state' / 'coordinator'} is in use")
            assert f"process {server.pid} on" in line
        server.send_signal(signal.SIGKILL)
        server.wait()
        processes.append(started(local, 10))
        settle(processes[-1:])  # what was held by a process that was killed is free
    finally:
        end(processes)


def test_of_several_with_directories_of_their_own_on_one_database_one_serves(local, postgres_database):
    processes = [started(local, n, database=postgres_database, state=f"state/{n}") for n in range(4)]
    try:
        server, told = settle(processes)
        for line in told:
            assert "is in use by another coordinator (coordinator, process" in line
            assert f"process {server.pid} on" in line
    finally:
        end(processes)


def test_two_directories_and_one_database_file_have_one_coordinator(local):
    shared = f"sqlite:///{local.directory / 'shared.db'}"
    processes = [started(local, n, database=shared, state=f"state/{n}") for n in range(2)]
    try:
        _, (line,) = settle(processes)
        assert line.startswith(f"error: the database {local.directory / 'shared.db'} is in use by another service")
    finally:
        end(processes)


def test_a_coordinator_keeps_its_database_through_a_restart_of_the_server(local, postgres_server):
    processes = [started(local, 0, database=postgres_server.url, state="state/0")]
    try:
        settle(processes)
        postgres_server.stop()
        postgres_server.start()
        time.sleep(5.0)  # within which the lock is taken again
        processes.append(started(local, 1, database=postgres_server.url, state="state/1"))
        server, (line,) = settle(processes)
        assert server is processes[0].process
        assert "is in use by another coordinator" in line
    finally:
        end(processes)


def test_a_coordinator_whose_database_was_taken_over_meanwhile_stops(local, postgres_server):
    processes = [started(local, 0, database=postgres_server.url, state="state/0")]
    try:
        first, _ = settle(processes)
        first.send_signal(signal.SIGSTOP)  # its lock goes with the server, and it cannot take it again
        postgres_server.stop()
        postgres_server.start()
        processes.append(started(local, 1, database=postgres_server.url, state="state/1"))
        deadline = time.monotonic() + ENDED
        while not processes[1].ready.exists():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        first.send_signal(signal.SIGCONT)
        assert first.wait(ENDED) == 2
        assert "another coordinator has taken the database over: this one stops" in processes[0].log.read_text()
    finally:
        end(processes)
