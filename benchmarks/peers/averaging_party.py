"""A party service whose algorithm is a mirror: it contributes the array that it was sent.

All else is the product's: mutual TLS, sessions, replay protection, gates, codecs and streams.
"""

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
from torch import Tensor

from parley.party.bambi.role import Instruction
from parley.party.roles import Algorithm, Place, Plan
from parley.privacy.release import Addend, Release
from parley.protocols.bambi.codec import decode_instruction, encode_contribution
from parley.protocols.bambi.messages import Gradient
from parley.protocols.bambi.settings import BambiSpec
from parley.protocols.rounds import Finish
from parley.services.party import sessions
from parley.services.party.__main__ import main
from parley.services.wire.process import run


class Mirror:
    """Sends back what it gets."""

    body = "bambi"

    def __init__(self, place: Place) -> None:
        self._size = place.spec.settings(BambiSpec).lower.batch or 1

    def begin(self, checkpoint: Mapping[str, Tensor] | None) -> None:
        """Nothing is kept."""

    def decode(self, message: Any, blobs: Any) -> Instruction:
        """The array that came."""
        return decode_instruction(message, blobs)

    def plan(self, state: None, instruction: Instruction) -> Plan:
        """The same array, as this party's addend."""
        outcome, ask = instruction
        if isinstance(ask, Finish):
            return Plan(state, finished=True)
        if isinstance(outcome, Gradient) and outcome.theta is not None:
            return Plan(state, outcome.theta.reshape(-1))
        return Plan(state, np.zeros(self._size, np.float32))  # the first round brings nothing yet

    def kind(self, instruction: Instruction) -> Hashable:
        """Rounds take about the same time."""
        return type(instruction[1])

    def encode(self, number: int, instruction: Instruction, release: Release[Addend] | None) -> Any:
        """The contribution to a round."""
        return encode_contribution(number, instruction[1], release)

    def tensors(self, state: None) -> dict[str, Tensor]:  # noqa: ARG002
        """Nothing is kept."""
        return {}

    model_tensors = tensors


if __name__ == "__main__":
    sessions.ALGORITHMS = {"bambi": Algorithm(lambda _: 0, Mirror)}
    run(main, __doc__)
