"""A coordinator service whose algorithm is an average: it sends an array, and averages what comes back.

All else is the product's: mutual TLS, run registry, sessions, gates, codecs and streams.
"""

from collections.abc import Generator
from typing import Any

import numpy as np

from parley.coordinator.bambi import program
from parley.coordinator.programs import CoordinatorAlgorithm
from parley.numerics.arrays import Vector
from parley.privacy.release import OutcomeGate
from parley.protocols.bambi.codec import PROTOCOL
from parley.protocols.bambi.messages import Gradient, LowerForward, Round
from parley.protocols.bambi.settings import BambiSpec
from parley.protocols.rounds import Finish
from parley.services.coordinator.__main__ import main
from parley.services.wire.process import run
from parley.spec.run import RunSpec


class Averaging(program.BambiForm):
    """As many rounds as the spec has warm-up steps, over arrays as long as its lower batch."""

    finish = Round(None, Finish())

    def __init__(self, spec: RunSpec, *_: Any) -> None:
        super().__init__(outputs=1)
        self.gate = OutcomeGate(lambda _: True)  # no label is in what it sends
        lower = spec.settings(BambiSpec).lower
        self._rounds, self._size, self._parties = lower.warmup_steps, lower.batch or 1, len(spec.parties)

    def rounds(self, done: int, observe: Any) -> Generator[Round, Vector, None]:  # noqa: ARG002
        """Send, average, send the average."""
        array = np.zeros(self._size, np.float32)
        for number in range(self._rounds):
            total = yield Round(Gradient(theta=array.reshape(1, 1, -1)), LowerForward(0, number))
            array = (total / self._parties).astype(np.float32)
        yield self.finish


if __name__ == "__main__":
    program.ALGORITHM = CoordinatorAlgorithm(PROTOCOL, Averaging)
    run(main, __doc__)
