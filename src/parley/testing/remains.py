"""Runs as a patient client has them, and what they leave behind."""

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from parley.client import ENDED, Federation, RequestRefused, Run
from parley.privacy.ledger import Entry, RunNotOpen, open_ledger
from parley.testing.federations import TwinFederation

RETRIED = {"UNAVAILABLE", "PARTY_UNREACHABLE", "CANCELLED", "DEADLINE_EXCEEDED"}
END_SECONDS = 180.0


@dataclass(frozen=True)
class Remains:
    """What a run leaves: its state, every party's model, and the ledgers without times and what follows from them."""

    state: str
    models: tuple[str, ...]
    ledger: tuple[Any, ...]
    party_ledgers: tuple[tuple[Entry, ...], ...]
    broken: str


def remains_of(federation: TwinFederation, client: Federation, run_id: str) -> Remains:
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


def _party_ledger(federation: TwinFederation, party: str, run_id: str) -> tuple[Entry, ...]:
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
    return patiently(lambda: client.start(text, request_id), seconds)


def wait_for_end(client: Federation, run_id: str, seconds: float = END_SECONDS) -> Run:
    """Wait until a run has ended, across restarts of the coordinator."""
    deadline = time.monotonic() + seconds
    while True:
        run = patiently(lambda: client.run(run_id), seconds)
        if run.state in ENDED:
            return run
        if time.monotonic() > deadline:
            raise AssertionError(f"run {run_id} did not end within {seconds:g} s: {run.state}, {run.reason}")
        time.sleep(0.1)


def patiently(call: Callable[[], Run], seconds: float = END_SECONDS) -> Run:
    """A call that is made again while a service is away."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return call()
        except RequestRefused as refused:
            if refused.reason not in RETRIED or time.monotonic() > deadline:
                raise
            time.sleep(0.2)
