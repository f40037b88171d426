"""A federation that can be disturbed: seeded kills, a proxy in front of every party, and a comparison of what is left.

Label noise is a function of (the label holder's key, the run's id), and a run's id of its request id. Two federations
with the same key file therefore give the same run to the same request, so a run that was disturbed in one of them can
be compared with the undisturbed run in the other, bit for bit.
"""

import hashlib
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet
import yaml

from parley.client import Federation, RequestRefused, Run
from parley.local import LocalFederation
from parley.splitting import split_dataset
from tests.faults.proxy import Proxy

PARTIES = ("bank", "shop", "telco")
ROWS = 300
KEY = bytes(range(32))
"""The label holder's key, the same in every federation that is compared; a test's data are nobody's secret."""
RETRIED = {"UNAVAILABLE", "PARTY_UNREACHABLE", "CANCELLED", "DEADLINE_EXCEEDED"}
END_SECONDS = 180.0


class DisturbableFederation(LocalFederation):
    """A local federation whose coordinator and peers dial every party through a proxy."""

    proxies: dict[str, Proxy]

    def write(self) -> None:
        """Write the files of a local federation, then put the proxies between."""
        super().write()
        state = self.directory / "state" / "coordinator"
        state.mkdir(parents=True, exist_ok=True)
        key = state / "label-noise.key"
        if not key.exists():
            key.write_bytes(KEY)
            key.chmod(0o600)
        self.proxies = {name: Proxy(self.addresses[name]) for name in self.tables}
        path = self.directory / "coordinator.yaml"
        content = yaml.safe_load(path.read_text())
        content["parties"] = {name: {"address": proxy.address} for name, proxy in self.proxies.items()}
        path.write_text(yaml.safe_dump(content))

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


def make_federation(directory: Path, data: Path, **options: Any) -> DisturbableFederation:
    """A federation of three parties over the tables in `data`, made if they are not there."""
    if not data.exists():
        split_dataset("digits", PARTIES, data / "columns", limit=ROWS)
        for seed, name in enumerate(("records", "checked")):
            split_dataset("digits", PARTIES, data / name, limit=ROWS, rows=True, seed=seed)
            for party in PARTIES:
                _add_labels(data / name / f"{party}.parquet", data / name / f"{party}.labels.parquet")
    return DisturbableFederation(
        directory,
        {
            name: {"train": {"path": data / "columns" / f"{name}.parquet"}}
            | {kind: {"path": data / kind / f"{name}.parquet", "label": "label"} for kind in ("records", "checked")}
            for name in PARTIES
        },
        {"train": {"path": data / "columns" / "labels.parquet"}},
        coordinator_options=options,
        ready_seconds=300.0,  # a machine that is being tortured starts processes slowly
    )


def _add_labels(features: Path, labels: Path) -> None:
    """One file with features and labels, as a party with rows of its own has it."""
    joined = pyarrow.parquet.read_table(features).join(pyarrow.parquet.read_table(labels), keys="id").sort_by("id")
    pyarrow.parquet.write_table(joined, features)


def _bambi(hypergradient: str, solver: str, aggregation: str, mechanism: str, steps: int) -> dict[str, Any]:
    return {
        "parties": list(PARTIES),
        "train": {
            "algorithm": "bambi",
            "hypergradient": hypergradient,
            "model": {"kind": "mlp", "hidden": [8], "out": 4},
            "upper": {"steps": steps, "batch": 32, "optimiser": {"kind": "adam", "step": 0.01}},
            "lower": {"solver": solver, "steps": 2, "batch": 64, "optimiser": {"step": 0.1}},
            "implicit": {"rounds": 3, "newton_rounds": 3},
            "zeroth_order": {"directions": 2},
        },
        "privacy": {"aggregation": {"kind": aggregation}, "labels": {"mechanism": mechanism, "epsilon": 2}},
        "evaluate_every": 7,
        "checkpoint_every": 5,
        "wait_seconds": 90,
        "round_seconds": 20,
    }


def _fedbio(aggregation: str, steps: int) -> dict[str, Any]:
    classes = [str(label) for label in range(10)]
    return {
        "parties": list(PARTIES),
        "table": "records",
        "train": {
            "algorithm": "fedbio",
            "rounds": steps,
            "batch": 32,
            "checked_batch": 32,
            "task": {"kind": "data_cleaning", "classes": classes, "checked": "checked"},
        },
        "privacy": {"aggregation": {"kind": aggregation}},
        "evaluate_every": 0,
        "checkpoint_every": 5,
        "wait_seconds": 90,
        "round_seconds": 20,
    }


CASES = {
    "implicit, pairwise, once": _bambi("implicit", "newton", "pairwise", "once", 30),
    "zeroth order, two trees, per step": _bambi("zeroth_order", "sgd", "two_tree", "per_step", 60),
    "implicit, two trees, off": _bambi("implicit", "newton", "two_tree", "off", 30),
    "zeroth order, pairwise, per step": _bambi("zeroth_order", "sgd", "pairwise", "per_step", 60),
    "fedbio, pairwise": _fedbio("pairwise", 40),
}
BAMBI_CASES = [name for name, case in CASES.items() if case["train"]["algorithm"] == "bambi"]


def spec_of(case: str, **changes: Any) -> str:
    """The spec of a case as YAML."""
    return yaml.safe_dump({"name": "fault", "seed": 5, **CASES[case], **changes})


@dataclass(frozen=True)
class Remains:
    """What a run leaves: its state, every party's model, and the ledger without times and what follows from them."""

    state: str
    models: tuple[str, ...]
    ledger: tuple[Any, ...]
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
    return Remains(run.state, digests, tuple(entries), ledger.broken)


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
    """kill -9 of one process after a delay, and its restart."""

    def __init__(
        self, federation: DisturbableFederation, victim: str, after_seconds: float, away_seconds: float
    ) -> None:
        super().__init__(daemon=True)
        self._federation, self._victim = federation, victim
        self._after, self._away = after_seconds, away_seconds
        self.failure: Exception | None = None

    def run(self) -> None:
        """Wait, kill, wait, restart."""
        try:
            time.sleep(self._after)
            self._federation.kill(self._victim)
            time.sleep(self._away)
            self._federation.restart(self._victim)
        except Exception as error:
            self.failure = error


def run_undisturbed(
    directory: Path, data: Path, requests: Sequence[tuple[str, str]], at_once: int = 3
) -> tuple[dict[str, Remains], dict[str, float]]:
    """What each (request id, spec) leaves in a federation that nothing disturbs, and how long a run takes."""
    left: dict[str, Remains] = {}
    seconds: dict[str, float] = {}
    with make_federation(directory, data) as federation, federation.connect() as client:
        for first in range(0, len(requests), at_once):
            block = requests[first : first + at_once]
            runs = {request_id: client.start(text, request_id) for request_id, text in block}
            for request_id, run in runs.items():
                ended = wait_for_end(client, run.run_id)
                if ended.state not in ("COMPLETED", "BUDGET_EXHAUSTED"):
                    raise AssertionError(f"the undisturbed run {run.run_id} is {ended.state}: {ended.reason}")
                left[request_id] = remains_of(federation, client, run.run_id)
                seconds[request_id] = ended.metrics.get("seconds", 0.0)
    return left, seconds
