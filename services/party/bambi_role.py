"""BAMBI behind a party's session."""

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

import parley.party.bambi as bambi
from parley.contracts.bambi.v1 import bambi_pb2
from parley.numerics.optimisers import Moments
from parley.numerics.streams import stream
from parley.party.models import EmbeddingModel, build_model
from parley.privacy.release import Addend, Release
from parley.privacy.rounds import Array, Ask, Checkpoint, Finish, Outcome, RowsForward, is_summed
from parley.services.party.checkpoints import CheckpointMissing, scalar
from parley.services.party.roles import Place, Plan
from parley.services.wire.bambi_codec import decode_instruction, encode_contribution
from parley.services.wire.tensors import Blobs
from parley.spec.bambi import BambiSpec
from parley.spec.rows import RowSets, divide

_TYPES = {"float32": torch.float32, "float64": torch.float64}
Instruction = tuple[Outcome | None, Ask]


class BambiRole:
    """Training, or (with a trained model) prediction."""

    body = "bambi"

    def __init__(self, place: Place) -> None:
        spec, trained, model = place.spec, place.trained, model_of(place)
        train = spec.settings(BambiSpec)
        features = features_of(place)
        rows = _no_rows() if trained is not None else divide(spec.split, len(features), stream(spec.seed, "split"))
        self._model, self._trained = model, trained
        self._embeds = train.problem == "hyper_representation"
        self._block = bambi.Block(
            train, model, features, rows, spec.seed, place.index, tuple(place.upper_sizes), place.outputs
        )

    def begin(self, checkpoint: Mapping[str, Tensor] | None) -> bambi.State:
        """x and y anew, from a checkpoint, or as trained."""
        fresh = bambi.start(self._block)
        if self._trained is not None:
            return fresh._replace(x=self._flat_upper(self._trained), y=self._trained["y"].numpy())
        return fresh if checkpoint is None else self._restore(fresh, checkpoint)

    def decode(self, message: bambi_pb2.Instruction, blobs: Blobs) -> Instruction:
        """The outcome of the round before, and the next ask."""
        return decode_instruction(message, blobs)

    def plan(self, state: bambi.State, instruction: Instruction) -> Plan:
        """Take the outcome, then answer the ask."""
        outcome, ask = instruction
        if outcome is not None:
            state = bambi.apply(self._block, state, outcome)
        if is_summed(ask):
            return Plan(*bambi.contribute(self._block, state, ask))
        return Plan(state, checkpoint=ask.k if isinstance(ask, Checkpoint) else None, finished=isinstance(ask, Finish))

    def foresees(self, state: bambi.State) -> bool:
        """Lower rounds follow each other on batches that are known."""
        return bambi.foreseen(self._block, state) is not None

    def look_ahead(self, state: bambi.State) -> bambi.State:
        """Embed the next of them."""
        return bambi.look_ahead(self._block, state)

    def kind(self, instruction: Instruction) -> Hashable:
        """Asks of one type work on batches of one size; those for given rows say how many."""
        ask = instruction[1]
        return type(ask).__name__, ask.count if isinstance(ask, RowsForward) else None

    def encode(
        self, number: int, instruction: Instruction, release: Release[Addend] | None
    ) -> tuple[bambi_pb2.Contribution, Blobs]:
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
            "k": scalar(state.k),
        }

    def model_tensors(self, state: bambi.State) -> dict[str, Tensor]:
        """The embedding (or the coefficients) and the classifier."""
        if not self._embeds:
            return {"coefficients": state.x, "y": torch.from_numpy(state.y)}
        named = self._model.state_dict(state.x)
        return {f"embedding.{name}": tensor for name, tensor in named.items()} | {"y": torch.from_numpy(state.y)}

    def _flat_upper(self, tensors: Mapping[str, Tensor]) -> Tensor:
        if not self._embeds:
            return tensors["coefficients"]
        prefix = "embedding."
        return self._model.from_state_dict(
            {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
        )

    def _restore(self, fresh: bambi.State, tensors: Mapping[str, Tensor]) -> bambi.State:
        if tensors.keys() != self.tensors(fresh).keys() or tensors["x"].shape != fresh.x.shape:
            raise CheckpointMissing("the checkpoint belongs to another model: start a new run")
        moments = Moments(tensors["moments.first"], tensors["moments.second"], int(tensors["moments.count"]))
        return bambi.State(x=tensors["x"], y=tensors["y"].numpy(), moments=moments, k=int(tensors["k"]))


def model_of(place: Place) -> EmbeddingModel:
    """The embedding network that the run gives to this party."""
    train, dtype = place.spec.settings(BambiSpec), _TYPES[place.spec.dtype]
    features = len(place.table.columns) + _has_intercept(place)
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
        allowed_imports=place.model_imports,
    )


def features_of(place: Place) -> Array:
    """The party's features, with a column of ones where it carries the intercept."""
    features = np.ascontiguousarray(place.table.features, dtype=place.spec.dtype)
    return np.append(features, np.ones_like(features[:, :1]), axis=1) if _has_intercept(place) else features


def _has_intercept(place: Place) -> bool:
    train = place.spec.settings(BambiSpec)
    return train.intercept and not train.embeds and place.index == 0


def upper_size(place: Place) -> int:
    """p_m of this party."""
    return bambi.upper_size(place.spec.settings(BambiSpec), model_of(place))


def _no_rows() -> RowSets:
    nothing: Any = np.empty(0, dtype=np.int64)
    return RowSets(nothing, nothing, nothing)
