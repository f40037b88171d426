"""Counts of a campaign, as one line."""

import time
from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Tally:
    """What a campaign did and what went wrong."""

    campaign: str
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    def count(self, what: str, times: int = 1) -> None:
        """Count something."""
        self.counts[what] += times

    def fail(self, what: str) -> None:
        """Note something that must not happen."""
        self.failures.append(what)

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {what}" for what, count in self.counts.items())
        seconds = time.monotonic() - self.started
        return f"{self.campaign}: {counts}, {len(self.failures)} failures, {seconds:.0f} s"
