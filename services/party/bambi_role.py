"""BAMBI behind a party's session."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

import party.bambi as bambi
from contracts.bambi.v1 import bambi_pb2
from numerics.optimisers import Moments
from numerics.streams import stream
from privacy.release import Addend, Release
from privacy.rounds import Ask, Checkpoint, Finish, Outcome, is_summed
from services.party.checkpoints import CheckpointMissing, scalar
from services.party.roles import Place, Plan
from services.wire.bambi_codec import decode_instruction, encode_contribution
from services.wire.tensors import Blobs
from spec.rows import RowSets, divide

Instruction = tuple[Outcome | None, Ask]


class BambiRole:
    """Training, or (with a trained model) prediction."""

    body = "bambi"

    def __init__(self, place: Place, trained: Mapping[str, Tensor] | None) -> None:
        spec = place.spec
        features = torch.from_numpy(np.ascontiguousarray(place.table.features, dtype=spec.dtype))
        rows = _no_rows() if trained is not None else divide(spec.split, len(features), stream(spec.seed, "split"))
        self._model, self._trained = place.model, trained
        self._embeds = spec.train.problem == "hyper_representation"
        self._block = bambi.Block(
            spec.train, place.model, features, rows, spec.seed, place.index, tuple(place.upper_sizes), place.outputs
        )

    def begin(self, checkpoint: Mapping[str, Tensor] | None) -> bambi.State:
        """x and y anew, from a checkpoint, or as trained."""
        fresh = bambi.start(self._block)
        if self._trained is not None:
            return replace(fresh, x=self._flat_upper(self._trained), y=self._trained["y"])
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

    def encode(
        self, number: int, instruction: Instruction, release: Release[Addend] | None
    ) -> tuple[bambi_pb2.Contribution, Blobs]:
        """The contribution to a round."""
        return encode_contribution(number, instruction[1], release)

    def tensors(self, state: bambi.State) -> dict[str, Tensor]:
        """All that outlives an upper iteration."""
        return {
            "x": state.x,
            "y": state.y,
            "moments.first": state.moments.first,
            "moments.second": state.moments.second,
            "moments.count": scalar(state.moments.count),
            "k": scalar(state.k),
        }

    def model_tensors(self, state: bambi.State) -> dict[str, Tensor]:
        """The embedding (or the coefficients) and the classifier."""
        if not self._embeds:
            return {"coefficients": state.x, "y": state.y}
        named = self._model.state_dict(state.x)
        return {f"embedding.{name}": tensor for name, tensor in named.items()} | {"y": state.y}

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
        return bambi.State(x=tensors["x"], y=tensors["y"], moments=moments, k=int(tensors["k"]))


def _no_rows() -> RowSets:
    nothing: Any = np.empty(0, dtype=np.int64)
    return RowSets(nothing, nothing, nothing)
