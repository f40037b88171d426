"""What the clock of a decentralised run says, and the network that everybody derives from the spec.

The coordinator sends stretches of steps and gets acknowledgements and secure sums of measures; vectors pass between
parties only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from parley.numerics.networks import NetworkKind, NetworkPlan
from parley.protocols.decentralised.settings import NetworkSpec
from parley.protocols.rounds import Answer, Keeps

Phase = Literal["train", "hyper_gradient", "agent_steps", "evaluate", "checkpoint", "finish"]
_KEEPS: dict[Phase, Keeps] = {"checkpoint": "checkpoint", "finish": "model"}
MEASURE_UNIT = 1024
"""Rows in the unit of the measures that parties add up: sums of many rows fit the ring."""
ACCURACY_LEVELS = 200
"""A party of a personalisation run counts itself at its accuracy, in steps of 1/200: the sum says how many parties
are at each level, and of none which."""


@dataclass(frozen=True)
class StepRange:
    """An instruction to all parties: steps first … last−1 of a phase, or a phase without steps."""

    phase: Phase
    k: int
    """Outer iteration; for a checkpoint, the iterations that it contains."""
    first: int = 0
    last: int = 0

    @property
    def label_release(self) -> None:
        """Labels stay with the parties: the coordinator has none to release."""

    @property
    def participants(self) -> None:
        """Every party takes its steps."""

    @property
    def answer(self) -> Answer:
        """Addends of measures, or an acknowledgement."""
        return "sum" if self.phase == "evaluate" else "acknowledge"

    @property
    def iteration(self) -> int:
        """The outer iteration, as people count: from 1."""
        return self.k if self.phase in _KEEPS else self.k + 1

    @property
    def keeps(self) -> Keeps:
        """What the phase makes the parties keep."""
        return _KEEPS.get(self.phase, "nothing")

    @property
    def cost_class(self) -> Phase:
        """Rounds of one phase cost the same."""
        return self.phase


@dataclass(frozen=True)
class PeerTraffic:
    """What one party has said to its neighbours; nothing of its data."""

    party: int
    messages: int
    payload_bytes: int


def plan_of(network: NetworkSpec, parties: Sequence[str], seed: int) -> NetworkPlan:
    """The network's plan: the same at every role."""
    place = {name: index for index, name in enumerate(parties)}
    return NetworkPlan(
        NetworkKind(network.kind),
        size=len(parties),
        seed=seed,
        probability=network.probability,
        degree=network.degree,
        edges=tuple(tuple((place[a], place[b]) for a, b in step) for step in network.edges),
    )
