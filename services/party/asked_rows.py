"""Which coordinator asked for predictions of how many rows by id, and when: whoever asks by id learns who is there.

A question is written down and synced before it is answered, so that no restart forgets it.
"""

import json
import logging
import os
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

DAY_SECONDS = 24 * 3600.0
FILE = "asked-rows.jsonl"
BLOCK = 1000
"""Rows of a deployment that are counted at once, before the first of them is looked up."""
logger = logging.getLogger(__name__)


class TooManyRowsAsked(RuntimeError):
    """A coordinator has asked for as many rows by id as the policy allows in a day."""


class AskedRows:
    """A party's log of questions by id, and its limit."""

    def __init__(self, state: Path, rows_per_day: int) -> None:
        self._path, self._limit = state / FILE, rows_per_day
        self._turn = threading.Lock()
        self._recent: deque[tuple[float, str, int]] | None = None

    def count(self, party: str, coordinator: str, run_id: str, table: str, rows: int, **further: str) -> None:
        """Write a question down, with what else is to be known of it.

        Raises:
            TooManyRowsAsked: if it is one too many; nothing was looked up.
        """
        now = time.time()
        with self._turn:
            recent = self._within(now - DAY_SECONDS)
            spent = sum(count for _, who, count in recent if who == coordinator)
            if spent + rows > self._limit:
                raise TooManyRowsAsked(
                    f"{coordinator} has asked {party} for predictions of {spent} rows by id within 24 hours, and may "
                    f"ask for {self._limit}: wait, predict the whole table, or ask the owner to raise "
                    "policy.predictions.rows_per_day"
                )
            entry = {"time": now, "coordinator": coordinator, "run": run_id, "table": table, "rows": rows}
            self._append(json.dumps(entry | further))
            recent.append((now, coordinator, rows))

    def left(self, coordinator: str) -> int:
        """How many rows a coordinator may still ask for within these 24 hours."""
        with self._turn:
            recent = self._within(time.time() - DAY_SECONDS)
            return self._limit - sum(count for _, who, count in recent if who == coordinator)

    def entries(self) -> list[dict[str, Any]]:
        """Every line, oldest first."""
        if not self._path.exists():
            return []
        lines = self._path.read_text("utf-8").splitlines()
        return [json.loads(line) for line in lines if line.endswith("}")]  # a torn last line was never acted on

    def _within(self, since: float) -> deque[tuple[float, str, int]]:
        if self._recent is None:
            self._recent = deque(self._read())
        while self._recent and self._recent[0][0] < since:
            self._recent.popleft()
        return self._recent

    def _read(self) -> list[tuple[float, str, int]]:
        return [(entry["time"], entry["coordinator"], entry["rows"]) for entry in self.entries()]

    def _append(self, line: str) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        # A new line first: whatever a crash left of the last one stays apart.
        with os.fdopen(handle, "a", encoding="utf-8") as file:
            file.write(f"\n{line}\n")
            file.flush()
            os.fsync(file.fileno())


class Allowance:
    """The rows that callers of one deployment ask for, counted in blocks ahead: no question waits for the disk."""

    def __init__(
        self, asked: AskedRows, party: str, coordinator: str, run_id: str, table: str, deployment: str
    ) -> None:
        self._asked, self._party, self._coordinator = asked, party, coordinator
        self._run_id, self._table, self._deployment = run_id, table, deployment
        self._left: dict[str, int] = {}

    def take(self, caller: str, rows: int) -> None:
        """Count rows that a caller asks for.

        Raises:
            TooManyRowsAsked: if they are too many; nothing was looked up.
        """
        missing = rows - self._left.get(caller, 0)
        if missing > 0:
            block = max(missing, min(BLOCK, self._asked.left(self._coordinator)))
            self._count(caller, block)
            self._left[caller] = self._left.get(caller, 0) + block
        self._left[caller] -= rows

    def close(self) -> None:
        """Give back what was counted ahead; where that cannot be written it stays counted, which errs safely."""
        for caller, left in self._left.items():
            if left:
                try:
                    self._count(caller, -left)
                except OSError as failure:
                    logger.warning("%d rows that nobody asked for stay counted: %s", left, failure)
        self._left = {}

    def _count(self, caller: str, rows: int) -> None:
        further = {"deployment": self._deployment, "caller": caller}
        self._asked.count(self._party, self._coordinator, self._run_id, self._table, rows, **further)
