"""One state, one coordinator: whoever comes second says why it does not serve, and ends."""

import os
import signal
import subprocess
import sys
import time

import pytest
import yaml

from parley.testing.federations import ForkedFederation

ENDED = 120.0
"""Ten processes that start at once on a small machine take their time."""


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
    ready = local.directory / f"coordinator-{number}.ready"
    command = [sys.executable, "-m", "parley.services.coordinator", "--config", str(path), "--ready-file", str(ready)]
    process = subprocess.Popen(
        [*command, "--parent", str(os.getpid())], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    return process, ready


def settle(processes):
    """Wait until one serves and every other has ended; returns the one and what the others said."""
    deadline = time.monotonic() + ENDED
    while sum(process.poll() is None for process, _ in processes) > 1 or not any(r.exists() for _, r in processes):
        assert time.monotonic() < deadline, "more than one goes on"
        assert any(process.poll() is None for process, _ in processes), "none goes on"
        time.sleep(0.1)
    (server,) = [process for process, _ in processes if process.poll() is None]
    others = [process for process, _ in processes if process is not server]
    assert [process.returncode for process in others] == [2] * len(others)
    return server, [process.stderr.read().strip().splitlines()[-1] for process in others]


def end(processes):
    for process, _ in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait()
        process.stderr.close()


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
        assert server is processes[0][0]
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
        while not processes[1][1].exists():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        first.send_signal(signal.SIGCONT)
        assert first.wait(ENDED) == 2
        assert "another coordinator has taken the database over: this one stops" in first.stderr.read()
    finally:
        end(processes)
