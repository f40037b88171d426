"""Messages that are well-formed and wrong: made at random from a descriptor, or by changing a right one."""

import random
import struct
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from parley.contracts.tensor.v1 import tensor_pb2

Kind = TypeVar("Kind", bound=Message)
DEEPEST = 6
COUNTS = (0, 1, 2, 3, 7, 255, 1 << 16, (1 << 31) - 1, 1 << 32, 1 << 40, (1 << 40) + 1, 1 << 62, (1 << 64) - 1)
REALS = (0.0, -0.0, 1.0, -1.5, 1e-300, 1e300, float("inf"), float("-inf"), float("nan"), 2.0**63)
TEXTS = (
    "",
    "bank",
    "shop",
    "nobody",
    "..",
    "../../etc/passwd",
    "a" * 4096,
    "\0",
    "é☃\U0001f600",
    "run-1",
    "%s{}",
    "'; --",
)
INTEGERS = {
    FieldDescriptor.TYPE_UINT32: 32,
    FieldDescriptor.TYPE_UINT64: 64,
    FieldDescriptor.TYPE_INT32: 31,
    FieldDescriptor.TYPE_INT64: 63,
    FieldDescriptor.TYPE_SINT32: 31,
    FieldDescriptor.TYPE_SINT64: 63,
}


def random_message(kind: type[Kind], chance: random.Random, depth: int = 0) -> Kind:
    """Any message of a kind: every field set or not, to anything that its type allows."""
    message = kind()
    if isinstance(message, tensor_pb2.Tensor) and chance.random() < 0.6:
        message.CopyFrom(random_tensor(chance))  # type: ignore[arg-type]
        return message
    for field in message.DESCRIPTOR.fields:
        if chance.random() < 0.6:
            set_field(message, field, chance, depth)
    return message


def random_tensor(chance: random.Random) -> tensor_pb2.Tensor:
    """A tensor that is right, or nearly."""
    code, dtype = chance.choice([(1, "<f4"), (2, "<f8"), (3, "<i8"), (4, "<u8"), (5, "<u4")])
    shape = [chance.choice((0, 1, 2, 3, 10, 64)) for _ in range(chance.randrange(4))]
    data = np.zeros(shape, dtype).tobytes()
    tensor = tensor_pb2.Tensor(element_type=code, shape=shape, data=data)  # type: ignore[arg-type]
    match chance.randrange(8):
        case 0:
            tensor.shape.append(chance.choice(COUNTS))
        case 1:
            tensor.data = data[:-1]
        case 2:
            tensor.chunked_bytes = chance.choice((1, len(data), 1 << 30, 1 << 63))
        case 3:
            tensor.element_type = chance.choice((0, 9, -1))  # type: ignore[assignment]
        case 4:
            tensor.data = struct.pack("<d", chance.choice(REALS)) * max(1, len(data) // 8)
    return tensor


def set_field(message: Message, field: Any, chance: random.Random, depth: int) -> None:
    """Set one field to something."""
    if field.is_repeated:
        values = [_value(field, chance, depth) for _ in range(chance.choice((0, 1, 2, 3, 70)))]
        message.ClearField(field.name)
        getattr(message, field.name).extend(value for value in values if value is not None)
        return
    value = _value(field, chance, depth)
    if value is None:
        return
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        getattr(message, field.name).CopyFrom(value)
    else:
        setattr(message, field.name, value)


def _value(field: Any, chance: random.Random, depth: int) -> Any:
    match field.type:
        case FieldDescriptor.TYPE_MESSAGE:
            kind: type[Message] = GetMessageClass(field.message_type)
            return random_message(kind, chance, depth + 1) if depth < DEEPEST else None
        case FieldDescriptor.TYPE_STRING:
            return chance.choice(TEXTS)
        case FieldDescriptor.TYPE_BYTES:
            return chance.randbytes(chance.choice((0, 1, 31, 32, 33, 64, 1000)))
        case FieldDescriptor.TYPE_BOOL:
            return chance.random() < 0.5
        case FieldDescriptor.TYPE_ENUM:
            return chance.choice((0, 1, 2, 3, 17, -1, (1 << 31) - 1))
        case FieldDescriptor.TYPE_DOUBLE:
            return chance.choice(REALS)
        case FieldDescriptor.TYPE_FLOAT:
            return chance.choice(REALS[:4])
    return chance.choice(COUNTS) & ((1 << INTEGERS[field.type]) - 1)


def mutated(message: Kind, chance: random.Random) -> Kind:
    """A copy with one to three fields, anywhere inside, changed, cleared or set."""
    changed = type(message)()
    changed.CopyFrom(message)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        inner: Message = changed
        while True:
            nested = [value for field, value in inner.ListFields() if field.type == FieldDescriptor.TYPE_MESSAGE]
            nested = [one for value in nested for one in ([value] if isinstance(value, Message) else list(value))]
            if not nested or chance.random() < 0.4:
                break
            inner = chance.choice(nested)
        fields: Sequence[Any] = inner.DESCRIPTOR.fields
        if not fields:
            continue
        field: Any = chance.choice(fields)
        if chance.random() < 0.2:
            inner.ClearField(field.name)
        else:
            set_field(inner, field, chance, depth=3)
    return changed


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Bytes with a flip, a cut or an insertion."""
    place = chance.randrange(len(data) + 1)
    match chance.randrange(3):
        case 0 if data:
            place = min(place, len(data) - 1)
            return data[:place] + bytes([data[place] ^ (1 << chance.randrange(8))]) + data[place + 1 :]
        case 1:
            return data[:place]
    return data[:place] + chance.randbytes(chance.choice((1, 4, 9))) + data[place:]
