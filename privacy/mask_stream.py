"""Uniform ring elements from AES-256-CTR.

The stream of (key, round) starts at the 16-byte counter block `round id (8 bytes, big-endian) ‖ 0 (8 bytes)` and CTR
mode adds one per 16-byte block. Two rounds of one key can meet only if a round runs through 2^64 blocks (2^68 bytes),
so their counter blocks are disjoint, and AES under one key is a permutation: no block of keystream is used twice.
Streams of different keys are independent because every key is 32 bytes of HKDF output or of the operating system.
A key serves one purpose and one width of ring: nothing else may be encrypted under it.
"""

import math
import os
from collections.abc import Iterator

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from privacy.ring import Ring, RingArray

KEY_BYTES = 32
ROUND_LIMIT = 1 << 64
_PIECE = 1 << 15  # elements at a time, so that a mask is added while it is still in the cache
_ZEROS = memoryview(bytes(8 * _PIECE))


class RoundOutOfRange(ValueError):
    """A round id does not fit the 8 bytes that the counter block has for it."""


def _pieces(key: bytes, round_id: int, scratch: RingArray, count: int) -> Iterator[tuple[int, int]]:
    """Fill `scratch` with the next elements of the stream and yield where they belong."""
    if len(key) != KEY_BYTES:
        raise ValueError(f"a mask key has {KEY_BYTES} bytes, got {len(key)}")
    if not 0 <= round_id < ROUND_LIMIT:
        raise RoundOutOfRange(f"round id {round_id} is not in [0, 2^64)")
    first_block = round_id.to_bytes(8, "big") + bytes(8)
    keystream = Cipher(algorithms.AES(key), modes.CTR(first_block)).encryptor()
    width = scratch.itemsize
    target = scratch.data.cast("B")
    for start in range(0, count, scratch.size):
        length = min(scratch.size, count - start)
        keystream.update_into(_ZEROS[: length * width], target[: length * width])
        yield start, length


def mask(key: bytes, round_id: int, shape: tuple[int, ...], ring: Ring) -> RingArray:
    """The first elements of the stream of (key, round), in the given shape."""
    elements = np.zeros(shape, ring.dtype)
    add_mask(elements, key, round_id, ring)
    return elements


def add_mask(elements: RingArray, key: bytes, round_id: int, ring: Ring, *, subtract: bool = False) -> None:
    """Add the stream of (key, round) to `elements` in place, or take it away; no whole mask is held in memory."""
    if not elements.flags.c_contiguous:
        raise ValueError("elements must be contiguous to be masked in place")
    flat = ring.checked(elements).reshape(-1)
    operation = np.subtract if subtract else np.add
    scratch = np.empty(max(1, min(_PIECE, flat.size)), ring.dtype)
    for start, length in _pieces(key, round_id, scratch, flat.size):
        part = flat[start : start + length]
        operation(part, scratch[:length], out=part)


def random_mask(shape: tuple[int, ...], ring: Ring) -> RingArray:
    """A fresh mask that nobody can draw again: the key comes from the operating system and is forgotten."""
    elements = np.empty(math.prod(shape), ring.dtype)
    if elements.size:
        keystream = Cipher(algorithms.AES(os.urandom(KEY_BYTES)), modes.CTR(bytes(16))).encryptor()
        target = elements.data.cast("B")
        step = len(_ZEROS)
        for start in range(0, len(target), step):
            piece = target[start : start + step]
            keystream.update_into(_ZEROS[: len(piece)], piece)
    return elements.reshape(shape)
