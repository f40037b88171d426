"""BAMBI with a bound for each row (`features: per_sum`): which rounds there are, and which rows each is about.

A round is one lower batch (k, t) or one upper batch k. In it a row adds h_i of all trajectories to the sum, and to the
step that follows s_iᵀθ_i of all trajectories, or its part of both gradients of the upper level (privacy/row_sums.py).
Whatever else a party sends follows from its model.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from parley.numerics.arrays import Array, Vector
from parley.party.bambi.models import EmbeddingModel
from parley.party.roles import Begun, Opened
from parley.privacy.permanent_noise import number_tags, tag_records
from parley.privacy.record_releases import RunTerms
from parley.privacy.row_sums import LookedAtRows, Owner, RowBounds, TrainedRows
from parley.protocols.bambi.batches import lower_rows, upper_rows
from parley.protocols.bambi.settings import BambiSpec
from parley.spec.rows import RowSets
from parley.tables.rows import LocalRows

RoundName = tuple[str, int, int]
"""`lower`, k and t; or `upper`, k and 0."""


class RoundNotDue(ValueError):
    """A round that the run does not have, so that nobody has accounted for it."""


@dataclass(frozen=True)
class NoisedBatches:
    """What a party that trains adds to sums, and learns from its rows."""

    rounds: dict[RoundName, int]
    """Every round of the run, numbered."""
    trained: TrainedRows
    held_out: dict[str, LookedAtRows]

    def addend(self, h: Array, name: RoundName) -> Vector:
        """h_m of a batch, (…, rows, outputs), shortened and noised, in the order that it came in."""
        stacked = np.asarray(h, dtype=np.float64).reshape(-1, *h.shape[-2:])
        by_row = stacked.transpose(1, 0, 2)
        noised = self.trained.addend(by_row.reshape(len(by_row), -1), self._number(name))
        return np.asarray(noised.reshape(by_row.shape).transpose(1, 0, 2).reshape(-1))

    def step(self, parts: Iterable[Vector], batch: int, name: RoundName) -> Vector:
        """Σ of what the rows of a batch add to a step."""
        exact = (np.asarray(part, dtype=np.float64) for part in parts)
        return self.trained.step(exact, batch, self._number(name))

    def looked_at(self, h: Array, name: str, first: int, model: bytes) -> Vector:
        """h_m of some held-out rows, from place `first` of their set on."""
        if name not in self.held_out:
            raise RoundNotDue(f"a run whose rows are noised in each sum is asked for held-out rows alone, not {name}")
        held = self.held_out[name]
        chosen = held.rows[first : first + len(h)]
        return held.addend(np.asarray(h, dtype=np.float64), chosen, model).reshape(-1)

    def rehearse(self) -> None:
        """Refuse what the spec's ε or the owner's budget does not cover."""
        self.trained.releases.rehearse()
        for held in self.held_out.values():
            held.rehearse()

    def _number(self, name: RoundName) -> int:
        if name not in self.rounds:
            raise RoundNotDue(f"round {name} is not due: the run has no such round")
        return self.rounds[name]


@dataclass(frozen=True)
class NoisedPredictions:
    """The same for a party that predicts: one sum about each row that is asked for."""

    rows: LookedAtRows

    def looked_at(self, h: Array, name: str, first: int, model: bytes) -> Vector:  # noqa: ARG002 (all rows are asked)
        """h_m of some rows."""
        chosen = np.arange(first, first + len(h), dtype=np.int64)
        return self.rows.addend(np.asarray(h, dtype=np.float64), chosen, model).reshape(-1)


def noised_batches(opened: Opened, model: EmbeddingModel, outputs: int) -> NoisedBatches:
    """What the spec asks for, calibrated; nothing is charged yet."""
    spec, train = opened.spec, opened.spec.settings(BambiSpec)
    sets = opened.row_sets
    schedule = Schedule(train, sets, spec.seed, len(opened.table))
    owner, bounds = _owner(opened), _bounds(opened)
    copies, weights, columns = train.trajectories, model.out * outputs, train.columns(outputs)
    steps = max(copies * weights, weights + (model.size if train.problem != "hyper_parameters" else 0))
    trained = TrainedRows.of(owner, bounds, schedule.counts, len(schedule.rounds), copies * columns, steps)
    trained.bounds.addends(trained.multiplier).check(spec.privacy.aggregation.resolved[1])
    times = 1 + (max(0, train.run_length - 1) // spec.evaluate_every if spec.evaluate_every else 0)
    held_out = {name: LookedAtRows(owner, bounds, name, rows, times, columns) for name, rows in sets.held_out.items()}
    return NoisedBatches(schedule.rounds, trained, held_out)


def noised_predictions(begun: Begun) -> NoisedPredictions:
    """One model, and whatever rows the session is about."""
    everyone = np.arange(len(begun.opened.table), dtype=np.int64)
    owner, bounds = _owner(begun.opened), _bounds(begun.opened)
    columns = begun.opened.spec.settings(BambiSpec).columns(begun.outputs)
    return NoisedPredictions(LookedAtRows(owner, bounds, "predicted", everyone, 1, columns))


@dataclass(frozen=True)
class Schedule:
    """Every round of a run, and its rows."""

    train: BambiSpec
    sets: RowSets
    seed: int
    rows: int
    """Of the table."""

    @cached_property
    def rounds(self) -> dict[RoundName, int]:
        """Their names, numbered."""
        lower, last = self.train.lower, self.train.upper.steps
        names: list[RoundName] = []
        if self.train.problem == "joint":
            names = [("upper", k, 0) for k in range(1, last + 1)]
        else:
            names += [("lower", 0, t) for t in range(lower.warmup_steps)]
            for k in range(1, last + 1):
                names += [*(("lower", k, t) for t in range(lower.steps)), ("upper", k, 0)]
            names += [("lower", last + 1, t) for t in range(lower.final_steps)]
        return {name: number for number, name in enumerate(names)}

    @property
    def counts(self) -> NDArray[np.int64]:
        """In how many rounds each row of the table is."""
        counts = np.zeros(self.rows, dtype=np.int64)
        for kind, k, t in self.rounds:
            lower = kind == "lower"
            batch = (
                lower_rows(self.train, self.sets, self.seed, k, t)
                if lower
                else upper_rows(self.train, self.sets, self.seed, k)
            )
            counts[batch] += 1
        return counts


def _bounds(opened: Opened) -> RowBounds:
    settings = opened.spec.privacy.features
    terms = RunTerms(settings.epsilon, settings.delta)
    return RowBounds(terms, settings.bound, settings.step_bound, settings.honest)


def _owner(opened: Opened) -> Owner:
    assert opened.privacy is not None  # noqa: S101 (every session has the party's ledger)
    local, table = opened.privacy(), opened.table
    rows = LocalRows(table.features, np.float64)[:] + 0.0
    tags = tag_records(local.noise, f"features/{table.name}", table.ids.tolist(), number_tags(rows))
    return Owner(local.ledger, local.noise, local.rows, opened.run_id, tuple(opened.names), tags)


def model_digest(x: Array, y: Array) -> bytes:
    """Tells models apart."""
    parts = (np.ascontiguousarray(part) for part in (x, y))
    return sha256(b"\0".join(part.tobytes() for part in parts)).digest()
