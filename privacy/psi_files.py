"""What an organisation keeps of an alignment that has not ended: keys, and points as they come.

An alignment of ten million ids takes a while, and its points do not fit memory beside everything else, so they lie in
files of the organisation's own state directory (0600), with the keys that they were made with. Whoever is interrupted
goes on where it was. That reveals nothing more than one alignment without a break does: the same ids are hashed under
the same alignment's name and raised to the same powers, so what is sent again is sent in the same bytes, and a holder
takes each of the leader's points once. All of it is deleted when the alignment ends; what is older than `KEPT_SECONDS`
is deleted when the service starts or another alignment begins.
"""

import contextlib
import json
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

KEPT_SECONDS = 3 * 86400.0
_FACTS = "facts.json"


@dataclass(frozen=True)
class RecordFile:
    """Records of one size, appended and never changed."""

    path: Path
    width: int
    """Bytes of a record."""

    def __len__(self) -> int:
        return self.path.stat().st_size // self.width if self.path.exists() else 0

    def append(self, records: bytes | memoryview, *, durable: bool = False) -> None:
        """Add whole records; what a crash has left of a half one is dropped."""
        end = len(self) * self.width
        with os.fdopen(os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
            file.truncate(end)
            file.seek(end)
            file.write(records)
            file.flush()
            if durable:
                os.fsync(file.fileno())

    def read(self, first: int, last: int) -> bytes:
        """Some records, one after the other."""
        with self.path.open("rb") as file:
            file.seek(first * self.width)
            return file.read((last - first) * self.width)

    def mapped(self, dtype: str = "u1") -> NDArray[Any]:
        """All records as rows of a read-only array that stays in the file."""
        columns = self.width // np.dtype(dtype).itemsize
        if not len(self):
            return np.empty((0, columns), dtype=dtype)
        return np.memmap(self.path, dtype=dtype, mode="r", shape=(len(self), columns))


@dataclass(frozen=True)
class Unfinished:
    """The directory of one alignment."""

    directory: Path

    @property
    def facts(self) -> dict[str, Any] | None:
        """What was written down when it began, or since; None if there is none."""
        path = self.directory / _FACTS
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None
        return found if isinstance(found, dict) and time.time() - found.get("time", 0) < KEPT_SECONDS else None

    def begin(self, facts: dict[str, Any]) -> None:
        """Forget what was there, and begin with these facts."""
        self.end()
        self.directory.mkdir(parents=True, mode=0o700)
        self.note(facts)

    def note(self, facts: dict[str, Any]) -> None:
        """Write down all facts anew, wholly or not at all."""
        scratch = self.directory / f"{_FACTS}.partial"
        with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            json.dump({"time": time.time()} | facts, file)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(self.directory / _FACTS)

    def records(self, name: str, width: int) -> RecordFile:
        """A file of this alignment."""
        return RecordFile(self.directory / name, width)

    def end(self) -> None:
        """Delete everything."""
        shutil.rmtree(self.directory, ignore_errors=True)


def forget_old(parent: Path) -> None:
    """Delete what alignments have left that nobody went on with."""
    for directory in parent.iterdir() if parent.exists() else ():
        with contextlib.suppress(FileNotFoundError):  # one that ends meanwhile
            if time.time() - directory.stat().st_mtime > KEPT_SECONDS:
                Unfinished(directory).end()
