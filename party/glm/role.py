"""Generalised linear models behind a party's session."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from parley.numerics.arrays import Array
from parley.numerics.generalised_linear import inference
from parley.numerics.streams import stream
from parley.party.exports import Dense, Layers
from parley.party.glm import steps
from parley.party.roles import (
    Begun,
    CheckpointMissing,
    Coverage,
    Offer,
    Opened,
    PartyAlgorithm,
    Plan,
    SavedModel,
    scalar,
)
from parley.privacy.coefficients import Coefficient
from parley.protocols.glm.codec import PROTOCOL, encode_contribution
from parley.protocols.glm.messages import GlmRound, Solution, mixtures
from parley.protocols.glm.settings import GlmSpec
from parley.protocols.refusals import Refusal
from parley.protocols.tensor.codec import MessageInvalid
from parley.spec.rows import RowSets, divide
from parley.spec.run import RunSpec
from parley.tables.rows import LocalRows

INTERCEPT = "(intercept)"
_MODEL = ("weights", "standard_errors")
_INFLATION = "inflation"


class ColumnsUnscaled(ValueError):
    """A penalty treats all coefficients alike, and the columns are of very different sizes."""


class GlmRole:
    """Mixtures of the columns once, then the solution; with a trained model, predictions."""

    encode = staticmethod(encode_contribution)

    def __init__(
        self, features: Array | LocalRows, rows: RowSets, block: steps.Block | None, threshold: float = 0.0
    ) -> None:
        """`block` is for training; `threshold` is what shrinks coefficients."""
        self._features, self._rows, self._given, self._threshold = features, rows, block, threshold
        self._trained: SavedModel | None = None

    @classmethod
    def trained(cls, features: Array | LocalRows, model: SavedModel) -> "GlmRole":
        """The role that predicts with a saved model."""
        nothing: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        role = cls(features, RowSets(nothing, nothing, nothing), None)
        role._trained = model
        return role

    def begin(self, checkpoint: Mapping[str, Tensor] | None) -> steps.State:
        """Nothing learnt, or what a checkpoint or a saved model holds."""
        known = self._trained if self._trained is not None else checkpoint
        if known is None:
            size = self._features.shape[1] + self._block.carries_intercept
            return steps.State(np.zeros(size), np.full(size, np.nan), np.full(self._features.shape[1], np.nan))
        weights, errors = (known[name].numpy() for name in _MODEL)
        unknown = torch.full((self._features.shape[1],), float("nan"), dtype=torch.float64)
        inflation = known.get(_INFLATION, unknown).numpy()  # models of old have none
        if len(weights) - self._features.shape[1] not in (0, 1):
            raise CheckpointMissing("the checkpoint belongs to another table: start a new run")
        return steps.State(weights, errors, inflation, float(known["freedom"]), k=1)

    def plan(self, state: steps.State, asked: GlmRound) -> Plan:
        """Take the solution if there is one, then do what the phase asks."""
        match asked.phase:
            case "design":
                return self._design(state, asked)
            case "penalty":
                return Plan(state, draft=steps.penalty(self._block), row_sums=0)
            case "shrink":
                if self._threshold <= 0:
                    raise MessageInvalid("the run's spec shrinks no coefficients (`penalty.l1_ratio` is 0)")
                values = self._checked(asked.solution).values
                new, told = steps.shrink(self._block, state, values, asked.tie, self._threshold)
                return Plan(new, draft=told, row_sums=0)
        if asked.solution is not None:
            state = steps.solved(self._block, state, self._checked(asked.solution))
        match asked.phase:
            case "evaluate" | "predict":
                rows = self._rows.measured if asked.phase == "evaluate" else np.arange(len(self._features))
                chosen = _slice(rows, asked)
                return Plan(state, draft=steps.linear_predictor(self._features[chosen], state.weights))
            case "checkpoint":
                if asked.k != state.k:
                    raise MessageInvalid(f"{state.k} iterations are in the state, not {asked.k}")
                return Plan(state, checkpoint=asked.k)
        return Plan(state, finished=True)

    def cost_class(self, asked: GlmRound) -> Hashable:
        """Rounds of one phase over as many rows take about the same time."""
        return asked.cost_class

    def tensors(self, state: steps.State) -> dict[str, Tensor]:
        """What a checkpoint holds."""
        return {**self.model_tensors(state), "k": scalar(state.k)}

    def model_tensors(self, state: steps.State) -> dict[str, Tensor]:
        """What the saved model holds."""
        return {
            "weights": torch.tensor(state.weights),
            "standard_errors": torch.tensor(state.standard_errors),
            _INFLATION: torch.tensor(state.inflation),
            "freedom": torch.tensor(state.freedom, dtype=torch.float64),
        }

    @property
    def _block(self) -> steps.Block:
        if self._given is None:
            raise MessageInvalid("a session that predicts trains nothing")
        return self._given

    def _design(self, state: steps.State, asked: GlmRound) -> Plan:
        """Each training row once in a session: asked for twice, its mixtures would be counted once."""
        block = self._block
        if asked.first != state.summed or not 0 < asked.count <= len(block.basis) - state.summed:
            raise MessageInvalid(f"mixtures are summed in order, and those of {state.summed} rows are")
        draft = steps.design(block, asked.first, asked.count).ravel()
        moved = replace(state, summed=asked.first + asked.count)
        return Plan(moved, draft=draft, row_sums=block.mixtures if asked.first == 0 else 0)

    def _checked(self, solution: Solution | None) -> Solution:
        size = self._block.mixtures + 1
        if solution is None or solution.values.shape != (size,):
            raise MessageInvalid(f"a solution of {size} numbers is expected")
        for square in (solution.covariance, solution.inverse_gram):
            if square is not None and square.shape != (size, size):
                raise MessageInvalid(f"a covariance of {size} × {size} numbers is expected")
        return solution


def _slice(rows: NDArray[np.int64], asked: GlmRound) -> NDArray[np.int64]:
    if asked.first + asked.count > len(rows) or asked.count < 1:
        raise MessageInvalid(f"there are {len(rows)} such rows")
    return rows[asked.first : asked.first + asked.count]


def role(begun: Begun) -> GlmRole:
    """The role in a session that trains."""
    opened, settings = begun.opened, begun.spec.settings(GlmSpec)
    features, rows = _features(opened), opened.row_sets
    if opened.privacy is None:
        raise ColumnsUnscaled("this party has no key of its own to mix columns with")
    noise, mixed = opened.privacy().noise, mixtures(sum(begun.upper_sizes))
    first = begun.index == 0
    trained = steps.MappedRows(features, rows.trained) if isinstance(features, LocalRows) else features[rows.trained]
    block = steps.block(
        trained, noise, opened.run_id, opened.name, mixed, carries_intercept=first, least=_least(settings)
    )
    if settings.penalty.strength:
        _check_scale(block)
    return GlmRole(features, rows, block, settings.penalty.strength * settings.penalty.l1_ratio)


def predictor(begun: Begun, trained: SavedModel) -> GlmRole:
    """The role in a session that predicts."""
    return GlmRole.trained(LocalRows(begun.opened.table.features, np.float64), trained)


def _features(opened: Opened) -> Array | LocalRows:
    """Rows in memory, or those of a file, which are read a shard at a time."""
    if opened.table.files is not None:
        return LocalRows(opened.table.features, np.float64)
    return np.ascontiguousarray(opened.table.features, dtype=np.float64)


def _least(settings: GlmSpec) -> float:
    """From where on a column counts as independent of the others."""
    return steps.NEARLY_DEPENDENT if settings.penalty.strength else steps.INDEPENDENT


def _check_scale(block: steps.Block) -> None:
    sizes = np.linalg.norm(block.mixing, axis=1) / np.sqrt(block.mixtures)
    sizes = sizes[sizes > 0]
    if sizes.size and (sizes.max() > steps.LARGEST_MIXING or sizes.min() < 1 / steps.LARGEST_MIXING):
        raise ColumnsUnscaled(
            "a `penalty` treats all coefficients alike, and this party's columns are of very different sizes: write "
            "`preprocess: {scale: standard}` for the table"
        )


def accept(opened: Opened) -> Offer:
    """The number of independent columns, and a warning where some are not.

    In all rows, whichever of them the spec trains on: whether a column is constant in rows of its choice would tell who
    opens one session after the other that a row is the odd one.
    """
    if opened.predicts:
        return Offer()
    rows, features = opened.row_sets, _features(opened)
    every = steps.MappedRows(features) if isinstance(features, LocalRows) else features
    kept = steps.independent_columns(every, _least(opened.spec.settings(GlmSpec)))
    size = int(kept.sum())
    covered = Coverage(
        rows=len(rows.trained),
        batch=len(rows.trained),
        sums=mixtures(size),
        evaluated=rows.fewest_held_out,
        rank=size,
    )
    dropped = int((~kept).sum())
    told = f"{dropped} of its columns are constant or depend on others of its own, and get coefficient 0"
    return Offer(size, warnings=(told,) if dropped else (), coverage=covered)


def training_rows(spec: RunSpec, index: int, rows: int) -> NDArray[np.int64]:  # noqa: ARG001 (the same at every party)
    """The rows of either level: there is one level."""
    return divide(spec.split, rows, stream(spec.seed, "split")).trained


def coefficients(model: Mapping[str, Tensor], columns: Sequence[str]) -> list[Coefficient]:
    """Coefficients of a saved model, with standard errors where the run could give them."""
    if "standard_errors" not in model:
        return []
    values, errors = (model[name].numpy() for name in _MODEL)
    names, known = [*columns, INTERCEPT][: len(values)], inference(values, errors, float(model["freedom"]))
    found = zip(names, values, errors, known.p_values, known.low, known.high, strict=True)
    inflation = model[_INFLATION].tolist() if _INFLATION in model else []
    inflated = [
        Coefficient(name, float(one), figure="vif")
        for name, one in zip(names, inflation, strict=False)
        if not np.isnan(one)
    ]
    return inflated + [
        Coefficient(name, float(value))
        if np.isnan(error)
        else Coefficient(name, float(value), float(error), float(p), float(low), float(high))
        for name, value, error, p, low, high in found
    ]


def exported(_: RunSpec, index: int, model: SavedModel) -> Layers:
    """One affine map: the weights, and the intercept at the party that carries it."""
    weights = model["weights"].numpy()[:, None]
    return [Dense(weights[:-1], weights[-1]) if index == 0 else Dense(weights)]


ALGORITHM = PartyAlgorithm(
    PROTOCOL,
    accept,
    role,
    predictor=predictor,
    rows_asked=lambda first, count: GlmRound("predict", first=first, count=count),
    refusals={ColumnsUnscaled: Refusal("FAILED_PRECONDITION", "ILL_CONDITIONED")},
    training_rows=training_rows,
    coefficients=coefficients,
    exported=exported,
    maps_rows="always",
)
