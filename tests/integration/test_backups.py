"""A backup that was made while a run went on is enough to go on with it, as docs/backups.md says."""

import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from parley.commands.backup import backup, restore
from parley.local import ProcessEnded
from parley.testing.federations import ForkedFederation, TwinFederation
from parley.testing.remains import remains_of, start, wait_for_end
from parley.testing.stage import small_policy, write_tables
from tests.contract_suite.test_bambi import TestBambi as BambiContract
from tests.integration.conftest import spec
from tests.integration.test_damaged_database import damage

PAGE = Path(__file__).parents[2] / "docs" / "backups.md"
PARTIES = ("bank", "shop", "telco")


def make_backup(directory):
    """Run the page's own program."""
    (program,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    subprocess.run([sys.executable, "-c", program], cwd=directory, check=True)


def test_a_damaged_database_is_replaced_by_its_backup_and_the_run_goes_on(data, tmp_path):
    tables = {name: {"digits": {"path": data / "digits" / f"{name}.parquet"}} for name in PARTIES}
    labels = {"digits": {"path": data / "digits" / "labels.parquet"}}
    with ForkedFederation(tmp_path, tables, labels) as local, local.connect() as client:
        run = client.start(spec(train__upper__steps=60, checkpoint_every=4, evaluate_every=4))
        checkpoints = (event.progress.checkpoint for event in run.watch())
        next(k for k in checkpoints if k >= 8)
        make_backup(tmp_path)
        next(k for k in checkpoints if k >= 12)
        local.kill("coordinator")
        database = tmp_path / "state" / "coordinator" / "coordinator.db"
        with closing(sqlite3.connect(database)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        damage(database, first=2)
        with pytest.raises(ProcessEnded, match="is damaged"):
            local.restart("coordinator")
        for end in ("", "-wal", "-shm"):
            database.with_name(database.name + end).unlink(missing_ok=True)
        (tmp_path / "coordinator.backup.db").rename(database)
        local.restart("coordinator")
        run = client.run(run.run_id)
        assert run.result()["test accuracy"] > 0.5
        assert run.step == 60
        assert run.message.attempt == 2
        assert run.ledger().broken == ""


def test_every_service_is_restored_into_an_empty_directory_and_the_run_ends_with_the_same_bits(tmp_path):
    """Backups of all services, made one after the other while the run goes on; then every state is lost.

    The coordinator's comes first: what it knows of a run, the parties have.
    """
    case = BambiContract.case
    tables, labels = write_tables(tmp_path / "data", [case])
    left = {}
    for way in ("quiet", "lost"):
        local = TwinFederation(tmp_path / way, tables, labels, policy=small_policy([case]))
        with local, local.connect() as client:
            run = start(client, case.patient_spec, "restored")
            if way == "lost":
                next(event for event in run.watch() if event.progress.checkpoint)
                for name in ("coordinator", *(each for each in local.services if each != "coordinator")):
                    backup(local.directory / f"{name}.yaml", tmp_path / f"{name}.tar.gz")
                for name in local.services:
                    local.kill(name)
                    shutil.rmtree(local.directory / "state" / name)
                for name in local.services:
                    restore(tmp_path / f"{name}.tar.gz", local.directory / f"{name}.yaml")
                    local.restart(name)
            run = wait_for_end(client, run.run_id)
            assert run.state == "COMPLETED", run.reason
            left[way] = remains_of(local, client, run.run_id)
    assert left["lost"] == left["quiet"]
