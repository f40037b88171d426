import sqlite3
import tarfile
from contextlib import closing

import pytest

from parley.storage.backups import BackupRefused, make_backup, restore_backup

BANK = {"role": "party", "name": "bank", "version": "1"}


@pytest.fixture
def state(tmp_path):
    """A party's state, with a database that is open in another connection, in the middle of a transaction."""
    folder = tmp_path / "state"
    (folder / "runs" / "run-1").mkdir(parents=True)
    (folder / "runs" / "run-1" / "model").write_bytes(b"weights")
    (folder / "noise.key").write_bytes(b"k" * 32)
    (folder / "audit.jsonl").write_bytes(b'{"a": 1}\n{"half')
    (folder / "service.lock").write_text("17")
    (folder / "sockets").mkdir()
    with closing(sqlite3.connect(folder / "party.db")) as live:
        live.execute("PRAGMA journal_mode=WAL")
        live.execute("CREATE TABLE spent (epsilon REAL)")
        live.execute("INSERT INTO spent VALUES (1.5)")
        live.commit()
        live.execute("INSERT INTO spent VALUES (99)")  # not committed
        yield folder


def test_a_backup_that_was_made_while_the_service_writes_restores_what_was_committed(state, tmp_path):
    archive, place = tmp_path / "bank.tar.gz", tmp_path / "elsewhere" / "state"
    made = make_backup(state, state / "party.db", archive, **BANK, made="now")
    assert archive.stat().st_mode & 0o077 == 0
    assert restore_backup(archive, place, place / "party.db", **BANK) == made
    assert (place / "runs" / "run-1" / "model").read_bytes() == b"weights"
    assert (place / "audit.jsonl").read_bytes() == b'{"a": 1}\n'
    assert sorted(path.name for path in place.iterdir()) == ["audit.jsonl", "noise.key", "party.db", "runs"]
    with closing(sqlite3.connect(place / "party.db")) as restored:
        assert restored.execute("SELECT epsilon FROM spent").fetchall() == [(1.5,)]
    assert place.stat().st_mode & 0o077 == 0


def test_nothing_that_is_there_is_overwritten(state, tmp_path):
    archive = tmp_path / "bank.tar.gz"
    make_backup(state, None, archive, **BANK, made="now")
    with pytest.raises(BackupRefused, match="is there already"):
        make_backup(state, None, archive, **BANK, made="now")
    with pytest.raises(BackupRefused, match="is not empty"):
        restore_backup(archive, state, None, **BANK)


@pytest.mark.parametrize("other", [{"role": "coordinator"}, {"name": "shop"}, {"version": "2"}])
def test_a_backup_of_another_service_or_version_is_refused(state, tmp_path, other):
    archive, place = tmp_path / "bank.tar.gz", tmp_path / "new"
    make_backup(state, None, archive, **BANK, made="now")
    with pytest.raises(BackupRefused):
        restore_backup(archive, place, None, **(BANK | other))
    assert not place.exists()


def test_a_damaged_or_changed_backup_is_refused_and_leaves_nothing(state, tmp_path):
    archive, place = tmp_path / "bank.tar.gz", tmp_path / "new"
    make_backup(state, None, archive, **BANK, made="now")
    cut = tmp_path / "cut.tar.gz"
    cut.write_bytes(archive.read_bytes()[:-200])
    with pytest.raises(BackupRefused, match="no whole backup"):
        restore_backup(cut, place, None, **BANK)
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path / "opened", filter="data")
    (tmp_path / "opened" / "state" / "noise.key").write_bytes(b"x" * 32)
    changed = tmp_path / "changed.tar.gz"
    with tarfile.open(changed, "w:gz") as written:
        for path in (tmp_path / "opened").iterdir():
            written.add(path, path.name)
    with pytest.raises(BackupRefused, match="was changed"):
        restore_backup(changed, place, None, **BANK)
    assert not place.exists()


def test_a_folder_that_changes_while_it_is_copied_is_copied_again(state, tmp_path, monkeypatch):
    from parley.storage import backups

    copied, original = [], backups._copied

    def disturbed(source, target):
        if source.name == "model" and "model" not in copied:
            (source.parent / "newer").write_bytes(b"newer")
        copied.append(source.name)
        return original(source, target)

    monkeypatch.setattr(backups, "_copied", disturbed)
    archive, place = tmp_path / "bank.tar.gz", tmp_path / "new"
    make_backup(state, None, archive, **BANK, made="now")
    restore_backup(archive, place, None, **BANK)
    assert sorted(path.name for path in (place / "runs" / "run-1").iterdir()) == ["model", "newer"]
