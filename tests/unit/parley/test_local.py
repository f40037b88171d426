"""A local federation: an interrupt never leaves a process that nobody knows of."""

import os
import signal
import subprocess
import sys

import pytest

from parley.local import LocalFederation


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_while_a_service_is_being_started_does_not_lose_it(tmp_path, monkeypatch, number):
    real = subprocess.Popen

    def interrupted(*_, **options):
        process = real([sys.executable, "-c", "import time; time.sleep(60)"])
        os.kill(os.getpid(), number)
        return process

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    before = signal.signal(number, stop)
    federation = LocalFederation(tmp_path, {}, {})
    try:
        with pytest.raises(KeyboardInterrupt):
            federation.start("coordinator")
        assert list(federation.processes) == ["coordinator"]
    finally:
        signal.signal(number, before)
        federation.stop()
    assert federation.processes["coordinator"].returncode == -signal.SIGTERM
