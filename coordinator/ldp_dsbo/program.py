"""LDP-DSBO at the coordinator: a clock, and nothing else."""

from collections.abc import Generator
from typing import Any

from parley.coordinator.clock import Clock
from parley.coordinator.labels import LabelAccess
from parley.coordinator.programs import CommonRows, CoordinatorAlgorithm, Observer, Report, due
from parley.numerics.networks import check_strongly_connected, gossip_weights, links
from parley.protocols.decentralised.messages import StepRange, plan_of
from parley.protocols.ldp_dsbo.codec import PROTOCOL
from parley.protocols.ldp_dsbo.settings import LdpDsboSpec
from parley.spec.run import RunSpec


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


ALGORITHM = CoordinatorAlgorithm(PROTOCOL, program, check_network)
