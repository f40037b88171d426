"""Lists that may grow travel in pages: a message has its limit, a list has none."""

import base64
import binascii
from collections.abc import Iterator, Sequence
from typing import TypeVar

from google.protobuf.message import Message

from parley.protocols.tensor.codec import MessageInvalid

PAGE_BYTES = 1 << 20
"""A page ends here at the latest, and far below the limit of a message: other fields travel with it."""
FRAME_BYTES = 8
"""What an element costs beside its own bytes, at most."""

Element = TypeVar("Element", bound=Message)


def text_pages(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """The texts, in order, in as many pages as they need; one empty page if there are none."""
    first = size = 0
    for place, text in enumerate(texts):
        needed = len(text) if text.isascii() else len(text.encode())
        if place > first and size + needed + FRAME_BYTES > PAGE_BYTES:
            yield texts[first:place]
            first, size = place, 0
        size += needed + FRAME_BYTES
    yield texts[first:]


def page_of(elements: Sequence[Element], token: str) -> tuple[Sequence[Element], str]:
    """The page of a list that begins where `token` says, and the token of the next one; empty if there is none."""
    first = decode_page_token(token) or 0
    if not 0 <= first <= len(elements):
        raise MessageInvalid("page_token: the list has no such page: begin again without a token")
    size = 0
    for place in range(first, len(elements)):
        size += elements[place].ByteSize() + FRAME_BYTES
        if place > first and size > PAGE_BYTES:
            return elements[first:place], page_token(place)
    return elements[first:], ""


def page_token(number: int) -> str:
    """Names where the next page begins; clients hand it back as it is."""
    return base64.urlsafe_b64encode(str(number).encode()).decode()


def decode_page_token(token: str) -> int | None:
    """Where a page begins; None for the first one."""
    if not token:
        return None
    try:
        return int(base64.urlsafe_b64decode(token.encode()))
    except (ValueError, binascii.Error):
        raise MessageInvalid("page_token: give the next_page_token of the page before, unchanged") from None
