"""Copies of a service's state that are whole, made while the service goes on.

A database is copied by SQLite itself, as of one moment, and last: whatever a copied checkpoint has released is in the
copied ledger. Files of a run are replaced and removed in one step each, so a folder whose list is the same before and
after it was copied was copied as it stood. The audit trail grows by lines; half a line is left out.
"""

import hashlib
import io
import json
import shutil
import sqlite3
import stat
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

CONTENTS = "backup.json"
DATABASE = "database.sqlite"
FILES = "state"
ATTEMPTS = 20
_LEFT_OUT = ("service.lock", "web.address")
_LEFT_OUT_ENDS = (".lock", ".partial", "-wal", "-shm", "-journal")
_LEFT_OUT_FOLDERS = ("sockets", "rows", "unfinished")
"""Rows can be read anew; an alignment that has not ended must not go on from an earlier state of it."""


class BackupRefused(ValueError):
    """A backup cannot be made or used."""


@dataclass(frozen=True)
class Contents:
    """What a backup says of itself."""

    role: str
    name: str
    version: str
    made: str
    digests: dict[str, str]
    """SHA-256 of each file, by its name in the archive."""


def make_backup(state: Path, database: Path | None, out: Path, *, role: str, name: str, version: str, made: str) -> int:
    """Write an archive of a state directory and its SQLite file, readable by its owner alone; returns its files.

    Raises:
        BackupRefused: if the archive is there already, or the state does not hold still.
    """
    if out.exists():
        raise BackupRefused(f"{out} is there already: choose another name")
    with tempfile.TemporaryDirectory(dir=out.absolute().parent, prefix=".backup-") as scratch:
        copies = Path(scratch) / FILES
        _copy(state, copies, {database} if database else set())
        if database is not None and database.exists():
            with closing(sqlite3.connect(database)) as live, closing(sqlite3.connect(Path(scratch) / DATABASE)) as copy:
                live.backup(copy)
        found = sorted(path for path in Path(scratch).rglob("*") if path.is_file())
        digests = {str(path.relative_to(scratch)): _digest(path) for path in found}
        contents = json.dumps(asdict(Contents(role, name, version, made, digests)), indent=1).encode()
        partial = Path(scratch) / "archive"
        partial.touch(0o600)
        with tarfile.open(partial, "w:gz") as archive:
            head = tarfile.TarInfo(CONTENTS)
            head.size, head.mode = len(contents), 0o600
            archive.addfile(head, io.BytesIO(contents))
            for path in found:
                archive.add(path, str(path.relative_to(scratch)), recursive=False)
        partial.rename(out)
    return len(digests)


def restore_backup(archive: Path, state: Path, database: Path | None, *, role: str, name: str, version: str) -> int:
    """Put a backup where a service expects its state; returns its files.

    Raises:
        BackupRefused: if it is damaged, another service's or another version's, or there is state already.
    """
    for taken in (state, *([database] if database else [])):
        if taken.exists() and (taken.is_file() or any(taken.iterdir())):
            raise BackupRefused(f"{taken} is not empty: move what is there away first, nothing is overwritten")
    state.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=state.parent, prefix=".restore-") as scratch:
        folder = Path(scratch)
        contents = _unpacked(archive, folder)
        if (contents.role, contents.name) != (role, name):
            raise BackupRefused(f"{archive} is of {contents.role} {contents.name}, not of {role} {name}")
        if contents.version != version:
            raise BackupRefused(
                f"{archive} was made by Parley {contents.version}, and this is {version}: restore it with that one, "
                "then upgrade"
            )
        files = folder / FILES
        files.mkdir(exist_ok=True)
        for path in [files, *files.rglob("*")]:
            path.chmod(0o700 if path.is_dir() else 0o600)
        if (folder / DATABASE).exists():
            if database is None:
                raise BackupRefused(f"{archive} holds a SQLite database, and the configuration names another kind")
            database.parent.mkdir(parents=True, exist_ok=True)
            target = files / database.relative_to(state) if database.is_relative_to(state) else database
            shutil.move(folder / DATABASE, target)
        if state.exists():
            state.rmdir()  # it is empty, as was seen above
        files.rename(state)
    return len(contents.digests)


def _copy(source: Path, target: Path, without: set[Path]) -> None:
    target.mkdir(mode=0o700)
    for folder in [source, *sorted(path for path in source.rglob("*") if path.is_dir())]:
        if not _is_kept(folder.relative_to(source)):
            continue
        place = target / folder.relative_to(source)
        for _ in range(ATTEMPTS):
            before = _listed(folder)
            place.mkdir(parents=True, exist_ok=True, mode=0o700)
            for stale in [path for path in place.iterdir() if path.is_file()]:  # of an attempt before
                stale.unlink()
            whole = all(_copied(folder / name, place / name) for name in before if folder / name not in without)
            if whole and _listed(folder) == before:
                break
        else:
            raise BackupRefused(f"{folder} changes all the time: make the backup when fewer runs are active")


def _copied(source: Path, target: Path) -> bool:
    try:
        content = source.read_bytes()
    except FileNotFoundError:
        return False
    if source.suffix == ".jsonl":
        content = content[: content.rfind(b"\n") + 1]
    target.touch(0o600)
    target.write_bytes(content)
    return True


def _listed(folder: Path) -> dict[str, tuple[int, int]]:
    """Files of one folder, with what changes when one is replaced; one that only grows counts as the same."""
    found = {}
    if folder.exists():
        for path in folder.iterdir():
            try:
                status = path.stat()
            except FileNotFoundError:
                continue  # a checkpoint that has become too old
            if stat.S_ISREG(status.st_mode) and _is_kept(Path(path.name)):
                found[path.name] = (status.st_ino, 0 if path.suffix == ".jsonl" else status.st_mtime_ns)
    return found


def _is_kept(path: Path) -> bool:
    name = path.name
    return (
        name not in _LEFT_OUT
        and not name.endswith(_LEFT_OUT_ENDS)
        and not any(part in _LEFT_OUT_FOLDERS for part in path.parts)
    )


def _unpacked(archive: Path, folder: Path) -> Contents:
    """Unpack an archive whose every file is the one that was put in."""
    try:
        with tarfile.open(archive, "r:gz") as opened:
            opened.extractall(folder, filter="data")
        contents = Contents(**json.loads((folder / CONTENTS).read_text()))
        (folder / CONTENTS).unlink()
        found = {str(path.relative_to(folder)): _digest(path) for path in _files(folder)}
    except (tarfile.TarError, EOFError, OSError, ValueError, TypeError) as error:
        raise BackupRefused(f"{archive} is no whole backup ({error}): take another one") from None
    if found != contents.digests:
        raise BackupRefused(f"{archive} was changed after it was made: take another one")
    return contents


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
