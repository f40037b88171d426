"""Sessions of a party: one for each run (or prediction) that it takes part in."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from google.protobuf.message import Message
from torch import Tensor

import party.bambi as bambi
from contracts.bambi.v1 import bambi_pb2
from numerics.optimisers import Moments
from numerics.streams import stream
from party.models import EmbeddingModel, build_model
from privacy.aggregation import Pairwise, ring_of
from privacy.release import Plain, Protection, SumGate
from privacy.rounds import Ask, Checkpoint, Finish, Outcome, is_summed
from privacy.session_keys import SessionKey, SignedKey, pair_secret, verify_signed_key
from services.party.checkpoints import CheckpointMissing, Store, scalar
from services.party.config import Policy
from services.wire.bambi_codec import encode_contribution
from services.wire.tensors import Blobs
from spec.rows import RowSets, divide
from spec.run import RunSpec
from tables.loading import Table

_TYPES = {"float32": torch.float32, "float64": torch.float64}


class PolicyRefused(PermissionError):
    """This party's policy does not accept the run."""


class RoundMismatch(ValueError):
    """An instruction came out of order."""


class SessionUnknown(LookupError):
    """There is no such session here."""


class SessionNotBegun(RuntimeError):
    """The session has no keys yet."""


def check_policy(policy: Policy, spec: RunSpec, index: int, coordinator: str) -> None:
    """Refuse a run that this party's owner did not allow.

    Raises:
        PolicyRefused: with what the policy says and what the run asks for.
    """
    aggregation = spec.privacy.aggregation
    wanted = spec.parties[index].columns
    table = spec.table_of(index)
    checks = [
        (coordinator in policy.coordinators, f"coordinator {coordinator} is not among {list(policy.coordinators)}"),
        (spec.train.algorithm in policy.algorithms, f"algorithm {spec.train.algorithm} is not allowed here"),
        (aggregation.kind in policy.aggregations, f"aggregation {aggregation.kind} is not allowed here"),
        (
            len(spec.parties) >= policy.minimum_parties,
            f"{len(spec.parties)} parties take part, at least {policy.minimum_parties} are asked for",
        ),
        (policy.tables is None or table in policy.tables, f"table {table} is not open to runs"),
        (
            policy.columns is None or (wanted is not None and set(wanted) <= set(policy.columns)),
            f"only columns {list(policy.columns or ())} are open: name them under this party in the spec",
        ),
    ]
    refused = [reason for allowed, reason in checks if not allowed]
    if refused:
        raise PolicyRefused(f"{spec.parties[index].name}'s policy refuses the run: " + "; ".join(refused))


def model_of(spec: RunSpec, features: int, policy: Policy) -> EmbeddingModel:
    """The embedding network that a run gives to a party with so many features."""
    train, model = spec.train, spec.train.model
    dtype = _TYPES[spec.dtype]
    if train.problem == "hyper_parameters" or model.kind == "identity":
        return build_model("identity", features, features, dtype=dtype)
    return build_model(
        model.kind,
        features,
        model.out,
        model.widths,
        model.activation,
        image_shape=model.image_shape,
        dtype=dtype,
        factory=model.factory,
        allowed_imports=policy.model_imports,
    )


@dataclass
class Session:
    """One run at this party: its block, what it has learnt so far, and the last answer for a retry."""

    session_id: str
    run_id: str
    coordinator: str
    spec: RunSpec
    index: int
    table: Table
    model: EmbeddingModel
    store: Store
    key: SessionKey = field(default_factory=SessionKey.generate)
    trained: dict[str, Tensor] | None = None
    """The saved model, for a prediction; None in training."""
    _block: bambi.Block | None = None
    _state: bambi.State | None = None
    _gate: SumGate | None = None
    _round: int = 0
    _digest: bytes = b""
    _answer: tuple[bambi_pb2.Contribution, Blobs] | None = None

    def begin(
        self, keys: Sequence[SignedKey], ca: bytes, upper_sizes: Sequence[int], outputs: int, checkpoint: int
    ) -> None:
        """Agree on masks with the other parties and load what to begin from."""
        rows = self._rows()
        features = torch.from_numpy(np.ascontiguousarray(_dense(self.table), dtype=self.spec.dtype))
        self._block = bambi.Block(
            self.spec.train, self.model, features, rows, self.spec.seed, self.index, tuple(upper_sizes), outputs
        )
        self._gate = SumGate(self._protection(keys, ca))
        self._state = self._initial_state(checkpoint)
        self._round, self._digest, self._answer = 0, b"", None

    def handle(
        self, number: int, digest: bytes, outcome: Outcome | None, ask: Ask
    ) -> tuple[bambi_pb2.Contribution, Blobs]:
        """Plan, pay, commit: one round. A retry of the last one gets the same bytes."""
        if self._block is None or self._state is None or self._gate is None:
            raise SessionNotBegun("the session has not begun: call BeginSession first")
        if self._answer is not None and (number, digest) == (self._round, self._digest):
            return self._answer
        if number != self._round + 1:
            raise RoundMismatch(
                f"round {number} came where round {self._round + 1} is due: open a new session to begin again"
            )
        state = self._state if outcome is None else bambi.apply(self._block, self._state, outcome)
        release = None
        if is_summed(ask):
            state, draft = bambi.contribute(self._block, state, ask)
            release = self._gate.release(number, draft)
        elif isinstance(ask, Checkpoint):
            self.store.save_checkpoint(self.run_id, ask.k, checkpoint_tensors(state))
        elif isinstance(ask, Finish):
            self.store.save_model(self.run_id, self._model_tensors(state))
        self._state = state
        self._round, self._digest = number, digest
        self._answer = encode_contribution(number, ask, release)
        return self._answer

    def _rows(self) -> RowSets:
        if self.trained is not None:
            nothing = np.empty(0, dtype=np.int64)
            return RowSets(nothing, nothing, nothing)
        return divide(self.spec.split, len(self.table), stream(self.spec.seed, "split"))

    def _protection(self, keys: Sequence[SignedKey], ca: bytes) -> Protection:
        names = [entry.name for entry in self.spec.parties]
        settings = self.spec.privacy.aggregation
        if settings.kind == "plain":
            return Plain(len(names))
        secrets = {}
        for index, (name, signed) in enumerate(zip(names, keys, strict=True)):
            if index == self.index:
                continue
            verify_signed_key(signed, ca, name, self.session_id, 0)
            secrets[index] = pair_secret(
                self.key, names[self.index], name, signed.public_key, run_id=self.session_id, attempt=0, purpose="mask"
            )
        return Pairwise(self.index, secrets, ring_of(settings), settings.minimum_parties)

    def _initial_state(self, checkpoint: int) -> bambi.State:
        assert self._block is not None  # noqa: S101 (begin has just made it)
        state = bambi.start(self._block)
        if self.trained is not None:
            return replace(state, x=self._flat_upper(self.trained), y=self.trained["y"])
        if checkpoint == 0:
            return state
        return restore(state, self.store.load_checkpoint(self.run_id, checkpoint), checkpoint)

    def _model_tensors(self, state: bambi.State) -> dict[str, Tensor]:
        if self.spec.train.problem == "hyper_parameters":
            return {"coefficients": state.x, "y": state.y}
        return {f"embedding.{name}": tensor for name, tensor in self.model.state_dict(state.x).items()} | {"y": state.y}

    def _flat_upper(self, tensors: dict[str, Tensor]) -> Tensor:
        if self.spec.train.problem == "hyper_parameters":
            return tensors["coefficients"]
        prefix = "embedding."
        return self.model.from_state_dict(
            {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
        )


def checkpoint_tensors(state: bambi.State) -> dict[str, Tensor]:
    """What a checkpoint holds: all that outlives an upper iteration."""
    return {
        "x": state.x,
        "y": state.y,
        "moments.first": state.moments.first,
        "moments.second": state.moments.second,
        "moments.count": scalar(state.moments.count),
        "k": scalar(state.k),
    }


def restore(fresh: bambi.State, tensors: dict[str, Tensor], k: int) -> bambi.State:
    """The state that a checkpoint holds."""
    if tensors.keys() != checkpoint_tensors(fresh).keys() or tensors["x"].shape != fresh.x.shape:
        raise CheckpointMissing("the checkpoint belongs to another model: start a new run")
    if int(tensors["k"]) != k:
        raise CheckpointMissing(f"the checkpoint says {int(tensors['k'])} iterations where {k} are asked for")
    moments = Moments(tensors["moments.first"], tensors["moments.second"], int(tensors["moments.count"]))
    return bambi.State(x=tensors["x"], y=tensors["y"], moments=moments, k=k)


def digest_of(message: Message, blobs: Blobs) -> bytes:
    """What tells a retry from another instruction with the same number."""
    digest = hashlib.sha256(message.SerializeToString(deterministic=True))
    for blob in blobs:
        digest.update(blob)
    return digest.digest()


def _dense(table: Table) -> Any:
    return table.features.toarray() if hasattr(table.features, "toarray") else table.features
