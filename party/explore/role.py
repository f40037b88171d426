"""Exploring behind a party's session."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from parley.numerics.streams import stream
from parley.party.explore.steps import OF_A_BIN, SUMMARY, Columns, Figures, explore
from parley.party.roles import Begun, Coverage, Offer, Opened, PartyAlgorithm, Plan, SavedModel, scalar
from parley.privacy.coefficients import Coefficient
from parley.protocols.explore.codec import PROTOCOL, encode_contribution
from parley.protocols.explore.messages import ExploreRound, ReleasedLabels
from parley.protocols.explore.settings import ExploreSpec
from parley.protocols.tensor.codec import MessageInvalid
from parley.spec.rows import RowSets, divide
from parley.spec.run import RunSpec
from parley.tables.loading import id_digest


@dataclass(frozen=True)
class State:
    """What was found; None before."""

    figures: Figures | None = None


class ExploreRole:
    """Makes the figures when it is asked to keep them."""

    encode = staticmethod(encode_contribution)

    def __init__(self, columns: Columns, settings: ExploreSpec) -> None:
        self._columns, self._settings = columns, settings

    def begin(self, checkpoint: Mapping[str, Tensor] | None) -> State:
        """Nothing found, or what a checkpoint holds."""
        if checkpoint is None:
            return State()
        return State(Figures(checkpoint["summary"].numpy(), checkpoint["bins"].numpy()))

    def plan(self, state: State, asked: ExploreRound) -> Plan:
        """Make the figures in the first round, and keep them."""
        if state.figures is None:
            state = State(self._explored(asked))
        elif asked.labels is not None:
            raise MessageInvalid("the figures are made: labels come with the first round")
        if asked.phase == "checkpoint":
            if asked.k != 1:
                raise MessageInvalid("there is one iteration")
            return Plan(state, checkpoint=1)
        return Plan(state, finished=True)

    def _explored(self, asked: ExploreRound) -> Figures:
        settings, labels = self._settings, asked.labels
        if (labels is not None) != settings.against_label:
            raise MessageInvalid("labels come if, and only if, the spec says `against_label`")
        if labels is not None and len(labels.classes) != len(self._columns.reference):
            raise MessageInvalid(f"{len(self._columns.reference)} labels are expected")
        if labels is not None and _fewest(labels) < settings.smallest_cell:
            # Evidence for a class of few rows tells in which bins they are.
            raise MessageInvalid(
                f"labels: no class may have fewer rows than `smallest_cell`, {settings.smallest_cell}: lower it as far "
                "as owners' `minimum_batch` goes, explore more rows, or leave `against_label` out"
            )
        return explore(self._columns, settings.bins, settings.smallest_cell, labels)

    def tensors(self, state: State) -> dict[str, Tensor]:
        """What a checkpoint holds."""
        return self.model_tensors(state) | {"k": scalar(1)}

    def model_tensors(self, state: State) -> dict[str, Tensor]:
        """The figures."""
        if state.figures is None:
            raise MessageInvalid("nothing is found yet")
        return {"summary": torch.tensor(state.figures.summary), "bins": torch.tensor(state.figures.bins)}


def _fewest(labels: ReleasedLabels) -> int:
    """Rows of the rarer class."""
    ones = int(np.count_nonzero(labels.classes))
    return min(ones, len(labels.classes) - ones)


def row_sets(spec: RunSpec, rows: int) -> RowSets:
    """Which rows are explored, and which they are compared with."""
    return divide(spec.split, rows, stream(spec.seed, "split"))


def columns_of(opened: Opened) -> Columns:
    """The table as the run sees it, in the units that its owner wrote."""
    table, rows = opened.table, row_sets(opened.spec, len(opened.table))
    values = np.array(table.features, dtype=np.float64)
    scales = {} if table.fitted is None else {one.column: (one.shift, one.scale) for one in table.fitted.numbers}
    for number, column in enumerate(table.columns):
        shift, scale = scales.get(column, (0.0, 1.0))
        values[:, number] = values[:, number] * scale + shift
    absent = np.array([table.missing.get(column, 0) for column in table.columns], dtype=np.float64)
    few = (absent > 0) & (absent < opened.spec.settings(ExploreSpec).smallest_cell)
    return Columns(values[rows.trained], values[rows.test], np.where(few, np.nan, absent / max(1, len(table))))


def role(begun: Begun) -> ExploreRole:
    """The role of a run."""
    return ExploreRole(columns_of(begun.opened), begun.spec.settings(ExploreSpec))


def accept(opened: Opened) -> Offer:
    """What the figures cover."""
    rows = row_sets(opened.spec, len(opened.table))
    settings, explored = opened.spec.settings(ExploreSpec), len(rows.trained)
    sets = [id_digest(opened.table.ids[chosen]) for chosen in (rows.trained, rows.test)]
    drawn = f"{settings.bins} bins of {settings.smallest_cell} of {sets[0]}, beside {sets[1]}"
    covered = Coverage(explored, min(settings.smallest_cell, explored), sums=0, drawn=drawn, figures=True)
    return Offer(coverage=covered)


def training_rows(spec: RunSpec, index: int, rows: int) -> NDArray[np.int64]:  # noqa: ARG001 (the same at every party)
    """The rows that are explored."""
    return row_sets(spec, rows).trained


def figures(model: SavedModel, columns: Sequence[str]) -> list[Coefficient]:
    """Every figure that was found, by column."""
    if "summary" not in model:
        return []
    found: list[Coefficient] = []
    for column, summary, bins in zip(columns, model["summary"].numpy(), model["bins"].numpy(), strict=True):
        named = dict(zip(SUMMARY, summary, strict=True))
        for number, values in enumerate(bins, 1):
            named |= {f"bin {number} {name}": value for name, value in zip(OF_A_BIN, values, strict=True)}
        found += [Coefficient(column, float(value), figure=name) for name, value in named.items() if value == value]
    return found


ALGORITHM = PartyAlgorithm(PROTOCOL, accept, role, training_rows=training_rows, coefficients=figures)
