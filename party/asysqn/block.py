"""AsySQN at a party: its block of the run, with the rows and labels it trains on.

Q. Zhang et al.: AsySQN, KDD 2021, Algorithms 3 to 5. The steps are in `party.asysqn.steps`; this module puts a party's
own rows, labels and names of batches around them, the same for the asynchronous and the synchronous schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from parley.numerics.gradient_estimators import Estimator, Features, Rows, as_features
from parley.numerics.lbfgs import Damping, DampingMode, Scale
from parley.numerics.linear_losses import LinearLoss, loss_named, slopes_at, slopes_from_derivative
from parley.numerics.streams import stream
from parley.party.asysqn import steps as asysqn
from parley.party.roles import Opened
from parley.privacy.aggregation import ring_of
from parley.protocols.asysqn.batches import watched_rows
from parley.protocols.asysqn.messages import AllRows, Batch, Derivative, Evaluate, Outcome, RowsName
from parley.protocols.asysqn.settings import AsysqnSpec
from parley.spec.rows import divide
from parley.tables.errors import RowsDiffer, TableUnknown

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
        return asysqn.partial_theta(self.data, state, rows)

    def shares(self, state: asysqn.State, requests: Sequence[tuple[int, RowsName]]) -> list[Vector]:
        """θ_I^ℓ of several requests at one w, the batches among them in one product."""
        batches = [self.row_numbers(who, name) for who, name in requests if isinstance(name, Batch)]
        parts: list[Vector] = []
        if batches:
            whole = asysqn.partial_theta(self.data, state, np.concatenate(batches))
            parts = np.split(whole, np.cumsum([len(rows) for rows in batches])[:-1])
        answers = iter(parts)
        return [
            next(answers) if isinstance(name, Batch) else asysqn.partial_theta(self.data, state) for _, name in requests
        ]

    def advance(
        self, state: asysqn.State, requester: int, name: RowsName, outcome: Outcome, damp: float = 1.0
    ) -> asysqn.State:
        """Take a snapshot or make a step from the sum (or the slopes) of the rows named; `damp` shortens the step."""
        settings = replace(self.settings, step_size=damp * self.settings.step_size)
        values = np.asarray(outcome.values, dtype=np.float64)
        if isinstance(name, AllRows):
            given = isinstance(outcome, Derivative)
            derivatives = values if given else self.loss.derivative(values, self._labels_here)
            return asysqn.take_snapshot(settings, self.data, state, derivatives)
        rows = self.row_numbers(requester, name)
        if isinstance(outcome, Derivative):
            slopes = slopes_from_derivative(self.loss, values)
        else:
            slopes = slopes_at(self.loss, values, self._labels_here[rows])
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

    @property
    def _labels_here(self) -> Vector:
        if self.labels is None:
            raise LabelsNotHere("this party has no labels: the coordinator must send ∂L/∂θ (labels_at: coordinator)")
        return self.labels


def block_of(opened: Opened) -> Block:
    """This party's block of the run."""
    spec, run = opened.spec.settings(AsysqnSpec), opened.spec
    names = [entry.name for entry in run.parties]
    table = as_features(opened.table.features)
    limit = ring_of(run.privacy.aggregation).limit
    settings = asysqn.Settings(
        seed=run.seed,
        estimator=Estimator(spec.estimator),
        direction=asysqn.Direction(spec.direction),
        schedule=asysqn.Schedule(spec.schedule),
        step_size=spec.step_size,
        step_decay=spec.step_decay,
        batch_size=spec.batch,
        regularisation=spec.regularisation,
        damping=Damping(
            spec.curvature.memory,
            DampingMode(spec.curvature.damping),
            spec.curvature.delta,
            Scale(spec.curvature.scale),
        ),
        pair_every=spec.curvature.pair_every,
        snapshot_every=spec.snapshot_every,
        largest_theta=min(2.0**16, limit),
    )
    loss = loss_named(spec.loss)
    if opened.predicts:
        data = asysqn.PartyData(names[opened.index], table)
        return Block(settings, data, table[:0], table, loss, None, names)
    sets = divide(run.split, table.shape[0], stream(run.seed, "split"))
    train = sets.trained
    watched = np.concatenate([watched_rows(run.seed, train, spec.watch_rows), *sets.held_out.values()])
    data = asysqn.PartyData(names[opened.index], as_features(table[train]))
    labels = _labels_of(opened, spec)
    return Block(settings, data, table[watched], table, loss, None if labels is None else labels[train], names)


def _labels_of(opened: Opened, spec: AsysqnSpec) -> Vector | None:
    if spec.labels_at == "coordinator":
        if spec.is_asynchronous and opened.coordinator is None:
            raise TableUnknown("labels_at: coordinator needs the coordinator's address in this party's configuration")
        return None
    table = opened.spec.table_of(opened.index)
    labels = opened.tables.labels(table, kind="real" if spec.loss == "ridge" else "classes")
    if not np.array_equal(labels.ids, opened.table.ids):
        raise RowsDiffer("this party's labels are not about the rows of its table: align them by id")
    if spec.loss == "ridge":
        return np.asarray(labels.values, dtype=np.float64)
    if len(labels.classes) != 2:
        raise RowsDiffer(
            f"the {spec.loss} loss takes two classes, and the labels here have not two: use ridge, or map them"
        )
    return np.where(labels.values == 1, 1.0, -1.0)
