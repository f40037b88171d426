"""Uniform ring elements from AES-256-CTR.

The stream of (key, round) starts at the 16-byte counter block `round id (8 bytes, big-endian) ‖ 0 (8 bytes)` and CTR
mode adds one per 16-byte block. Two rounds of one key can meet only if a round runs through 2^64 blocks (2^68 bytes),
so their counter blocks are disjoint, and AES under one key is a permutation: no block of keystream is used twice.
A mask between two parties (`PairStream`) starts at a counter block that a keyed BLAKE2b draws from the round and from
what both were told, so that they have nothing in common where they were told different things. Nobody else can aim at a
counter block, and two masks of q rounds of b blocks meet with a probability below q²·b/2^128: 2^-52 after 2^30 rounds
of a megabyte. A cipher for each round would hide as much, and making one costs more than a small mask.
Streams of different keys are independent because every key is 32 bytes of HKDF output or of the operating system.
A key serves one purpose and one width of ring: nothing else may be encrypted under it.
"""

import hashlib
import math
import os

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes

from parley.privacy.ring import Ring, RingArray

KEY_BYTES = 32
ROUND_LIMIT = 1 << 64
_PIECE = 1 << 15  # elements at a time, so that a mask is added while it is still in the cache
_ZEROS = memoryview(bytes(8 * _PIECE))


class RoundOutOfRange(ValueError):
    """A round id does not fit the 8 bytes that the counter block has for it."""


class MaskStream:
    """The masks of one key, for one thread at a time. It keeps its cipher: making one costs more than a small mask."""

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"a mask key has {KEY_BYTES} bytes, got {len(key)}")
        self._cipher = _cipher(key)

    def add(self, elements: RingArray, round_id: int, ring: Ring, *, subtract: bool = False) -> None:
        """Add the stream of a round to `elements` in place, or take it away; no whole mask is held in memory."""
        self._cipher.reset_nonce(_round_bytes(round_id) + bytes(8))
        _add(self._cipher, elements, ring, subtract)


class PairStream:
    """The masks between two parties, for one thread at a time: a stream for each round and what both were told."""

    def __init__(self, secret: bytes) -> None:
        if len(secret) != KEY_BYTES:
            raise ValueError(f"a pair secret has {KEY_BYTES} bytes, got {len(secret)}")
        self._cipher = _cipher(_derived(secret, b"masks"))
        self._starts = _derived(secret, b"starts")

    def add(self, elements: RingArray, round_id: int, told: bytes, ring: Ring, *, subtract: bool = False) -> None:
        """Add the mask of a round to `elements` in place, or take it away."""
        start = hashlib.blake2b(_round_bytes(round_id) + told, key=self._starts, digest_size=16)
        self._cipher.reset_nonce(start.digest())
        _add(self._cipher, elements, ring, subtract)


def add_round_mask(
    elements: RingArray, secret: bytes, round_id: int, told: bytes, ring: Ring, *, subtract: bool = False
) -> None:
    """Add the mask of two parties whose secret serves one round, or take it away."""
    PairStream(secret).add(elements, round_id, told, ring, subtract=subtract)


def _add(cipher: CipherContext, elements: RingArray, ring: Ring, subtract: bool) -> None:
    if not elements.flags.c_contiguous:
        raise ValueError("elements must be contiguous to be masked in place")
    flat = ring.checked(elements).reshape(-1)
    operation = np.subtract if subtract else np.add
    scratch = np.empty(min(_PIECE, flat.size), ring.dtype)
    for start in range(0, flat.size, _PIECE):
        part = flat[start : start + _PIECE]
        piece = scratch[: part.size]
        cipher.update_into(_ZEROS[: part.nbytes], piece.data.cast("B"))
        operation(part, piece, out=part)


def _cipher(key: bytes) -> CipherContext:
    return Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()


def _derived(secret: bytes, purpose: bytes) -> bytes:
    return hashlib.blake2b(purpose, key=secret, digest_size=KEY_BYTES, person=b"parley/pair/v1").digest()


def _round_bytes(round_id: int) -> bytes:
    if not 0 <= round_id < ROUND_LIMIT:
        raise RoundOutOfRange(f"round id {round_id} is not in [0, 2^64)")
    return round_id.to_bytes(8, "big")


def mask(key: bytes, round_id: int, shape: tuple[int, ...], ring: Ring) -> RingArray:
    """The first elements of the stream of (key, round), in the given shape."""
    elements = np.zeros(shape, ring.dtype)
    MaskStream(key).add(elements, round_id, ring)
    return elements


def random_mask(shape: tuple[int, ...], ring: Ring) -> RingArray:
    """A fresh mask that nobody can draw again: the key comes from the operating system and is forgotten."""
    elements = np.empty(math.prod(shape), ring.dtype)
    if elements.size:
        keystream = _cipher(os.urandom(KEY_BYTES))
        target = elements.data.cast("B")
        step = len(_ZEROS)
        for start in range(0, len(target), step):
            piece = target[start : start + step]
            keystream.update_into(_ZEROS[: len(piece)], piece)
    return elements.reshape(shape)
