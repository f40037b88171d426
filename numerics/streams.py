"""Named, counter-based randomness for experiments.

Every random choice of a run (batches, directions, initial weights) comes from a stream that is addressed
by (seed, name, k, t): k is the upper and t the lower iteration. Nothing is carried from one step to the
next, so a process that restarts at any step draws what it would have drawn, and parties that share a seed
agree on a batch without listing it.

The generator is Philox4x64: a keyed bijection of a 256-bit counter. The key is the first 128 bits of
SHA-256(seed, name). The counter starts at (0, 0, k, t), lowest word first: k and t fill the two high words,
and drawing advances the two low ones. Two streams of one name could only meet after 2¹²⁸ blocks.

This is not a source of privacy noise: whoever knows the seed knows every draw.
"""

import hashlib
import math
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

DirectionKind = Literal["orthogonal", "gaussian"]

_DOMAIN = b"parley.stream.v1"
_WORD = 2**64
_SORTED_ABOVE = 32
"""Rows for each one that is drawn."""


class InvalidStream(ValueError):
    """A stream, a batch or a set of directions was asked for with impossible numbers."""


def stream(seed: int, name: str, k: int = 0, t: int = 0) -> np.random.Generator:
    """Return the generator addressed by (seed, name, k, t)."""
    return np.random.Generator(_philox(seed, name, k, t))


def batch(seed: int, name: str, k: int, t: int, rows: int | NDArray[np.integer], size: int) -> NDArray[np.int64]:
    """Draw `size` distinct rows, uniformly, in their own order; all of them if `size` covers them.

    `rows` is a number of rows (0 … rows − 1) or an array of row indices to draw from. Only raw Philox words
    and integer arithmetic are used: organisations with different versions of numpy must agree on every batch,
    and across versions numpy promises a bit generator's raw words, but not what `Generator` makes of them.
    """
    candidates = None if isinstance(rows, int | np.integer) else np.asarray(rows, dtype=np.int64)
    if candidates is not None and candidates.ndim != 1:
        raise InvalidStream(f"Rows to draw from must be a list of indices, not an array of shape {candidates.shape}.")
    count = int(rows) if candidates is None else len(candidates)
    if count < 1 or size < 1:
        raise InvalidStream(f"A batch of {size} from {count} rows cannot be drawn: both numbers must be at least 1.")
    if size >= count:
        chosen = np.arange(count, dtype=np.int64)
    elif 2 * size > count:  # cheaper, and still uniform: choose which rows to leave out
        kept = np.ones(count, dtype=bool)
        kept[_distinct(seed, name, k, t, count, count - size)] = False
        chosen = np.flatnonzero(kept)
    else:
        chosen = np.sort(_distinct(seed, name, k, t, count, size))
    return chosen if candidates is None else candidates[chosen]


def directions(
    seed: int,
    k: int,
    count: int,
    size: int,
    kind: DirectionKind = "orthogonal",
    *,
    name: str = "directions",
) -> NDArray[np.float64]:
    """Draw the `count` perturbation directions of upper step k, one per row, each with E[u uᵀ] = I.

    `orthogonal`: rows of a Haar-random orthogonal matrix, scaled by √size, so that
    directionsᵀ directions / count = I when count = size; beyond that, independent blocks are stacked.
    `gaussian`: standard normal entries. LAPACK builds may differ in the last bits, which is harmless: no two
    organisations need the same direction to the last bit.
    """
    if count < 1 or size < 1:
        raise InvalidStream(f"{count} directions of size {size} cannot be drawn: both numbers must be at least 1.")
    if kind == "gaussian":
        return stream(seed, name, k).standard_normal((count, size))
    if kind != "orthogonal":
        raise InvalidStream(f"Unknown kind of directions {kind!r}: use 'orthogonal' or 'gaussian'.")
    blocks = [
        _orthogonal_rows(stream(seed, name, k, t=block), min(size, count - start), size)
        for block, start in enumerate(range(0, count, size))
    ]
    return np.concatenate(blocks) * math.sqrt(size)


def _philox(seed: int, name: str, k: int, t: int) -> np.random.Philox:
    return np.random.Philox(key=_key(int(seed), name), counter=_counter(name, k, t))


_SHARED = np.random.Philox(0)
_NO_WORDS = np.zeros(4, dtype=np.uint64)


def _words(seed: int, name: str, k: int, t: int, size: int) -> NDArray[np.uint64]:
    """The first raw words of `_philox`. A new generator asks the system for entropy that it does not use; this one does
    not, and a batch is drawn in every step.
    """
    key, counter = _key(int(seed), name), _counter(name, k, t)
    with _SHARED.lock:
        _SHARED.state = {
            "bit_generator": "Philox",
            "state": {"key": key, "counter": counter},
            "buffer": _NO_WORDS,
            "buffer_pos": len(_NO_WORDS),
            "has_uint32": 0,
            "uinteger": 0,
        }
        return np.asarray(_SHARED.random_raw(size), dtype=np.uint64)


def _counter(name: str, k: int, t: int) -> NDArray[np.uint64]:
    if not (0 <= k < _WORD and 0 <= t < _WORD):
        raise InvalidStream(f"Stream {name!r} at k={k}, t={t}: both must lie in 0 … 2⁶⁴ − 1.")
    return np.array([0, 0, k, t], dtype=np.uint64)


@lru_cache(maxsize=256)
def _key(seed: int, name: str) -> NDArray[np.uint64]:
    # The decimal seed holds no NUL, so (seed, name) is encoded without ambiguity.
    digest = hashlib.sha256(b"\0".join([_DOMAIN, str(seed).encode(), name.encode()])).digest()
    return np.frombuffer(digest[:16], dtype="<u8").astype(np.uint64)


def _distinct(seed: int, name: str, k: int, t: int, count: int, size: int) -> NDArray[np.int64]:
    """Draw uniformly from 0 … count − 1 and keep the first `size` distinct values.

    word mod count is biased by less than count / 2⁶⁴: below 1e-10 for a billion rows.
    """
    # With what repeats on average, and a little more: one draw is then enough almost always.
    wanted = size + size * size // count + 16
    while True:
        drawn = (_words(seed, name, k, t, wanted) % np.uint64(count)).astype(np.int64)
        distinct = drawn[_earliest(drawn, count)]
        if len(distinct) >= size:
            return distinct[:size]
        wanted *= 2


def _earliest(drawn: NDArray[np.int64], count: int) -> NDArray[np.int64] | NDArray[np.bool_]:
    """Where values below `count` stand for the first time, in order."""
    if count > _SORTED_ABOVE * len(drawn):  # a place for each of many rows would cost more memory than sorting a few
        return np.sort(np.unique(drawn, return_index=True)[1])
    places = np.arange(len(drawn))
    earliest = np.empty(count, dtype=np.int64)
    earliest[drawn[::-1]] = places[::-1]  # of all places of a value the last one written stays: the earliest
    first: NDArray[np.bool_] = earliest[drawn] == places
    return first


def _orthogonal_rows(generator: np.random.Generator, count: int, size: int) -> NDArray[np.float64]:
    q, r = np.linalg.qr(generator.standard_normal((size, count)))
    # QR alone prefers a sign per column; making R's diagonal positive gives the Haar measure.
    return np.ascontiguousarray((q * np.where(np.diag(r) < 0, -1.0, 1.0)).T)
