"""Ridge regression at the coordinator: it sees sums over all parties, and solves. No network, no rows."""

from collections.abc import Generator
from typing import Any

import numpy as np

from federated_ridge.codec import PROTOCOL, decode_contribution, encode_instruction
from federated_ridge.messages import RidgeRound
from federated_ridge.settings import RidgeSpec
from parley.coordinator.labels import LabelAccess
from parley.coordinator.programs import CoordinatorAlgorithm, LabelFreeProgram, Observer, Report, due
from parley.numerics.arrays import Vector
from parley.spec.run import RunSpec


class RidgeProgram(LabelFreeProgram):
    """A run: the rounds, and how they look on the wire."""

    outputs, finish = 1, RidgeRound("finish", 1)
    encode, decode = staticmethod(encode_instruction), staticmethod(decode_contribution)

    def __init__(self, spec: RunSpec, _: LabelAccess) -> None:
        self._spec, self._train = spec, spec.settings(RidgeSpec)

    def rounds(self, done: int, observe: Observer) -> Generator[RidgeRound, Any, None]:
        """Every round from iteration `done` + 1 on; what is yielded is asked, and its sum comes back."""
        solution = None
        if done == 0:
            solution = solve((yield RidgeRound("moments")), self._train.penalty)
            if due(1, self._spec.checkpoint_every):
                yield RidgeRound("checkpoint", 1, coefficients=solution)
                solution = None  # the parties have it
        squares, rows = yield RidgeRound("evaluate", coefficients=solution)
        observe(Report(1, {"test error": squares / rows} if rows else {}))
        yield self.finish


def solve(moments: Vector, penalty: float) -> Vector:
    """Weights and intercept that minimise the mean squared error + penalty ‖w‖², from ΣZᵀZ of all parties."""
    size = round(moments.size**0.5)
    sums = moments.reshape(size, size)
    gram, with_target, rows = sums[:-1, :-1], sums[:-1, -1], sums[-2, -2]
    ridge = np.diag([rows * penalty] * (size - 2) + [0.0])
    solution: Vector = np.linalg.solve(gram + ridge, with_target)
    return solution


ALGORITHM = CoordinatorAlgorithm(PROTOCOL, RidgeProgram)
