"""A federation that can be disturbed: seeded kills, a proxy in front of every party."""

import os
import signal
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from parley.client import Federation, Run
from parley.spec.algorithms import installed
from parley.testing.federations import TwinFederation
from parley.testing.remains import END_SECONDS
from tests.faults.cases import PARTIES, labels_of, make_tables, tables_of
from tests.faults.proxy import Proxy


class DisturbableFederation(TwinFederation):
    """A local federation whose coordinator and peers dial every party through a proxy."""

    proxies: dict[str, Proxy]

    def write(self) -> None:
        """Write the files of a local federation, then put the proxies between."""
        super().write()
        self.proxies = {name: Proxy(self.addresses[name]) for name in self.tables}
        self.configure(
            "coordinator", parties={name: {"address": proxy.address} for name, proxy in self.proxies.items()}
        )

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


def make_federation(directory: Path, data: Path, **options: Any) -> DisturbableFederation:
    """A federation of three parties over the tables in `data`, made if they are not there."""
    make_tables(data)
    return DisturbableFederation(
        directory,
        {name: tables_of(data, name) for name in PARTIES},
        labels_of(data),
        coordinator_options=options,
        # a campaign charges a party's rows for hundreds of runs, and its tables are small
        policy={
            "algorithms": list(installed()),
            "epsilon_budget": 1e6,
            **dict.fromkeys(("minimum_rows", "minimum_batch", "minimum_evaluation"), 1),
            "runs_per_view": 100_000,
        },
        ready_seconds=300.0,  # a machine that is being tortured starts processes slowly
    )


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
