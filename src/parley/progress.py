"""A run while it goes on: a live bar in a terminal, a line for each event elsewhere."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from parley.client import RequestRefused, Run
from parley.display import size
from parley.services.wire.event_codec import decode_metrics
from parley.spec.events import is_detail, newest

TOLD = frozenset({"state", "party", "warning"})
"""Events that are shown as sentences; the others change figures."""


@dataclass(frozen=True)
class Point:
    """What was known of a run at one event."""

    step: int
    seconds: float
    """Since watching began."""
    metrics: dict[str, float]
    """What the event itself measured."""


@dataclass
class Follower:
    """Follows a run to its end and shows its state."""

    run: Run
    console: Console
    points: list[Point] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    """The newest value of each metric."""
    epsilon: str = ""
    _started: float = field(default_factory=time.monotonic)

    def follow(self) -> Iterator[Any]:
        """Yield every event after it has been shown."""
        with self._shown() as show:
            for event in self.run.watch():
                figures = decode_metrics(event.metrics)
                self.metrics = newest(self.metrics, figures)
                self.points.append(Point(event.step, time.monotonic() - self._started, figures))
                if event.kind in ("state", "privacy"):
                    self._ask_ledger()
                show(event)
                yield event

    def _ask_ledger(self) -> None:
        """The ledger composes what was released better than the running figure of a privacy event."""
        try:
            self.epsilon = spent(self.run.ledger().report)
        except RequestRefused:  # the run goes on whether or not its ledger can be read just now
            return

    def _facts(self) -> str:
        loss = self.metrics.get("upper loss")
        found = [
            f"loss {loss:.4f}" if loss is not None else "",
            *(f"{name.removeprefix('test ')} {self.metrics[name]:.4f}" for name in quality_names(self.metrics)),
            self.epsilon,
            size(self.metrics["bytes"]) if "bytes" in self.metrics else "",
        ]
        return "  ".join(filter(None, found))

    @contextmanager
    def _shown(self) -> Iterator[Any]:
        if not self.console.is_terminal:
            yield self._line
            return
        bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("step {task.completed:.0f} of {task.total:.0f}"),
            TextColumn("{task.fields[facts]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(compact=True),
            console=self.console,
        )
        with bar:
            task = bar.add_task(escape(self.run.message.name), total=self.run.steps or 1, facts="")

            def show(event: Any) -> None:
                bar.update(task, completed=event.step, facts=escape(self._facts()))
                if event.kind in TOLD:
                    bar.console.print(f"{event.time[11:19]} {escape(event.message)}")

            yield show

    def _line(self, event: Any) -> None:
        place = f"step {event.step} of {self.run.steps}"
        if event.kind in TOLD | {"evaluation"}:
            message = event.message if event.kind in TOLD else ""
            parts = [event.time[11:19], place, self._facts(), message]
            self.console.print("  ".join(filter(None, parts)), markup=False, highlight=False, soft_wrap=True)


DETAILS = (
    "loss",
    "average precision",
    " ks",
    "brier score",
    "calibration error",
    " mae",
    "precision",
    "recall",
    " f1",
    "threshold",
)
"""How metrics end that a line has no room for; `parley run show` and the page have them all."""


def quality_names(metrics: dict[str, float]) -> list[str]:
    """The metrics that say in a line how good a model is, such as `test accuracy`."""
    return [
        name
        for name in metrics
        if name.startswith(("test ", "validation ", "detection ")) and not (name.endswith(DETAILS) or is_detail(name))
    ]


def spent(report: Any) -> str:
    """The ε of a privacy report, by the composition that gives the smallest."""
    if not report.mechanism:
        return "ε 0"
    if math.isinf(report.pure_epsilon):
        return "ε ∞ (labels unprotected)"
    if report.pld_epsilon and report.pld_epsilon < 0.99 * report.pure_epsilon:  # composing gained something
        return f"ε {report.pld_epsilon:.4g} (δ {report.delta:g})"
    return f"ε {report.pure_epsilon:.4g}"
