"""What a run has done over all of its attempts, and what it has measured and not written down yet."""

import time
from collections.abc import Callable

from parley.coordinator.programs import Report
from parley.numerics.number_ranges import NumberRanges
from parley.services.coordinator.streams import Traffic
from parley.spec.events import RunTotals


class WorkTally:
    """The work of a run: what earlier attempts did, and what this one has done so far, failed rounds included."""

    def __init__(self, before: RunTotals, clock: Callable[[], float] = time.monotonic) -> None:
        self._before, self._clock = before, clock
        self._known_releases = before.label_releases
        self._releases = NumberRanges()  # a set would grow with every step
        self._traffic, self._started, self._peer_bytes = Traffic(), clock(), 0

    def begin(self, traffic: Traffic) -> None:
        """An attempt begins, and its rounds are counted in `traffic`."""
        self.end()
        self._traffic, self._started = traffic, self._clock()

    def end(self) -> None:
        """The attempt is over, however it ended."""
        self._before, self._traffic, self._peer_bytes = self.totals, Traffic(), 0

    def sent_between_parties(self, total_bytes: float | None) -> None:
        """What parties have sent to each other in this attempt has crossed as well; None if they do not say."""
        if total_bytes is not None:
            self._peer_bytes = int(total_bytes)

    def release(self, number: int) -> None:
        """Labels were released. Releases are numbered from 0 on, so one that an earlier attempt made is a replay."""
        if number >= self._known_releases:
            self._releases.add(number)

    @property
    def next_release(self) -> int:
        """The release after the newest one."""
        return max(self._releases.next, self._known_releases)

    @property
    def totals(self) -> RunTotals:
        """Everything so far."""
        working = self._traffic.rounds > 0
        return RunTotals(
            rounds=self._before.rounds + self._traffic.rounds,
            bytes=self._before.bytes + self._traffic.sent_bytes + self._traffic.received_bytes + self._peer_bytes,
            label_releases=self._known_releases + len(self._releases),
            seconds=self._before.seconds + (self._clock() - self._started if working else 0.0),
        )


class UnwrittenFigures:
    """The newest value of each metric that is in no event yet, with its iteration.

    An iteration that measures more after an event about it has been written is told whole in its next one.
    """

    def __init__(self) -> None:
        self._newest: dict[str, tuple[int, float]] = {}
        self._told = Report(0, {})

    def __bool__(self) -> bool:
        return bool(self._newest)

    def add(self, report: Report) -> None:
        """Note what an iteration measured."""
        metrics = report.metrics if report.k != self._told.k else {**self._told.metrics, **report.metrics}
        self._newest |= {name: (report.k, value) for name, value in metrics.items()}

    def reports(self) -> list[Report]:
        """All of them, one report for each iteration, oldest first."""
        found: dict[int, dict[str, float]] = {}
        for name, (k, value) in self._newest.items():
            found.setdefault(k, {})[name] = value
        return [Report(k, found[k]) for k in sorted(found)]

    def written(self, report: Report) -> None:
        """What a report measured is in an event now."""
        self._told = report
        self._newest = {name: (k, value) for name, (k, value) in self._newest.items() if k != report.k}
