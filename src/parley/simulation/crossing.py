"""What crosses between the roles of one process: encoded to bytes here, decoded there, as on the wire.

No array is shared, and nothing that has no codec can cross.
"""

from collections import deque
from collections.abc import Iterable
from typing import Any

from google.protobuf.message import Message

from parley.coordinator.programs import WireForm
from parley.party.roles import Role
from parley.privacy.release import Addend, Release
from parley.protocols.protocol import CrossingProtocol
from parley.protocols.tensor.codec import Blobs

Parts = tuple[bytes, tuple[bytes, ...]]
"""A message and the tensors that follow it."""


def to_bytes(message: Message, blobs: Blobs) -> Parts:
    """A message as it leaves."""
    return message.SerializeToString(), tuple(bytes(blob) for blob in blobs)


def from_bytes(kind: type[Message], parts: Parts) -> tuple[Any, Blobs]:
    """A message as it arrives."""
    content, blobs = parts
    return kind.FromString(content), deque(memoryview(blob) for blob in blobs)


class Crossing:
    """Instructions on their way down, and answers on their way up."""

    def __init__(self, protocol: CrossingProtocol, form: WireForm) -> None:
        self._protocol, self._form = protocol, form

    def instructions(self, number: int, release: Release[Any], parties: Iterable[int]) -> dict[int, Any]:
        """A round's instruction, as each party decodes it."""
        sent = to_bytes(*self._form.encode(number, release))
        kind, decode = self._protocol.instruction, self._protocol.decode_instruction
        return {party: decode(*from_bytes(kind, sent)) for party in parties}

    def answer(
        self, role: Role, number: int, instruction: Any, answer: Release[Any] | None, asked: Release[Any]
    ) -> Addend | None:
        """A party's answer to an instruction, as the coordinator decodes it."""
        sent = to_bytes(*role.encode(number, instruction, answer))
        return self._form.decode(*from_bytes(self._protocol.contribution, sent), asked)
