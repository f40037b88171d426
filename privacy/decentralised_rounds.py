"""What the clock of a decentralised run says, and the network that everybody derives from the spec.

The coordinator sends stretches of steps and gets acknowledgements and secure sums of measures; vectors pass between
parties only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from parley.numerics.networks import NetworkKind, NetworkPlan
from parley.privacy.rounds import Checkpoint, Finish
from parley.spec.decentralised import NetworkSpec

Phase = Literal["train", "hyper_gradient", "agent_steps", "evaluate", "checkpoint", "finish"]
MEASURE_UNIT = 1024
"""Rows in the unit of the measures that parties add up: sums of many rows fit the ring."""
ACCURACY_LEVELS = 200
"""A party of a personalisation run counts itself at its accuracy, in steps of 1/200: the sum says how many parties
are at each level, and of none which."""


@dataclass(frozen=True)
class Stretch:
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
    def ask(self) -> Checkpoint | Finish | None:
        """What a driver must know of the phase."""
        if self.phase == "checkpoint":
            return Checkpoint(self.k)
        return Finish() if self.phase == "finish" else None

    @property
    def summed(self) -> bool:
        """Whether the parties answer with addends (or only acknowledge)."""
        return self.phase == "evaluate"


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
