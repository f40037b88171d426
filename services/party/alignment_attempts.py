"""Which coordinator aligned which table when: written and synced before anything leaves, so no restart forgets it."""

import json
import os
import threading
from pathlib import Path

FILE = "attempts.jsonl"


class AttemptLog:
    """Attempts of all coordinators, one line each."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE
        self._turn = threading.Lock()

    @property
    def turn(self) -> threading.Lock:
        """Held while attempts are counted and one is added, so that two alignments at once are counted as two."""
        return self._turn

    def times(self, coordinator: str, table: str) -> list[float]:
        """When a coordinator aligned a table, in Unix seconds."""
        if not self._path.exists():
            return []
        lines = self._path.read_text(encoding="utf-8").splitlines()
        # A line that a crash cut short is left out: nothing had left for it yet.
        entries = [json.loads(line) for line in lines if line.endswith("}")]
        return [e["time"] for e in entries if (e["coordinator"], e["table"]) == (coordinator, table)]

    def add(self, coordinator: str, table: str, name: str, now: float) -> None:
        """Write an attempt down."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        entry = {"time": now, "coordinator": coordinator, "table": table, "name": name}
        # Begin with a line feed, in case a crash has cut the line before short.
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"\n{json.dumps(entry)}\n")
            file.flush()
            os.fsync(file.fileno())
