"""Two coordinators on one database: when the one that serves is killed, the other goes on with its runs."""

import os
import statistics
import subprocess
import sys
import time

import pytest
import yaml

from parley.client import ENDED, connect
from parley.local import LocalFederation
from parley.testing.remains import patiently, start, wait_for_end
from tests.integration.conftest import spec

SECONDS = 240.0
PARTIES = ("bank", "shop", "telco")


class Pair:
    """A federation whose coordinator is there twice."""

    def __init__(self, local: LocalFederation, database: str) -> None:
        self.local, self._database, self._started = local, database, 0
        (local.directory / "label.key").write_text("5c" * 32)
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    def stand_by(self) -> int:
        """One more coordinator."""
        number = self._started = self._started + 1
        config = yaml.safe_load((self.local.directory / "coordinator.yaml").read_text()) | {
            "listen": "127.0.0.1:0",
            "state": f"state/coordinator-{number}",
            "database": self._database,
            "standby": True,
            "key_command": ["cat", str(self.local.directory / "label.key")],
        }
        path = self.local.directory / f"coordinator-{number}.yaml"
        path.write_text(yaml.safe_dump(config))
        command = [sys.executable, "-m", "parley.services.coordinator", "--config", str(path)]
        with (self.local.directory / f"coordinator-{number}.log").open("wb") as log:
            self.processes[number] = subprocess.Popen(
                [*command, "--ready-file", str(self._ready(number)), "--parent", str(os.getpid())],
                stdout=log,
                stderr=log,
            )
        return number

    def _ready(self, number: int):
        return self.local.directory / f"coordinator-{number}.ready"

    def serving(self) -> int:
        """Who serves, waited for."""
        deadline = time.monotonic() + SECONDS
        while True:
            found = [n for n, process in self.processes.items() if process.poll() is None and self._ready(n).exists()]
            if found:
                assert len(found) == 1, "two serve at once"
                return found[0]
            assert time.monotonic() < deadline, "nobody serves"
            time.sleep(0.05)

    def client(self):
        return connect(self._ready(self.serving()).read_text(), self.local.identity("client"))

    def kill(self) -> float:
        """Kill the one that serves; returns how long nobody has served."""
        self.processes.pop(number := self.serving()).kill()
        began = time.monotonic()
        self._ready(number).unlink()
        self.serving()
        return time.monotonic() - began

    def stop(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()


@pytest.fixture
def pair(data, tmp_path, postgres_database):
    tables = {name: {"digits": {"path": data / "digits" / f"{name}.parquet"}} for name in PARTIES}
    local = LocalFederation(tmp_path, tables, {"digits": {"path": data / "digits" / "labels.parquet"}})
    local.write()
    for name in PARTIES:
        local.start(name)
    for name in PARTIES:
        local.wait_until_ready(name)
    found = Pair(local, postgres_database)
    try:
        found.stand_by()
        found.serving()
        yield found
    finally:
        found.stop()
        local.stop()


def left_by(pair: Pair, run_id: str):
    """Models of all parties, and which label releases were charged."""
    with pair.client() as client:
        ledger = client.run(run_id).ledger()
    assert not ledger.broken
    charges = [(entry.kind, entry.first_release, entry.releases, entry.largest_count) for entry in ledger.entries]
    paths = [pair.local.directory / "state" / name / "runs" / run_id / "model.safetensors" for name in PARTIES]
    return [path.read_bytes() for path in paths], charges


def disturbed(pair: Pair, text: str, kills: int) -> list[float]:
    """Kill the coordinator so often while a run trains; compare what it leaves with a run that nothing disturbed."""
    with pair.client() as client:
        whole = start(client, text, "whole", SECONDS)
        assert wait_for_end(client, whole.run_id, SECONDS).state == "COMPLETED"
        expected = left_by(pair, whole.run_id)
        run = start(client, text, "disturbed", SECONDS)
    away, step = [], 0
    for _ in range(kills):
        pair.stand_by()
        with pair.client() as client:
            step = _further(client, run.run_id, step)
        away.append(pair.kill())
    with pair.client() as client:
        ended = wait_for_end(client, run.run_id, SECONDS)
        assert (ended.state, ended.reason) == ("COMPLETED", "")
        assert ended.message.attempt > 1
    assert left_by(pair, run.run_id) == expected
    return away


def _further(client, run_id: str, step: int) -> int:
    """Wait until a run is further than it was, or has ended."""
    deadline = time.monotonic() + SECONDS
    while True:
        run = patiently(lambda: client.run(run_id), SECONDS)
        if run.message.step > step or run.state in ENDED:
            return run.message.step
        assert time.monotonic() < deadline, "the run does not go on"
        time.sleep(0.05)


def test_a_run_outlives_its_coordinator_and_is_charged_once(pair):
    disturbed(pair, spec(train__upper__steps=12, checkpoint_every=1), 2)


def test_one_that_has_another_key_of_label_noise_does_not_take_over(pair):
    (pair.local.directory / "label.key").write_text("5d" * 32)
    number = pair.stand_by()
    pair.processes.pop(pair.serving()).kill()
    assert pair.processes[number].wait(SECONDS) == 2
    assert "another key of label noise" in (pair.local.directory / f"coordinator-{number}.log").read_text()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_twenty_kills_lose_nothing(pair, record_property):
    away = disturbed(pair, spec(train__upper__steps=80, checkpoint_every=1), 20)
    record_property("median_seconds", statistics.median(away))
    print(f"take-over: median {statistics.median(away):.2f} s, longest {max(away):.2f} s of {len(away)}")  # noqa: T201
