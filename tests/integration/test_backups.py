"""A backup that was made while a run went on is enough to go on with it, as docs/backups.md says."""

import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from parley.local import LocalFederation, ProcessEnded
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
    with LocalFederation(tmp_path, tables, labels) as local, local.connect() as client:
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
