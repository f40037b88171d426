"""LDP-DSBO at the coordinator: a clock, and nothing else."""

from collections.abc import Generator
from math import ceil
from typing import Any

from parley.coordinator.clock import Clock, links_per_step
from parley.coordinator.forecasts import Forecast, Trips, Widths, kept, widths_of
from parley.coordinator.labels import LabelAccess
from parley.coordinator.programs import CommonRows, CoordinatorAlgorithm, Observer, Report, due
from parley.numerics.networks import check_strongly_connected, gossip_weights, links
from parley.protocols.decentralised.messages import StepRange, plan_of
from parley.protocols.ldp_dsbo.codec import PROTOCOL
from parley.protocols.ldp_dsbo.settings import LdpDsboSpec, MetaLearningSpec
from parley.spec.run import RunSpec

MESSAGE_BYTES = 33
"""What a message between parties holds beside its vectors."""


class LdpDsboProgram(Clock):
    """The clock of LDP-DSBO. Nothing is evaluated: a measure without noise would cost ε that nobody accounts for."""

    outputs = 2

    def __init__(self, parties: int, iterations: int, *, stretch: int, checkpoint_every: int = 0) -> None:
        super().__init__(parties)
        self._iterations, self._stretch, self._checkpoint_every = iterations, stretch, checkpoint_every

    def rounds(self, done: int, observe: Observer) -> Generator[StepRange, Any, None]:
        """Every range of steps from step `done` on; a range ends at each checkpoint."""
        at, end, every = done, self._iterations, self._checkpoint_every
        while at < end:
            last = min(at + self._stretch, end, *((every * (at // every + 1),) if every else ()))
            yield StepRange("agent_steps", 0, at, last)
            at = last
            observe(Report(at, self.traffic()))
            if at < end and due(at, every):
                yield StepRange("checkpoint", at)
        yield self.finish


def program(spec: RunSpec, _: LabelAccess) -> LdpDsboProgram:
    """The program of a run."""
    train = spec.settings(LdpDsboSpec)
    return LdpDsboProgram(
        len(spec.parties), train.iterations, stretch=train.stretch, checkpoint_every=spec.checkpoint_every
    )


def check_network(spec: RunSpec, _: LabelAccess, __: CommonRows) -> None:
    """Refuse a network in which nothing that some party sends could ever reach some other one."""
    train = spec.settings(LdpDsboSpec)
    plan = plan_of(train.network, [entry.name for entry in spec.parties], spec.seed)
    check_strongly_connected(plan, window=1, steps=1)
    gossip_weights(links(plan, 0), train.weight)


def foretell(spec: RunSpec, _: LabelAccess, widths: Widths) -> Forecast:
    """What the rounds carry: ranges of steps; at each step three vectors over every link."""
    train, every = spec.settings(LdpDsboSpec), spec.checkpoint_every
    columns, task = max(widths_of(widths, [entry.name for entry in spec.parties])), train.task
    rows = 1 if len(train.classes) == 2 else len(train.classes)  # of the model's matrix
    sizes = (1 + 2 * rows) * columns
    if isinstance(task, MetaLearningSpec):
        sizes = task.embedding * (columns + 2 * task.tasks)
    full, rest = divmod(train.iterations, every) if every else (0, train.iterations)
    ranges = full * ceil(every / train.stretch) + ceil(rest / train.stretch)
    links = links_per_step(plan_of(train.network, [entry.name for entry in spec.parties], spec.seed), 1)
    sent = train.iterations * links * (8 * sizes + MESSAGE_BYTES)
    return [Trips(ranges, between=sent / ranges), kept(train.iterations, every, last=False)]


ALGORITHM = CoordinatorAlgorithm(PROTOCOL, program, check_network, forecast=foretell)
