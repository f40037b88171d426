"""Early stopping: when a run has stopped getting better, and which of its models was the best."""

import math
from collections.abc import Iterable

from parley.coordinator.programs import Report
from parley.spec.stopping import StopSpec


class MetricMissing(ValueError):
    """The run does not measure what it is to be stopped by."""


def is_evaluation(report: Report) -> bool:
    """Whether a report has figures on held-out rows."""
    return any(name.startswith(("test ", "validation ")) for name in report.metrics)


class EarlyStopping:
    """Follows one metric over a run's evaluations; what it says depends on nothing else."""

    def __init__(self, terms: StopSpec, before: Iterable[Report] = ()) -> None:
        """`before` are the evaluations up to the checkpoint that an attempt begins from."""
        self._terms, self._sign = terms, 1.0 if terms.seeks == "smallest" else -1.0
        self.best: Report | None = None
        """The evaluation of the best model so far."""
        self._since = 0
        for report in before:
            self.note(report)

    def note(self, report: Report) -> None:
        """An evaluation is done.

        Raises:
            MetricMissing: if it has not measured the metric.
        """
        value = report.metrics.get(self._terms.metric)
        if value is None:
            measured = ", ".join(sorted(report.metrics))
            raise MetricMissing(
                f"stop.metric: this run does not measure {self._terms.metric!r} but {measured}: name one of those"
            )
        self._since += 1
        if self.best is None or self._improves(value, self.best.metrics[self._terms.metric]):
            self.best, self._since = report, 0

    def _improves(self, value: float, best: float) -> bool:
        if math.isnan(best):
            return not math.isnan(value)
        return self._sign * (best - value) > self._terms.minimum_change

    @property
    def is_over(self) -> bool:
        """Whether the run has gone on for as long as it may without getting better."""
        return self._since >= self._terms.patience

    @property
    def earlier_best(self) -> Report | None:
        """The best evaluation, if a later one was not as good; None if the newest is the best."""
        return self.best if self._since else None

    @property
    def sentence(self) -> str:
        """Which model is kept and why, for people."""
        if self.best is None:
            return "nothing was evaluated"
        name, value = self._terms.metric, self.best.metrics[self._terms.metric]
        return f"the model of iteration {self.best.k} is kept, with the best {name}, {value:.6g}"
