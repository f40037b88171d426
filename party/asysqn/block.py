"""AsySQN at a party: its block of the run, with the rows and labels it trains on.

Q. Zhang et al.: AsySQN, KDD 2021, Algorithms 3 to 5. The steps are in `party.asysqn`; this module puts a party's own
rows, labels and names of batches around them, the same for the asynchronous and the synchronous schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from parley.numerics.gradient_estimators import Features, Rows
from parley.numerics.linear_losses import LinearLoss, slopes_at, slopes_from_derivative
from parley.party.asysqn import steps as asysqn
from parley.protocols.asysqn.messages import AllRows, Batch, Derivative, Evaluate, Outcome, RowsName

Vector = NDArray[np.float64]


class LabelsNotHere(LookupError):
    """A sum of θ came to a party that has no labels to make a slope from."""


class RowsNotThere(ValueError):
    """Rows were asked for that this party's table does not have."""


@dataclass(frozen=True)
class Block:
    """One party's block. Runs at the party; nothing here leaves but through a gate."""

    settings: asysqn.Settings
    data: asysqn.PartyData
    """Training rows."""
    watched: Features
    """Watched training rows, then held-out rows: what the coordinator looks at."""
    table: Features
    """Every row, for predictions."""
    loss: LinearLoss
    labels: Vector | None
    """Labels of the training rows, where the parties hold them."""
    names: Sequence[str]
    """All parties, in the order of their blocks."""

    @property
    def rows(self) -> int:
        """Training rows n."""
        return int(self.data.features.shape[0])

    def next_rows(self, state: asysqn.State) -> RowsName:
        """The rows of this party's next sum: all of them where a snapshot is due."""
        return asysqn.rows_due(self.settings, state)

    def row_numbers(self, requester: int, name: Batch) -> Rows:
        """The rows of a requester's batch; of everybody's where the schedule is synchronous."""
        return asysqn.rows_of(self.settings, self.data, self.names[requester], name)

    def share(self, state: asysqn.State, requester: int, name: RowsName) -> Vector:
        """θ_I^ℓ of one request."""
        rows = None if isinstance(name, AllRows) else self.row_numbers(requester, name)
        return asysqn.partial_theta(self.settings, self.data, state, rows)

    def shares(self, state: asysqn.State, requests: Sequence[tuple[int, RowsName]]) -> list[Vector]:
        """θ_I^ℓ of several requests at one w, the batches among them in one product."""
        batches = [self.row_numbers(who, name) for who, name in requests if isinstance(name, Batch)]
        parts: list[Vector] = []
        if batches:
            whole = asysqn.partial_theta(self.settings, self.data, state, np.concatenate(batches))
            parts = np.split(whole, np.cumsum([len(rows) for rows in batches])[:-1])
        answers = iter(parts)
        return [
            next(answers) if isinstance(name, Batch) else asysqn.partial_theta(self.settings, self.data, state)
            for _, name in requests
        ]

    def advance(
        self, state: asysqn.State, requester: int, name: RowsName, outcome: Outcome, *, damp: float = 1.0
    ) -> asysqn.State:
        """Take a snapshot or make a step from the sum (or the slopes) of the rows named; `damp` shortens the step."""
        settings = replace(self.settings, step_size=damp * self.settings.step_size)
        values = np.asarray(outcome.values, dtype=np.float64)
        if isinstance(name, AllRows):
            slope = values if isinstance(outcome, Derivative) else self._slope(values, None)
            return asysqn.take_snapshot(settings, self.data, state, slope)
        rows = self.row_numbers(requester, name)
        if isinstance(outcome, Derivative):
            slopes = slopes_from_derivative(self.loss, values)
        else:
            slopes = slopes_at(self.loss, values, self._labels(rows))
        return asysqn.update(settings, self.data, state, rows, slopes)

    def evaluated(self, state: asysqn.State, ask: Evaluate) -> Vector:
        """What the coordinator watches: θ^ℓ and ‖w_ℓ‖²; or θ^ℓ of rows to predict."""
        if ask.rows == "watched":
            theta = self.watched @ state.weights
            return np.append(theta, asysqn.squared_norm(state))
        last = ask.first + ask.count
        if last > self.table.shape[0]:
            raise RowsNotThere(f"rows {ask.first} to {last} asked for; the table has {self.table.shape[0]}")
        return np.asarray(self.table[ask.first : last] @ state.weights)

    def _slope(self, theta: Vector, rows: Rows | None) -> Vector:
        return self.loss.derivative(theta, self._labels(rows))

    def _labels(self, rows: Rows | None) -> Vector:
        if self.labels is None:
            raise LabelsNotHere("this party has no labels: the coordinator must send ∂L/∂θ (labels_at: coordinator)")
        return self.labels if rows is None else self.labels[rows]
