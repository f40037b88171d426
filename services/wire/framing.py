"""Large tensors on a stream: a message announces them, chunks carry them, in field order."""

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Protocol, TypeVar

from google.protobuf.message import Message

from contracts.tensor.v1 import tensor_pb2
from services.wire.tensors import INLINE_BYTES, LARGEST_TENSOR_BYTES, Blobs, MessageInvalid

Envelope = TypeVar("Envelope", bound=Message)


class Writer(Protocol):
    """The sending half of a stream."""

    def write(self, message: Any) -> Awaitable[Any]:
        """Send one message."""


def chunks(blobs: Blobs) -> Iterator[tensor_pb2.Chunk]:
    """The chunks of announced tensors."""
    for blob in blobs:
        for start in range(0, len(blob), INLINE_BYTES):
            yield tensor_pb2.Chunk(data=bytes(blob[start : start + INLINE_BYTES]))


async def send(writer: Writer, message: Envelope, blobs: Blobs, wrap: Callable[[tensor_pb2.Chunk], Envelope]) -> int:
    """Send a message and the chunks that it announced; returns the bytes sent."""
    await writer.write(message)
    size = message.ByteSize()
    for chunk in chunks(blobs):
        envelope = wrap(chunk)
        size += envelope.ByteSize()
        await writer.write(envelope)
    return size


async def receive(first: Envelope, following: Callable[[], Awaitable[Envelope]]) -> Blobs:
    """The bytes of every tensor that `first` announced, read from the messages that follow it."""
    blobs: Blobs = deque()
    announced = list(_announced(first))
    size = sum(tensor.chunked_bytes for tensor in announced)
    if size > LARGEST_TENSOR_BYTES:
        raise MessageInvalid(f"tensors of {size} bytes were announced; at most {LARGEST_TENSOR_BYTES} are taken")
    for tensor in announced:
        buffer = bytearray()
        while len(buffer) < tensor.chunked_bytes:
            message = await following()
            if message.WhichOneof("body") != "chunk":
                raise MessageInvalid("a chunk of the announced tensor was expected")
            data = message.chunk.data  # type: ignore[attr-defined]
            if not data or len(buffer) + len(data) > tensor.chunked_bytes:
                raise MessageInvalid("the chunks do not add up to the announced tensor")
            buffer += data
        blobs.append(memoryview(buffer).toreadonly())
    return blobs


def reader(stream: AsyncIterator[Envelope]) -> Callable[[], Awaitable[Envelope]]:
    """Read the next message of a stream; its end in the middle of a tensor is an error."""

    async def following() -> Envelope:
        async for message in stream:
            return message
        raise MessageInvalid("the stream ended in the middle of a tensor")

    return following


def _announced(message: Message) -> Iterator[tensor_pb2.Tensor]:
    if isinstance(message, tensor_pb2.Tensor):
        if message.chunked_bytes:
            yield message
        return
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for item in value if _repeated(field) else (value,):
                yield from _announced(item)


def _repeated(field: Any) -> bool:
    return bool(field.is_repeated)
