"""HGP at the coordinator: a clock that sends ranges of steps, and sums of measures; no vector passes here."""

from collections.abc import Generator, Iterator
from math import ceil, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parley.coordinator.clock import Clock, links_per_step
from parley.coordinator.forecasts import Forecast, Trips, Widths, evaluations, kept, network_size, widths_of
from parley.coordinator.labels import LabelAccess
from parley.coordinator.programs import CommonRows, CoordinatorAlgorithm, Observer, Report, due
from parley.numerics.metrics import AVERAGED, party_averages
from parley.numerics.networks import check_strongly_connected
from parley.protocols.decentralised.messages import ACCURACY_LEVELS, Phase, StepRange, plan_of
from parley.protocols.hgp.codec import PROTOCOL
from parley.protocols.hgp.settings import HgpSpec, PersonalisationSpec
from parley.spec.run import RunSpec

CHECKED_STEPS = 10_000
"""A time-varying network is checked for so many steps; the steps after them are drawn in the same way."""
MEASURES = 9
"""Numbers that an evaluation sums, without the levels of accuracy."""
MESSAGE_BYTES = 23
"""What a message between parties holds beside its vector."""

Rounds = Generator[StepRange, Any, None]


class HgpProgram(Clock):
    """The clock of HGP: inner problem, hyper-gradient, and again."""

    def __init__(self, spec: RunSpec, _: LabelAccess) -> None:
        super().__init__(len(spec.parties))
        self._spec, self._train = spec, spec.settings(HgpSpec)

    @property
    def outputs(self) -> int:
        """Classes of the model."""
        return len(self._train.task.classes)

    def rounds(self, done: int, observe: Observer) -> Rounds:
        """Every range of steps from outer iteration `done` on."""
        for k in range(done, self._train.outer.steps):
            yield from self._step_ranges("train", k, self._train.inner_steps)
            if self._train.has_hyper:
                yield from self._step_ranges("hyper_gradient", k, self._train.hyper_steps)
            last, reported = k + 1 == self._train.outer.steps, self.traffic()
            if last or due(k + 1, self._spec.evaluate_every):
                reported |= self._read((yield StepRange("evaluate", k)))
            observe(Report(k + 1, reported))
            if not last and due(k + 1, self._spec.checkpoint_every):
                yield StepRange("checkpoint", k + 1)
        yield self.finish

    def _step_ranges(self, phase: Phase, k: int, steps: int) -> Iterator[StepRange]:
        for first in range(0, steps, self._train.stretch):
            yield StepRange(phase, k, first, min(first + self._train.stretch, steps))

    def _read(self, total: Any) -> dict[str, float]:
        averaged = 2 * len(AVERAGED) if self._spec.evaluation.averages else 0
        counted = len(total) - 1 - averaged
        measures, levels = (
            [float(value) for value in total[:8]],
            np.rint(np.asarray(total[8:counted], dtype=np.float64)),
        )
        loss, mistakes, rows, _, test_mistakes, test_rows, accuracy, squared = measures
        found = {"validation loss": loss / rows, "validation error": mistakes / rows}
        if test_rows > 0:
            found |= {"test error": test_mistakes / test_rows, "test mean accuracy": accuracy / self._parties}
        if levels.sum() > 0:  # only parties with test rows count themselves at a level
            found |= {
                "test mean accuracy": accuracy / float(levels.sum()),
                "test bottom-decile accuracy": bottom_decile(levels),
            }
        if averaged:
            judged = "test" if test_rows > 0 else "validation"
            found |= {f"{judged} {name}": value for name, value in party_averages(total[counted:-1]).items()}
        found["disagreement"] = max(float(total[-1]), 0.0) / self._parties
        return found | ({"hyper-gradient norm": sqrt(max(squared, 0.0))} if self._train.has_hyper else {})


def check_network(spec: RunSpec, _: LabelAccess, __: CommonRows) -> None:
    """Refuse a network in which nothing that some party sends could ever reach some other one."""
    train = spec.settings(HgpSpec)
    if isinstance(train.task, PersonalisationSpec) and train.task.method == "local":
        return
    plan = plan_of(train.network, [entry.name for entry in spec.parties], spec.seed)
    steps = min(train.steps_per_iteration * train.outer.steps, CHECKED_STEPS)
    check_strongly_connected(plan, window=train.network.window, steps=steps)


def bottom_decile(levels: NDArray[np.float64]) -> float:
    """The tenth percentile over parties of their accuracies, to 1/400, from how many there are at each level."""
    accuracies = np.repeat(np.arange(len(levels)) / ACCURACY_LEVELS, levels.astype(np.int64))
    return float(np.quantile(accuracies, 0.1))


def foretell(spec: RunSpec, _: LabelAccess, widths: Widths) -> Forecast | None:
    """What the rounds carry: ranges of steps and sums of measures; a model over every link of every step."""
    train = spec.settings(HgpSpec)
    if train.delivery == "robust":
        return None  # what is lost is sent again
    task, columns = train.task, max(widths_of(widths, [entry.name for entry in spec.parties]))
    personal = isinstance(task, PersonalisationSpec)
    size, links = columns, 0.0
    if isinstance(task, PersonalisationSpec):
        size = network_size((columns, *task.hidden, len(task.classes)))
        size *= task.components if task.method == "hgp_mtl" else 1
    if not (isinstance(task, PersonalisationSpec) and task.method == "local"):
        plan = plan_of(train.network, [entry.name for entry in spec.parties], spec.seed)
        links = links_per_step(plan, train.steps_per_iteration * train.outer.steps)
    outer, ranges = train.outer.steps, sum(ceil(n / train.stretch) for n in (train.inner_steps, train.hyper_steps))
    sent = outer * train.steps_per_iteration * links * (8 * size + MESSAGE_BYTES)
    summed = MEASURES + (ACCURACY_LEVELS + 1 if personal else 0)
    summed += 2 * len(AVERAGED) if spec.evaluation.averages else 0
    return [
        Trips(outer * ranges, between=sent / (outer * ranges)),
        Trips(evaluations(outer, spec.evaluate_every), 0.0, summed, 8),
        kept(outer, spec.checkpoint_every, last=False),
    ]


ALGORITHM = CoordinatorAlgorithm(PROTOCOL, HgpProgram, check_network, forecast=foretell)
