"""A federation that can be disturbed: seeded kills, a proxy in front of every party, and a comparison of what is left.

Label noise is a function of (the label holder's key, the run's id), and a run's id of its request id. Two federations
with the same key file therefore give the same run to the same request, so a run that was disturbed in one of them can
be compared with the undisturbed run in the other, bit for bit.
"""

import contextlib
import hashlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from parley.client import Federation, RequestRefused, Run
from parley.local import LocalFederation
from parley.privacy.ledger import Entry, RunNotOpen, open_ledger
from tests.faults.cases import PARTIES, labels_of, make_tables, tables_of
from tests.faults.fork_server import ForkServer
from tests.faults.proxy import Proxy

KEY = bytes(range(32))
"""Every holder's noise key, the same in every federation that is compared; a test's data are nobody's secret."""
RETRIED = {"UNAVAILABLE", "PARTY_UNREACHABLE", "CANCELLED", "DEADLINE_EXCEEDED"}
END_SECONDS = 180.0


class DisturbableFederation(LocalFederation):
    """A local federation whose coordinator and peers dial every party through a proxy."""

    proxies: dict[str, Proxy]
    fork_server: ForkServer | None = None
    """Forks services that start in a moment; without one they start as anywhere."""
    environment: Mapping[str, str] = MappingProxyType({})
    """Further environment of services that are started from now on."""

    def write(self) -> None:
        """Write the files of a local federation, then put the proxies between."""
        super().write()
        for name in (*self.tables, "coordinator"):
            state = self.directory / "state" / name
            state.mkdir(parents=True, exist_ok=True)
            key = state / ("label-noise.key" if name == "coordinator" else "ldp-noise.key")
            if not key.exists():
                key.write_bytes(KEY)
                key.chmod(0o600)
        self.proxies = {name: Proxy(self.addresses[name]) for name in self.tables}
        path = self.directory / "coordinator.yaml"
        content = yaml.safe_load(path.read_text())
        content["parties"] = {name: {"address": proxy.address} for name, proxy in self.proxies.items()}
        path.write_text(yaml.safe_dump(content))

    def start(self, name: str) -> None:
        """Start one service, forked from the fork server if there is one."""
        if self.fork_server is None:
            with _environment(self.environment):
                super().start(name)
            return
        ready = self.directory / f"{name}.ready"
        ready.unlink(missing_ok=True)
        module = "parley.services.coordinator" if name == "coordinator" else "parley.services.party"
        arguments = ["--config", str(self.directory / f"{name}.yaml"), "--ready-file", str(ready)]
        service: Any = self.fork_server.start(module, arguments, self.directory / f"{name}.log")
        self.processes[name] = service

    @property
    def passed_bytes(self) -> int:
        """What has passed between the services so far: a clock that goes as fast as they do."""
        return sum(proxy.passed_bytes for proxy in self.proxies.values())

    def stop(self) -> None:
        """Take every process and every proxy down."""
        for name, process in self.processes.items():
            if process.poll() is None:
                self.signal(name, signal.SIGCONT)
        super().stop()
        for proxy in getattr(self, "proxies", {}).values():
            proxy.close()

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a service."""
        os.kill(self.processes[name].pid, number)

    def run_directory(self, party: str, run_id: str) -> Path:
        """Where a party keeps a run."""
        return self.directory / "state" / party / "runs" / run_id


@contextlib.contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(changes)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def make_federation(
    directory: Path, data: Path, fork_server: ForkServer | None = None, **options: Any
) -> DisturbableFederation:
    """A federation of three parties over the tables in `data`, made if they are not there."""
    make_tables(data)
    federation = DisturbableFederation(
        directory,
        {name: tables_of(data, name) for name in PARTIES},
        labels_of(data),
        coordinator_options=options,
        # a campaign charges a party's rows for hundreds of runs
        policy={"algorithms": ["bambi", "fedbio", "asysqn", "hgp", "ldp_dsbo"], "epsilon_budget": 1e6},
        ready_seconds=300.0,  # a machine that is being tortured starts processes slowly
    )
    federation.fork_server = fork_server
    return federation


@dataclass(frozen=True)
class Remains:
    """What a run leaves: its state, every party's model, and the ledgers without times and what follows from them."""

    state: str
    models: tuple[str, ...]
    ledger: tuple[Any, ...]
    party_ledgers: tuple[tuple[Entry, ...], ...]
    broken: str


def remains_of(federation: DisturbableFederation, client: Federation, run_id: str) -> Remains:
    """Collect what a run left behind."""
    run = client.run(run_id)
    ledger = run.ledger()
    paths = [federation.run_directory(name, run_id) / "model.safetensors" for name in run.message.parties]
    digests = tuple(hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else "none" for path in paths)
    entries = []
    for entry in ledger.entries:
        entry.ClearField("time")
        entry.ClearField("hash")
        entries.append(entry.SerializeToString(deterministic=True))
    own = tuple(_party_ledger(federation, name, run_id) for name in run.message.parties)
    return Remains(run.state, digests, tuple(entries), own, ledger.broken)


def _party_ledger(federation: DisturbableFederation, party: str, run_id: str) -> tuple[Entry, ...]:
    """What a party charged to its own rows; the chain is checked."""
    database = federation.directory / "state" / party / "party.db"
    if not database.exists():
        return ()
    ledger = open_ledger(f"sqlite:///{database}")
    try:
        ledger.verify(run_id)
        return tuple(replace(entry, time="", previous_hash="", hash="") for entry in ledger.entries(run_id))
    except RunNotOpen:
        return ()
    finally:
        ledger.close()


def start(client: Federation, text: str, request_id: str, seconds: float = END_SECONDS) -> Run:
    """Start a run as a patient client does: the same request again while a service is away."""
    return _patiently(lambda: client.start(text, request_id), seconds)


def wait_for_end(client: Federation, run_id: str, seconds: float = END_SECONDS) -> Run:
    """Wait until a run has ended, across restarts of the coordinator."""
    deadline = time.monotonic() + seconds
    while True:
        run = _patiently(lambda: client.run(run_id), seconds)
        if run.state in ("COMPLETED", "FAILED", "CANCELLED", "BUDGET_EXHAUSTED"):
            return run
        if time.monotonic() > deadline:
            raise AssertionError(f"run {run_id} did not end within {seconds:g} s: {run.state}, {run.reason}")
        time.sleep(0.1)


def wait_for_step(client: Federation, run_id: str, step: int, seconds: float = END_SECONDS) -> Run:
    """Wait until a run has committed a checkpoint at or beyond `step` (or has ended)."""
    deadline = time.monotonic() + seconds
    while True:
        run = client.run(run_id)
        if run.step >= step or run.state in ("COMPLETED", "FAILED"):
            return run
        if time.monotonic() > deadline:
            raise AssertionError(f"run {run_id} did not come to step {step}: {run.state}, {run.reason}")
        time.sleep(0.02)


def _patiently(call: Callable[[], Run], seconds: float) -> Run:
    deadline = time.monotonic() + seconds
    while True:
        try:
            return call()
        except RequestRefused as refused:
            if refused.reason not in RETRIED or time.monotonic() > deadline:
                raise
            time.sleep(0.2)


class Kill(threading.Thread):
    """kill -9 of one process when so many bytes have passed between the services, and its restart."""

    def __init__(
        self, federation: DisturbableFederation, victim: str, after_bytes: float, later_seconds: float, away: float
    ) -> None:
        super().__init__(daemon=True)
        self._federation, self._victim = federation, victim
        self._aim = federation.passed_bytes + after_bytes
        self._later, self._away = later_seconds, away
        self._hurry = threading.Event()
        self.failure: Exception | None = None
        self.at = datetime.max.replace(tzinfo=UTC)
        """When it happened."""

    def run(self) -> None:
        """Wait, kill, wait, restart."""
        try:
            while self._federation.passed_bytes < self._aim and not self._hurry.wait(0.001):
                pass
            self._hurry.wait(self._later)
            self.at = datetime.now(UTC)
            self._federation.kill(self._victim)
            time.sleep(self._away)
            self._federation.restart(self._victim)
        except Exception as error:
            self.failure = error

    def finish(self) -> None:
        """Do it now if it is still to come, and wait until the process is back."""
        self._hurry.set()
        self.join()
        if self.failure is not None:
            raise AssertionError(f"{self._victim} did not come back: {self.failure}")
