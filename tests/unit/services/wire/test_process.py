"""A service as a process: how it ends, and how a probe sees that it lives."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from parley.services.wire.process import HEARTBEAT

HEALTHY = Path(__file__).parents[4] / "deploy" / "healthy"
STUBBORN = """
import asyncio, sys, time
from parley.services.wire import process

process.END_SECONDS = 0.5

async def main(given):
    given.ready_file.write_text("ready")
    try:
        await asyncio.sleep(3600)
    finally:
        await asyncio.to_thread(time.sleep, 3600)  # work that nobody can interrupt

process.run(main, "")
"""
SERVING = """
import grpc
from parley.services.wire import process

async def main(given):
    server = grpc.aio.server()
    server.add_insecure_port("127.0.0.1:0")
    await process.serve(server, "somewhere", given.ready_file)

process.run(main, "")
"""


@pytest.fixture
def start(tmp_path):
    started = []

    def run(program, **environment):
        ready = tmp_path / "ready"
        command = [sys.executable, "-c", program, "--config", "none.yaml", "--ready-file", str(ready)]
        process = subprocess.Popen(command, env={**os.environ, **environment}, stderr=subprocess.PIPE)
        started.append(process)
        deadline = time.monotonic() + 60
        while not ready.exists():
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return process

    yield run
    for process in started:
        process.kill()
        process.wait()
        process.stderr.close()


def test_work_that_does_not_let_go_cannot_keep_a_service_from_ending_with_code_0(start):
    process = start(STUBBORN)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 0


def test_a_probe_without_python_sees_a_service_that_serves_and_one_that_does_not(start, tmp_path):
    beat = tmp_path / "heartbeat"
    environment = {HEARTBEAT: str(beat)}

    def probe():
        return subprocess.run([HEALTHY], env={**os.environ, **environment}, capture_output=True, text=True, check=False)

    assert (probe().returncode, probe().stderr) == (1, "unhealthy: the service does not serve yet\n")
    process = start(SERVING, **environment)
    deadline = time.monotonic() + 60
    while probe().returncode:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGSTOP)  # its loop no longer runs
    os.utime(beat, (time.time() - 31, time.time() - 31))
    assert "has not stirred for" in probe().stderr
    assert probe().returncode == 1
