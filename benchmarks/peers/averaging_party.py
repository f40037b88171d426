"""A party service whose algorithm is a mirror: it contributes the array that it was sent.

All else is the product's: mutual TLS, sessions, replay protection, gates, codecs and streams.
"""

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
from torch import Tensor

from parley.party.bambi import role
from parley.party.bambi.role import Instruction
from parley.party.roles import Begun, Coverage, Offer, Opened, PartyAlgorithm, Plan
from parley.privacy.release import Addend, Release
from parley.protocols.bambi.codec import PROTOCOL, encode_contribution
from parley.protocols.bambi.messages import Gradient
from parley.protocols.bambi.settings import BambiSpec
from parley.protocols.rounds import Finish
from parley.services.party.__main__ import main
from parley.services.wire.process import run


def offer(opened: Opened) -> Offer:
    """What is sent back tells nothing of any row."""
    rows = len(opened.table)
    return Offer(coverage=Coverage(rows=rows, batch=rows, sums=0))


class Mirror:
    """Sends back what it gets."""

    def __init__(self, begun: Begun) -> None:
        self._size = begun.spec.settings(BambiSpec).lower.batch or 1

    def begin(self, checkpoint: Mapping[str, Tensor] | None) -> None:
        """Nothing is kept."""

    def plan(self, state: None, instruction: Instruction) -> Plan:
        """The same array, as this party's addend."""
        outcome, ask = instruction
        if isinstance(ask, Finish):
            return Plan(state, finished=True)
        if isinstance(outcome, Gradient) and outcome.theta is not None:
            return Plan(state, outcome.theta.reshape(-1))
        return Plan(state, np.zeros(self._size, np.float32))  # the first round brings nothing yet

    def cost_class(self, instruction: Instruction) -> Hashable:
        """Rounds take about the same time."""
        return type(instruction[1]).__name__

    def encode(self, number: int, instruction: Instruction, release: Release[Addend] | None) -> Any:
        """The contribution to a round."""
        return encode_contribution(number, instruction[1], release)

    def tensors(self, state: None) -> dict[str, Tensor]:  # noqa: ARG002
        """Nothing is kept."""
        return {}

    model_tensors = tensors


if __name__ == "__main__":
    role.ALGORITHM = PartyAlgorithm(PROTOCOL, offer, Mirror)
    run(main, __doc__)
