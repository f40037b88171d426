"""Tensors in a safetensors file that carries its own checksum, so that any damage shows.

The checksum stands in the file's metadata as `sha256`. It covers every byte of the file, with zeros in its own place.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from safetensors import SafetensorError

if TYPE_CHECKING:
    from torch import Tensor

ENTRY = "sha256"
_LENGTH_BYTES = 8
_UNSEALED = "0" * 64


class FileDamaged(ValueError):
    """The content is not what was written."""


def seal(tensors: Mapping[str, Tensor]) -> bytes:
    """A file with these tensors."""
    from safetensors.torch import save

    named = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    data = save(named, metadata={ENTRY: _UNSEALED})
    return data.replace(_entry(_UNSEALED), _entry(hashlib.sha256(data).hexdigest()), 1)


def unseal(content: bytes) -> dict[str, Tensor]:
    """The tensors of a file, if not a byte of it has changed."""
    from safetensors.torch import load

    digest = _sealed_with(content)
    if digest is None:
        content = _without_old_seal(content)
    elif hashlib.sha256(content.replace(_entry(digest), _entry(_UNSEALED), 1)).hexdigest() != digest:
        raise FileDamaged("its checksum does not fit")
    try:
        return dict(load(content))
    except SafetensorError as error:
        raise FileDamaged(str(error)) from None


def _entry(digest: str) -> bytes:
    """The metadata as the library writes it; a tensor's name cannot look like it, since JSON escapes its quotes."""
    return f'"{ENTRY}":"{digest}"'.encode()


def _sealed_with(content: bytes) -> str | None:
    """The checksum in the file's metadata; None where there is none."""
    length = int.from_bytes(content[:_LENGTH_BYTES], "little")
    try:
        digest = json.loads(content[_LENGTH_BYTES : _LENGTH_BYTES + length])["__metadata__"][ENTRY]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return digest if isinstance(digest, str) else None


def _without_old_seal(content: bytes) -> bytes:
    """Earlier versions put the checksum after the last byte, where other programs stumble over it."""
    data, digest = content[:-32], content[-32:]
    if hashlib.sha256(data).digest() != digest:
        raise FileDamaged("its checksum does not fit")
    return data
