"""Scenarios in which a disk is full or lies: checkpoints, the coordinator's database, the ledger."""

import contextlib
import resource
import sqlite3
import time
from pathlib import Path

from parley.client import RequestRefused
from parley.local import ProcessEnded
from parley.testing.remains import wait_for_end
from tests.faults.cases import spec_of
from tests.faults.stage import Stage

FLIPS = 5
"""Bytes of a ledger row that one scenario damages, one after the other."""


def damaged_checkpoint(stage: Stage) -> None:
    """A damaged byte in a party's newest checkpoint: all parties fall back to the one before."""
    run = stage.run_some()
    stage.federation.kill("shop")
    stage.wait_for_state(run, "PAUSED")
    kept = sorted(stage.federation.run_directory("shop", run.run_id).glob("checkpoint-*.safetensors"))
    content = bytearray(kept[-1].read_bytes())
    content[stage.chance.randrange(len(content))] ^= 1 << stage.chance.randrange(8)
    kept[-1].write_bytes(bytes(content))
    stage.federation.restart("shop")
    stage.check_end(run)
    newest = int(kept[-1].stem.removeprefix("checkpoint-"))
    resumed = [event.state_change.from_step for event in run.watch() if event.state_change.attempt > 1]
    if not resumed or resumed[-1] >= newest:
        raise AssertionError(f"checkpoint {newest} is damaged, but the run was resumed from {resumed}")


def full_disk(stage: Stage) -> None:
    """A checkpoint that cannot be written fails the run by name; with room again it is resumed."""
    process = stage.federation.processes["telco"]
    _, hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
    run = stage.run_some()
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (16, hard))
    try:
        ended = wait_for_end(stage.client, run.run_id)
        if ended.state != "FAILED" or "telco refused (STORAGE_FAILED)" not in ended.reason:
            raise AssertionError(f"a full disk ends as {ended.state}: {ended.reason}")
    finally:
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (hard, hard))
    stage.resume(run)
    stage.check_end(run)


def changed_ledger(stage: Stage) -> None:
    """A ledger entry that is changed behind the coordinator's back is shown as broken."""
    run = stage.client.start(spec_of("implicit, pairwise, once"))
    wait_for_end(stage.client, run.run_id)
    if run.ledger().broken or not run.ledger().entries:
        raise AssertionError("a fresh ledger is whole and has an entry")
    database = stage.federation.directory / "state" / "coordinator" / "coordinator.db"
    with sqlite3.connect(database, timeout=30) as connection:
        changed = connection.execute(
            "UPDATE ledger_entries SET epsilon = epsilon / 2 WHERE run = ?", (run.run_id,)
        ).rowcount
    connection.close()
    if changed != 1 or "entry 0" not in run.ledger().broken:
        raise AssertionError(f"{changed} entries were changed, the ledger says {run.ledger().broken!r}")


def full_disk_of_the_coordinator(stage: Stage) -> None:
    """A run that the coordinator cannot note down fails by name; with room again it is resumed, to the same bits."""
    process = stage.federation.processes["coordinator"]
    _, hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
    run = stage.run_some()
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (16, hard))
    try:
        time.sleep(3.0)
        if process.poll() is not None:
            raise AssertionError("a full disk ended the coordinator")
        try:
            stage.start()
            raise AssertionError("a run was started that could not be written down")
        except RequestRefused as refused:
            if refused.reason != "STORAGE_FAILED":
                raise
    finally:
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (hard, hard))
    ended = wait_for_end(stage.client, run.run_id)
    if ended.state != "FAILED" or "STORAGE_FAILED" not in ended.reason:
        raise AssertionError(f"a full disk of the coordinator ends as {ended.state}: {ended.reason}")
    stage.resume(run)
    stage.check_end(run)


def damaged_ledger_file(stage: Stage) -> None:
    """A flipped bit in the database file, where a ledger entry lies, is shown as broken or refused by name."""
    run = stage.client.start(spec_of("implicit, pairwise, once"))
    wait_for_end(stage.client, run.run_id)
    whole = run.ledger()
    if whole.broken or len(whole.entries) != 1:
        raise AssertionError(f"a fresh ledger is whole and has one entry, this one says {whole.broken!r}")
    stage.federation.kill("coordinator")
    database = stage.federation.directory / "state" / "coordinator" / "coordinator.db"
    with contextlib.closing(sqlite3.connect(database, timeout=30)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = database.read_bytes()
    place = _place_of(database, content, run.run_id)
    try:
        for _ in range(FLIPS):
            changed = bytearray(content)
            changed[stage.chance.choice(place)] ^= 1 << stage.chance.randrange(8)
            database.write_bytes(changed)
            _clear_wal(database)
            _expect_damage(stage, run.run_id, whole.entries)
            stage.federation.kill("coordinator")
    finally:
        stage.federation.kill("coordinator")
        database.write_bytes(content)
        _clear_wal(database)
        stage.federation.restart("coordinator")
        stage.until_reachable()
    if run.ledger().broken:
        raise AssertionError("the restored ledger is not whole")


def _place_of(database: Path, content: bytes, run_id: str) -> range:
    """Where the run's first ledger entry lies in the file: its columns' types and their values, up to its hash."""
    query = "SELECT previous_hash || hash FROM ledger_entries WHERE run = ? AND sequence = 0"
    with contextlib.closing(sqlite3.connect(database, timeout=30)) as connection:
        (hashes,) = connection.execute(query, (run_id,)).fetchone()
    end = content.index(hashes.encode()) + len(hashes)
    return range(content.rindex(run_id.encode(), 0, end) - 10, end)


def _clear_wal(database: Path) -> None:
    for end in ("-wal", "-shm"):
        database.with_name(database.name + end).unlink(missing_ok=True)


def _expect_damage(stage: Stage, run_id: str, entries: object) -> None:
    try:
        stage.federation.restart("coordinator")
        stage.until_reachable()
        found = stage.client.run(run_id).ledger()
        if not found.broken and found.entries != entries:
            raise AssertionError("a damaged ledger was taken for whole")
        if not found.broken:
            raise AssertionError("the flipped bit is in a row of the ledger, but it is called whole")
    except RequestRefused as refused:
        if refused.reason in ("INTERNAL", "UNKNOWN"):
            raise
    except ProcessEnded as ended:
        if "database" not in str(ended):
            raise
