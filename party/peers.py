"""The other parties of a session, as an algorithm sees them."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from google.protobuf.message import Message

from parley.protocols.tensor.codec import Blobs

Result = TypeVar("Result")
Take = Callable[[int, Any, Blobs], None]
"""Takes a message from the party with this block."""


class PeerLost(ConnectionError):
    """Another party cannot be reached, or did not send what is due."""


class PeerFlooded(RuntimeError):
    """More messages came than this party keeps."""


class Peers(Protocol):
    """What one party sends to, and takes from, the others of its session."""

    sent_bytes: int
    """Bytes of the messages that were sent, serialised."""

    def on(self, body: str, take: Take) -> None:
        """Hand messages of one kind to this function; before that they are refused."""

    async def push(self, receiver: int, blobs: Blobs, **body: Message) -> None:
        """Send a message, and the chunks of what it announces. Raises PeerLost if the receiver cannot be reached."""


async def in_time(steps: Awaitable[Result], seconds: float | None, what: str) -> Result:
    """The result of steps with neighbours, if they do not keep this party waiting for too long."""
    try:
        async with asyncio.timeout(seconds):
            return await steps
    except TimeoutError:
        raise PeerLost(
            f"{what} took more than {seconds:g} s: a neighbour is slow or gone (or lower `stretch`)"
        ) from None
