"""BAMBI behind a party's session."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import Any

import numpy as np
import torch
from google.protobuf.message import Message
from numpy.typing import NDArray
from scipy.sparse import issparse
from torch import Tensor

import parley.party.bambi.steps as bambi
from parley.numerics.arrays import Array
from parley.numerics.optimisers import Moments
from parley.numerics.problem_errors import ProblemImportRefused, ProblemMisshapen, ProblemNotFinite
from parley.numerics.streams import stream
from parley.party.bambi.export import exported
from parley.party.bambi.local_role import LocalRole, training_loss
from parley.party.bambi.local_rounds import LocalBlock
from parley.party.bambi.lower_system import IllConditioned
from parley.party.bambi.models import (
    EmbeddingModel,
    InvalidModelSize,
    ModelImportRefused,
    ModelShapeMismatch,
    UnknownModel,
    build_model,
)
from parley.party.bambi.own_block import load_block
from parley.party.bambi.row_privacy import RoundNotDue, noised_batches, noised_predictions
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
from parley.privacy.noise import EpsilonOutOfRange
from parley.privacy.noise_shares import GridTooFine
from parley.privacy.release import Addend, Release
from parley.protocols.bambi.codec import PROTOCOL, encode_contribution
from parley.protocols.bambi.messages import Ask, Outcome, RowsForward, is_summed
from parley.protocols.bambi.settings import NEWTON_REPEATS, BambiSpec
from parley.protocols.refusals import Refusal
from parley.protocols.rounds import Checkpoint, Finish
from parley.protocols.tensor.codec import Blobs
from parley.spec.rows import RowSets, divide
from parley.spec.run import RunSpec
from parley.tables.read_ahead import FITS_SHARE, ROOM_SHARE, ReadAheadRows
from parley.tables.rows import LocalRows

_TYPES = {"float32": torch.float32, "float64": torch.float64}
Instruction = tuple[Outcome | None, Ask]


class BambiRole:
    """Training, or (with a trained model) prediction."""

    def __init__(self, block: bambi.Block, trained: SavedModel | None = None) -> None:
        self.block, self._trained = block, trained

    def begin(self, checkpoint: Mapping[str, Tensor] | None) -> bambi.State:
        """x and y anew, from a checkpoint, or as trained."""
        fresh = bambi.start(self.block)
        if self._trained is not None:
            return fresh._replace(x=self._flat_upper(self._trained), y=self._trained["y"].numpy())
        return fresh if checkpoint is None else self._restore(fresh, checkpoint)

    def plan(self, state: bambi.State, instruction: Instruction) -> Plan:
        """Take the outcome, then answer the ask."""
        outcome, ask = instruction
        if outcome is not None:
            state = bambi.apply(self.block, state, outcome)
        if is_summed(ask):
            goes_on = isinstance(ask, RowsForward) and state.looked_up_to == (ask.rows, ask.first)
            state, draft = bambi.contribute(self.block, state, ask)
            if isinstance(ask, RowsForward):
                state = state._replace(looked_up_to=(ask.rows, ask.first + ask.count))
                return Plan(state, draft, row_sums=0 if goes_on else 1, of_every_row=True)
            return Plan(state, draft, row_sums=bambi.sums_of_row(state))
        return Plan(state, checkpoint=ask.k if isinstance(ask, Checkpoint) else None, finished=isinstance(ask, Finish))

    def can_prefetch(self, state: bambi.State) -> bool:
        """Lower rounds follow each other on batches that are known."""
        return bambi.next_lower_batch(self.block, state) is not None

    def prefetch(self, state: bambi.State) -> bambi.State:
        """Embed the next of them."""
        return bambi.prefetch(self.block, state)

    def cost_class(self, instruction: Instruction) -> Hashable:
        """Asks of one type work on batches of one size; those for given rows say how many."""
        ask = instruction[1]
        return type(ask).__name__, ask.count if isinstance(ask, RowsForward) else None

    def encode(self, number: int, instruction: Instruction, release: Release[Addend] | None) -> tuple[Message, Blobs]:
        """The contribution to a round."""
        return encode_contribution(number, instruction[1], release)

    def tensors(self, state: bambi.State) -> dict[str, Tensor]:
        """All that outlives an upper iteration."""
        return {
            "x": state.x,
            "y": torch.from_numpy(state.y),
            "moments.first": state.moments.first,
            "moments.second": state.moments.second,
            "moments.count": scalar(state.moments.count),
            "lower_moments.first": torch.from_numpy(np.ascontiguousarray(state.lower_moments.first)),
            "lower_moments.second": torch.from_numpy(np.ascontiguousarray(state.lower_moments.second)),
            "lower_moments.count": scalar(state.lower_moments.count),
            "k": scalar(state.k),
        }

    def model_tensors(self, state: bambi.State) -> dict[str, Tensor]:
        """The embedding (or the coefficients) and the classifier."""
        if not self.block.has_direct_term:
            return {"coefficients": state.x, "y": torch.from_numpy(state.y)}
        named = self.block.model.state_dict(state.x)
        return {f"embedding.{name}": tensor for name, tensor in named.items()} | {"y": torch.from_numpy(state.y)}

    def _flat_upper(self, tensors: Mapping[str, Tensor]) -> Tensor:
        if not self.block.has_direct_term:
            return tensors["coefficients"]
        prefix = "embedding."
        return self.block.model.from_state_dict(
            {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
        )

    def _restore(self, fresh: bambi.State, tensors: Mapping[str, Tensor]) -> bambi.State:
        if tensors.keys() != self.tensors(fresh).keys() or tensors["x"].shape != fresh.x.shape:
            raise CheckpointMissing("the checkpoint belongs to another model: start a new run")
        moments = Moments(tensors["moments.first"], tensors["moments.second"], int(tensors["moments.count"]))
        first, second = (tensors[f"lower_moments.{name}"].numpy() for name in ("first", "second"))
        lower = Moments(first, second, int(tensors["lower_moments.count"]))
        return bambi.State(tensors["x"], tensors["y"].numpy(), moments, lower, int(tensors["k"]))


def role(begun: Begun) -> BambiRole | LocalRole:
    """The role in a session that trains."""
    spec, settings = begun.spec, begun.spec.settings(BambiSpec)
    block = block_of(begun, begun.opened.row_sets)
    if spec.privacy.features.kind == "per_sum":
        noised = noised_batches(begun.opened, block.model, begun.outputs)
        noised.rehearse()
        noised.trained.releases.open()
        block = replace(block, noised=noised)
    if settings.hypergradient != "local":
        return BambiRole(block)
    return LocalRole(LocalBlock(block, training_loss(settings.loss, begun.outputs, spec.privacy.labels)))


def predictor(begun: Begun, trained: SavedModel) -> BambiRole:
    """The role in a session that predicts."""
    nothing: NDArray[np.int64] = np.empty(0, dtype=np.int64)
    block = block_of(begun, RowSets(nothing, nothing, nothing))
    if begun.spec.privacy.features.kind == "per_sum":
        block = replace(block, noised=noised_predictions(begun))
    return BambiRole(block, trained)


def block_of(begun: Begun, rows: RowSets) -> bambi.Block:
    """What the party works on."""
    spec, opened = begun.spec, begun.opened
    train, sizes = spec.settings(BambiSpec), tuple(begun.upper_sizes)
    return bambi.Block(train, model_of(opened), features_of(opened), rows, spec.seed, begun.index, sizes, begun.outputs)


def model_of(opened: Opened) -> EmbeddingModel:
    """The embedding network that the run gives to this party."""
    train, dtype = opened.spec.settings(BambiSpec), _TYPES[opened.spec.dtype]
    features = len(opened.table.columns) + _has_intercept(opened)
    own = train.own.party_side if train.own is not None else None
    if own is not None:
        columns, intercept = len(opened.table.columns), _has_intercept(opened)
        return load_block(own.path, own.options, columns, dtype, opened.model_imports, intercept=intercept)
    if not train.embeds:
        return build_model("identity", features, features, dtype=dtype)
    return build_model(
        train.model.kind,
        features,
        train.model.out,
        train.model.widths,
        train.model.activation,
        image_shape=train.model.image_shape,
        dtype=dtype,
        factory=train.model.factory,
        allowed_imports=opened.model_imports,
    )


def features_of(opened: Opened) -> Array | LocalRows:
    """The party's features, with a column of ones where it carries the intercept."""
    settings = opened.spec.settings(BambiSpec)
    ones = _has_intercept(opened) and not settings.embeds
    if opened.engine is not None and _runs_in_shards(opened):
        return opened.engine.rows(_filled(opened.table.features), opened.spec.dtype)
    files, table = opened.table.files, opened.table.features
    if files is not None and table.nbytes > FITS_SHARE * files.memory:
        return ReadAheadRows(table, opened.spec.dtype, room=int(ROOM_SHARE * files.memory), ones=ones)
    if files is not None or issparse(table):
        return LocalRows(opened.table.features, opened.spec.dtype, ones=ones)
    features = np.ascontiguousarray(opened.table.features, dtype=opened.spec.dtype)
    return np.append(features, np.ones_like(features[:, :1]), axis=1) if ones else features


def _filled(features: Any) -> Any:
    """An array, which is what an engine cuts into shards."""
    return features.toarray() if issparse(features) else features


def _runs_in_shards(opened: Opened) -> bool:
    """Whether the work on rows pays elsewhere: a network of Parley's own, which every machine of a cluster has."""
    train = opened.spec.settings(BambiSpec)
    network = train.own is None and train.embeds and train.model.kind in ("linear", "mlp", "cnn")
    return network and train.hypergradient != "local" and opened.spec.privacy.features.kind == "none"


def _has_intercept(opened: Opened) -> bool:
    train = opened.spec.settings(BambiSpec)
    linear = not train.embeds or train.model.kind == "identity"  # a block of one's own has the column behind it
    return train.intercept and linear and opened.index == 0


def accept(opened: Opened) -> Offer:
    """p_m of this party."""
    model, features = model_of(opened), opened.spec.privacy.features
    size = bambi.upper_size(opened.spec.settings(BambiSpec), model)
    if opened.predicts or features.kind != "per_sum":
        return Offer(size, coverage=None if opened.predicts else coverage(opened))
    noised = noised_batches(opened, model, 1)
    noised.rehearse()
    spends = f"a row costs ε = {noised.trained.releases.epsilon:.3g} at δ = {features.delta:g} over the run"
    covered = replace(coverage(opened), exact=False, honest=features.honest)
    return Offer(size, (spends,), covered)


def coverage(opened: Opened) -> Coverage:
    """What the sums of h tell: of a linear block, its columns, once there are as many sums as columns."""
    spec, train = opened.spec, opened.spec.settings(BambiSpec)
    sets = opened.row_sets
    if train.hypergradient == "local":
        return _local_coverage(opened, sets)
    if train.problem == "joint":
        return _joint_coverage(opened, sets)
    lower = min(train.lower.batch or len(sets.lower), len(sets.lower))
    upper = min(train.upper.batch or len(sets.upper), len(sets.upper))
    shares = lower / len(sets.lower), upper / len(sets.upper)
    sums = lower_sums(train) * shares[0] + train.upper.steps * shares[1] + looks(spec, sets)
    # a block of one's own may be linear in its columns: it counts as if it were
    linear = not train.embeds or train.model.kind in ("linear", "identity")
    return Coverage(
        rows=len(sets.trained),
        batch=min(lower, upper),
        sums=ceil(sums),
        evaluated=sets.fewest_held_out,
        rank=len(opened.table.columns) if linear else None,
        share=max(shares),
    )


def _joint_coverage(opened: Opened, sets: RowSets) -> Coverage:
    """Of one level: a sum over a batch of all rows for each step."""
    train, count = opened.spec.settings(BambiSpec), len(sets.trained)
    batch = min(train.upper.batch or count, count)
    linear = not train.embeds or train.model.kind == "linear"
    return Coverage(
        rows=count,
        batch=batch,
        sums=ceil(train.upper.steps * batch / count) + looks(opened.spec, sets),
        evaluated=len(sets.test) or None,
        rank=len(opened.table.columns) if linear else None,
        share=batch / count,
    )


def _local_coverage(opened: Opened, sets: RowSets) -> Coverage:
    """Of local rounds: an exchange sums an even part of the lower rows once."""
    train = opened.spec.settings(BambiSpec)
    parts = ceil(len(sets.lower) / train.local.rows)
    linear = not train.embeds or train.model.kind == "linear"
    return Coverage(
        rows=len(sets.trained),
        batch=len(sets.lower) // parts,
        sums=ceil(train.local.exchanges / parts) + looks(opened.spec, sets),
        evaluated=sets.fewest_held_out,
        rank=len(opened.table.columns) if linear else None,
        share=1 / parts,
    )


def looks(spec: RunSpec, sets: RowSets) -> int:
    """Evaluations in a whole run, each a sum of every row that is held out."""
    length = spec.train.run_length
    return len(sets.held_out) * (1 + (length - 1) // spec.evaluate_every if spec.evaluate_every and length else 1)


def lower_sums(train: BambiSpec) -> int:
    """Sums over lower batches in a whole run, every trajectory of its own."""
    lower, iterations = train.lower, train.upper.steps
    newton = lower.solver == "newton"

    def solve(steps: int) -> int:
        most = steps + NEWTON_REPEATS
        return most * (1 + train.implicit.newton_rounds) + 1 if newton and steps else steps

    implicit = train.hypergradient == "implicit"
    linearised = (not newton) + train.implicit.rounds if implicit else 0
    outside = solve(lower.warmup_steps) + solve(lower.final_steps)
    return (iterations * (solve(lower.steps) + linearised) + outside) * train.trajectories


def training_rows(spec: RunSpec, index: int, rows: int) -> NDArray[np.int64]:  # noqa: ARG001 (the same at every party)
    """The rows of the lower problem, or of the only one."""
    sets = divide(spec.split, rows, stream(spec.seed, "split"))
    return sets.trained if spec.settings(BambiSpec).problem == "joint" else sets.lower


def coefficients(model: Mapping[str, Tensor], columns: Sequence[str]) -> list[Coefficient]:
    """What hyper_parameters has tuned; x holds logarithms."""
    if "coefficients" not in model:
        return []
    values = torch.exp(model["coefficients"].double()).tolist()
    if len(values) == 1:  # one for the whole party
        return [Coefficient("", values[0])]
    names = [*columns, "(intercept)"][: len(values)]
    return [Coefficient(name, value) for name, value in zip(names, values, strict=True)]


ALGORITHM = PartyAlgorithm(
    PROTOCOL,
    accept,
    role,
    predictor=predictor,
    rows_asked=lambda first, count: (None, RowsForward("all", first, count)),
    refusals={
        RoundNotDue: Refusal("FAILED_PRECONDITION", "ROUND_MISMATCH"),
        EpsilonOutOfRange: Refusal("INVALID_ARGUMENT", "SPEC_INVALID"),
        GridTooFine: Refusal("INVALID_ARGUMENT", "SPEC_INVALID"),
        bambi.OutcomeUnexpected: Refusal("FAILED_PRECONDITION", "ROUND_MISMATCH"),
        bambi.OutcomeMisshapen: Refusal("INVALID_ARGUMENT", "MESSAGE_INVALID"),
        IllConditioned: Refusal("OUT_OF_RANGE", "ILL_CONDITIONED"),
        ModelShapeMismatch: Refusal("INVALID_ARGUMENT", "MESSAGE_INVALID"),
        UnknownModel: Refusal("INVALID_ARGUMENT", "SPEC_INVALID"),
        InvalidModelSize: Refusal("INVALID_ARGUMENT", "SPEC_INVALID"),
        ModelImportRefused: Refusal("PERMISSION_DENIED", "POLICY_REFUSED"),
        ProblemImportRefused: Refusal("PERMISSION_DENIED", "POLICY_REFUSED"),
        ProblemMisshapen: Refusal("INVALID_ARGUMENT", "PROBLEM_REFUSED"),
        ProblemNotFinite: Refusal("OUT_OF_RANGE", "PROBLEM_REFUSED"),
    },
    training_rows=training_rows,
    coefficients=coefficients,
    exported=exported,
    keeps_sparse="unless_scaled",
    maps_rows="always",
)
