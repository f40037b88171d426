"""Ridge regression at a party: its rows stay here, and their moments leave in a secure sum.

Z = [features, 1, target]; ZᵀZ holds the Gram matrix, the moments with the target and the number of rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from federated_ridge.codec import PROTOCOL, encode_contribution
from federated_ridge.messages import RidgeRound
from parley.numerics.arrays import Vector
from parley.numerics.streams import stream
from parley.party.roles import Begun, Coverage, Offer, Opened, PartyAlgorithm, Plan, scalar
from parley.protocols.rounds import MEASURE_UNIT
from parley.protocols.tensor.codec import MessageInvalid
from parley.spec.rows import RowSets, divide
from parley.spec.run import RunSpec
from parley.tables.loading import id_digest


@dataclass(frozen=True)
class State:
    """The party between two rounds."""

    coefficients: Vector
    k: int = 0
    """Iterations that are in them."""


class RidgeRole:
    """Moments, then errors, then the model."""

    encode = staticmethod(encode_contribution)

    def __init__(self, begun: Begun) -> None:
        self._training, self._held_out = rows_of(begun.opened)

    def begin(self, checkpoint: Mapping[str, Tensor] | None) -> State:
        """Nothing learnt, or what a checkpoint holds."""
        if checkpoint is None:
            return State(np.zeros(self._training.shape[1] - 1))
        return State(checkpoint["coefficients"].numpy(), int(checkpoint["k"]))

    def plan(self, state: State, asked: RidgeRound) -> Plan:
        """Take coefficients if there are some, then do what the phase asks; the session keeps the new state."""
        if asked.coefficients is not None:
            if asked.coefficients.shape != state.coefficients.shape:
                raise MessageInvalid(f"{state.coefficients.size} coefficients are expected")
            state = State(asked.coefficients, k=1)
        match asked.phase:
            case "moments":
                return Plan(state, draft=(self._training.T @ self._training).ravel() / MEASURE_UNIT)
            case "evaluate":
                errors = self._held_out[:, :-1] @ state.coefficients - self._held_out[:, -1]
                return Plan(state, draft=np.array([errors @ errors, len(errors)]) / MEASURE_UNIT)
            case "checkpoint":
                return Plan(state, checkpoint=state.k)
        return Plan(state, finished=True)

    def tensors(self, state: State) -> dict[str, Tensor]:
        """What a checkpoint holds."""
        return {**self.model_tensors(state), "k": scalar(state.k)}

    def model_tensors(self, state: State) -> dict[str, Tensor]:
        """What the saved model holds."""
        return {"coefficients": torch.tensor(state.coefficients)}


def row_sets(spec: RunSpec, index: int, rows: int) -> RowSets:
    """Which of a party's rows train, and which are held out."""
    return divide(spec.split, rows, stream(spec.seed, f"federated_ridge/{spec.parties[index].name}/split"))


def rows_of(opened: Opened) -> tuple[Vector, Vector]:
    """Z of the training rows and of the held-out ones."""
    rows, ones = row_sets(opened.spec, opened.index, len(opened.table)), np.ones(len(opened.table))
    z = np.column_stack([opened.table.features, ones, opened.labels(kind="real").values])
    return z[rows.trained], z[rows.test]


def accept(opened: Opened) -> Offer:
    """Refuse, before a run begins, a table without targets or with too few rows; foretell what the sums cover."""
    training, held_out = rows_of(opened)
    # Moments of rows that differ by one differ by that row: whatever the seed is, another choice of rows is told.
    drawn = id_digest(opened.table.ids[row_sets(opened.spec, opened.index, len(opened.table)).trained])
    rows, evaluated = len(training), len(held_out) or None
    covered = Coverage(rows=rows, batch=rows, sums=1, evaluated=evaluated, seeded=False, drawn=drawn)
    return Offer(coverage=covered)


ALGORITHM = PartyAlgorithm(
    PROTOCOL, accept, RidgeRole, training_rows=lambda spec, index, rows: row_sets(spec, index, rows).trained
)
