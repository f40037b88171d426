"""What the clock of a decentralised run sends, and the network that everybody derives from the spec.

The coordinator sends ranges of steps and gets acknowledgements and secure sums of measures; vectors pass between
parties only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from parley.numerics.networks import NetworkKind, NetworkPlan
from parley.protocols.decentralised.settings import NetworkSpec
from parley.protocols.rounds import PhasedRound

Phase = Literal["train", "hyper_gradient", "agent_steps", "evaluate", "checkpoint", "finish"]
ACCURACY_LEVELS = 200
"""A party of a personalisation run counts itself at its accuracy, in steps of 1/200: the sum says how many parties
are at each level, and of none which."""


@dataclass(frozen=True)
class StepRange(PhasedRound):
    """An instruction to all parties: steps first … last−1 of a phase, or a phase without steps."""

    summed_phases = ("evaluate",)
    phase: Phase
    first: int = 0
    last: int = 0


@dataclass(frozen=True)
class PeerTraffic:
    """How much one party has sent to its neighbours; nothing of its data."""

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
