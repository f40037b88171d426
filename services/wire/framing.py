"""Large tensors on a stream: a message announces them, chunks carry them, in field order."""

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

import numpy as np
from google.protobuf.message import Message

from parley.protocols.tensor.codec import INLINE_BYTES, LARGEST_TENSOR_BYTES, Blobs, MessageInvalid

Envelope = TypeVar("Envelope", bound=Message)


def framed(envelope: type[Envelope], blobs: Blobs, **body: Message) -> list[Envelope]:
    """A message in its envelope, and in others the chunks of the large tensors that it announces."""
    if not blobs:
        return [envelope(**body)]
    framed = [envelope(following_bytes=[len(blob) for blob in blobs], **body)]
    for blob in blobs:
        for start in range(0, len(blob), INLINE_BYTES):
            framed.append(envelope())
            framed[-1].chunk.data = bytes(blob[start : start + INLINE_BYTES])  # type: ignore[attr-defined]
    return framed


async def receive(first: Envelope, following: Callable[[], Awaitable[Envelope]]) -> Blobs:
    """The bytes of every tensor that `first` announced, read from the messages that follow it."""
    blobs: Blobs = deque()
    sizes: Sequence[int] = first.following_bytes  # type: ignore[attr-defined]
    if sum(sizes) > LARGEST_TENSOR_BYTES:
        raise MessageInvalid(f"tensors of {sum(sizes)} bytes were announced; at most {LARGEST_TENSOR_BYTES} are taken")
    for size in sizes:
        buffer = np.empty(size, np.uint8).data  # an announcement alone costs no memory
        filled = 0
        while filled < size:
            message = await following()
            if message.WhichOneof("body") != "chunk":
                raise MessageInvalid("a chunk of the announced tensor was expected")
            data = message.chunk.data  # type: ignore[attr-defined]
            if not data or filled + len(data) > size:
                raise MessageInvalid("the chunks do not add up to the announced tensor")
            buffer[filled : filled + len(data)] = data
            filled += len(data)
        blobs.append(buffer.toreadonly())
    return blobs


def reader(stream: AsyncIterator[Envelope]) -> Callable[[], Awaitable[Envelope]]:
    """Read the next message of a stream; its end in the middle of a tensor is an error."""

    async def following() -> Envelope:
        async for message in stream:
            return message
        raise MessageInvalid("the stream ended in the middle of a tensor")

    return following
