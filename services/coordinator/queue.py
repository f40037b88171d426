"""Runs that wait for their turn: the highest priority first, and of the same priority who has waited longest.

The database has them too, in the same order, so that they outlast a restart.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

LOWEST_PRIORITY, HIGHEST_PRIORITY = -100, 100


class TooManyRuns(RuntimeError):
    """As many runs are driven and wait as may."""


@dataclass(frozen=True)
class Limits:
    """How many runs there may be at once."""

    runs: int
    """Driven at once."""
    queued: int = 0
    """Waiting for their turn."""
    runs_of_one: int | None = None
    """Driven at once for one client; no limit of its own if None."""
    queued_of_one: int | None = None
    """Waiting for one client; no limit of its own if None."""


@dataclass(frozen=True)
class Waiting:
    """A run that waits."""

    run_id: str
    owner: str
    """Who started it."""
    priority: int


class RunQueue:
    """Says who may go on and who is next; `active` names the owner of each run that is driven."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._waiting: list[Waiting] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def has_room(self, owner: str, active: Iterable[str]) -> bool:
        """Whether one more run of an owner may be driven now."""
        counted, most = Counter(active), self._limits.runs_of_one
        return counted.total() < self._limits.runs and (most is None or counted[owner] < most)

    def require_place(self, owner: str) -> None:
        """Let a run wait.

        Raises:
            TooManyRuns: if too many wait already.
        """
        own, most = sum(each.owner == owner for each in self._waiting), self._limits.queued_of_one
        if len(self._waiting) >= self._limits.queued:
            raise TooManyRuns(
                f"{self._limits.runs} runs are active and {len(self._waiting)} wait, the limits: start it later, or "
                "raise `runs` or `queue` in the coordinator's configuration"
            )
        if most is not None and own >= most:
            raise TooManyRuns(
                f"{own} runs of {owner} wait already, the limit: start it later, cancel one, or raise "
                "`queue_per_client` in the coordinator's configuration"
            )

    def place(self, priority: int) -> int:
        """The place, from 1, of a run that comes now: behind all of its priority."""
        return 1 + sum(each.priority >= priority for each in self._waiting)

    def add(self, waiting: Waiting) -> None:
        """Let a run wait."""
        self._waiting.insert(self.place(waiting.priority) - 1, waiting)

    def remove(self, run_id: str) -> bool:
        """Let a run wait no longer; false if it did not."""
        kept = [each for each in self._waiting if each.run_id != run_id]
        found = len(kept) < len(self._waiting)
        self._waiting = kept
        return found

    def has(self, owner: str) -> bool:
        """Whether a run of an owner waits."""
        return any(each.owner == owner for each in self._waiting)

    def pop(self, active: Iterable[str]) -> Waiting | None:
        """Take out the next run that may be driven, if there is one; an owner at its limit is passed over."""
        held = list(active)
        chosen = next((each for each in self._waiting if self.has_room(each.owner, held)), None)
        if chosen is not None:
            self._waiting.remove(chosen)
        return chosen
