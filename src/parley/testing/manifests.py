"""What an algorithm's messages can carry, by their descriptors."""

from collections.abc import Iterable, Iterator
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from parley.protocols.protocol import CrossingProtocol

ARRAYS = {"parley.tensor.v1.Tensor", "parley.aggregation.v1.Addend", "parley.aggregation.v1.MaskedTheta"}
"""Messages that carry arrays of numbers."""
NUMBERS = {FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_BYTES}
"""Types that can carry what was computed from records."""


def messages_of(protocol: CrossingProtocol) -> list[Any]:
    """What an algorithm sends, and every message inside it."""
    found: dict[str, Any] = {}
    pending: list[Any] = [
        kind.DESCRIPTOR for kind in (protocol.instruction, protocol.contribution, *protocol.peer_messages)
    ]
    while pending:
        descriptor = pending.pop()
        if descriptor.full_name not in found:
            found[descriptor.full_name] = descriptor
            pending += [field.message_type for field in descriptor.fields if field.message_type is not None]
    return list(found.values())


def own_fields(protocol: CrossingProtocol) -> Iterator[FieldDescriptor]:
    """The fields of the messages of the algorithm's own proto."""
    own = {kind.DESCRIPTOR.file.package for kind in (protocol.instruction, protocol.contribution)}
    return (field for message in messages_of(protocol) if message.file.package in own for field in message.fields)


def numeric(fields: Iterable[FieldDescriptor]) -> set[str]:
    """Full names of the fields that can carry what was computed from records."""
    return {
        field.full_name
        for field in fields
        if field.type in NUMBERS or (field.message_type is not None and field.message_type.full_name in ARRAYS)
    }
