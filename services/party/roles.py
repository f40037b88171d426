"""What a session needs of an algorithm at a party."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from google.protobuf.message import Message
from torch import Tensor

from party.models import EmbeddingModel
from privacy.release import Addend, Release
from privacy.rounds import Vector
from services.wire.tensors import Blobs
from spec.run import RunSpec
from tables.loading import Table


@dataclass(frozen=True)
class Place:
    """A party's place in a run."""

    spec: RunSpec
    index: int
    """This party's block."""
    table: Table
    model: EmbeddingModel
    upper_sizes: Sequence[int]
    """Upper parameters of every party."""
    outputs: int
    """Columns of the summed embedding."""


@dataclass(frozen=True)
class Plan:
    """What a round would do: a new state, and what it contributes."""

    state: Any
    draft: Vector | None = None
    """The addend to a secure sum; None where the round only acknowledges."""
    checkpoint: int | None = None
    """Write the new state as this checkpoint before acknowledging."""
    finished: bool = False
    """Save the model before acknowledging."""


class Role(Protocol):
    """An algorithm at a party. `plan` is pure; the session keeps the state."""

    body: str
    """The field of ExchangeRequest and ExchangeResponse that holds its messages."""

    def begin(self, checkpoint: Mapping[str, Tensor] | None) -> Any:
        """The state before the first round, or as a checkpoint has it."""

    def decode(self, message: Any, blobs: Blobs) -> Any:
        """An instruction, checked."""

    def plan(self, state: Any, instruction: Any) -> Plan:
        """What an instruction would do."""

    def encode(self, number: int, instruction: Any, release: Release[Addend] | None) -> tuple[Message, Blobs]:
        """The answer."""

    def tensors(self, state: Any) -> dict[str, Tensor]:
        """What a checkpoint holds."""

    def model_tensors(self, state: Any) -> dict[str, Tensor]:
        """What a saved model holds."""
