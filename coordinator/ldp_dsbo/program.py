"""LDP-DSBO at the coordinator: a clock, and nothing else."""

from collections.abc import Generator
from typing import Any

from parley.coordinator.clock import Clock, due
from parley.coordinator.labels import LabelAccess
from parley.coordinator.programs import CommonRows, CoordinatorAlgorithm, Observer, Report
from parley.numerics.networks import check_strongly_connected, gossip_weights, links
from parley.protocols.decentralised.messages import StepRange, plan_of
from parley.protocols.ldp_dsbo.codec import PROTOCOL
from parley.protocols.ldp_dsbo.settings import LdpDsboSpec
from parley.spec.run import RunSpec


class LdpDsboProgram(Clock):
    """The clock of LDP-DSBO. Nothing is evaluated: a measure without noise would cost ε that nobody accounts for."""

    outputs = 2

    def __init__(self, spec: RunSpec, _: LabelAccess) -> None:
        super().__init__(len(spec.parties))
        self._spec, self._train = spec, spec.settings(LdpDsboSpec)

    def rounds(self, done: int, observe: Observer) -> Generator[StepRange, Any, None]:
        """Every stretch of the run from step `done` on; stretches end at checkpoints."""
        at, end, every = done, self._train.iterations, self._spec.checkpoint_every
        while at < end:
            last = min(at + self._train.stretch, end, *((every * (at // every + 1),) if every else ()))
            yield StepRange("agent_steps", 0, at, last)
            at = last
            observe(Report(at, self.traffic()))
            if at < end and due(at, every):
                yield StepRange("checkpoint", at)
        yield self.finish


def check_network(spec: RunSpec, _: LabelAccess, __: CommonRows) -> None:
    """Refuse a network over which some party could never hear from some other one."""
    train = spec.settings(LdpDsboSpec)
    plan = plan_of(train.network, [entry.name for entry in spec.parties], spec.seed)
    check_strongly_connected(plan, window=1, steps=1)
    gossip_weights(links(plan, 0), train.weight)


ALGORITHM = CoordinatorAlgorithm(PROTOCOL, LdpDsboProgram, check_network)
