"""Noise that is drawn once for a record, for ever: whoever releases it again releases the same bytes.

A run that drew noise of its own would give each record a fresh sample, and k runs average k samples. Here the random
words of a record follow from the holder's key, the data set, the record's identity and its value, and from the
mechanism with its parameters: neither from a run, nor from a row's place in a table. Another order of the rows, some of
them, or more of them draw the same noise; a value that has changed draws noise of its own, for the same noise over two
values would show both.

    tag of an identity   keyed BLAKE2b of (data set, canonical id), 16 bytes
    tag of a record      AES under a derived key of (identity ⊕ value's tag): a permutation, so no two records share one
    words of a record    AES-CTR under a key derived from (purpose, classes): nonce = 12 bytes of the record's tag

The tags stand in the ledger of the data set. They are keyed, so the ledger tells nobody who is in the table or which
label a record has; and with another key they are other records, as they must be, for their noise is drawn anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b, sha256

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from parley.privacy.noise import KeyedNoise, Words
from parley.tables.identities import canonical_all
from parley.tables.rows import pieces

Tags = NDArray[np.uint8]
"""16 bytes for each record."""

TAG_BYTES = 16


@dataclass(frozen=True, eq=False)
class RecordTags:
    """The records of a table as the ledger of their data set knows them."""

    dataset: str
    """The data set that they belong to."""
    identities: Tags = field(repr=False)
    """Who each record is about."""
    records: Tags = field(repr=False)
    """The same together with the record's value."""

    def __len__(self) -> int:
        return len(self.records)


def tag_records(
    noise: KeyedNoise, dataset: str, ids: Sequence[str] | NDArray[np.str_], values: NDArray[np.void]
) -> RecordTags:
    """Tag records by identity and value; `values` is what `class_tags` or `number_tags` makes of the labels."""
    key = _derived(noise, "identity", dataset)
    identities = np.empty((len(ids), TAG_BYTES), dtype=np.uint8)
    for rows, spelled in _one_spelling(ids):
        joined = b"".join([blake2b(text.encode(), digest_size=TAG_BYTES, key=key).digest() for text in spelled])
        identities[rows] = np.frombuffer(joined, dtype=np.uint8).reshape(-1, TAG_BYTES)
    mixed = np.bitwise_xor(identities, values.view(np.uint8).reshape(-1, TAG_BYTES))
    records = _permuted(_derived(noise, "record", dataset), mixed)
    return RecordTags(dataset, identities, records)


def class_tags(classes: Sequence[str], values: NDArray[np.int64]) -> NDArray[np.void]:
    """What classes are called, not how they are numbered: a class more moves the numbers of the others."""
    named = b"".join(sha256(b"class\0" + name.encode()).digest()[:TAG_BYTES] for name in classes)
    return np.frombuffer(named, dtype=f"V{TAG_BYTES}")[values]


def number_tags(values: NDArray[np.float64]) -> NDArray[np.void]:
    """The bits of real values, one row for each record."""
    rows = np.ascontiguousarray(values, dtype="<f8").reshape(len(values), -1)
    if rows.shape[1] == 1:
        wide = np.zeros((len(rows), 2), dtype="<f8")
        wide[:, 0] = rows[:, 0] + 0.0  # −0 and 0 are one value
        return wide.view(f"V{TAG_BYTES}").reshape(-1)
    digests = b"".join(sha256(row.tobytes()).digest()[:TAG_BYTES] for row in rows)
    return np.frombuffer(digests, dtype=f"V{TAG_BYTES}")


@dataclass(frozen=True)
class PermanentNoise:
    """Random words of records whose noise must never change. Takes the place of `KeyedNoise` where it is drawn once."""

    noise: KeyedNoise
    tags: RecordTags
    context: str = ""
    """What else the draw depends on, such as the names of the classes."""

    def words(self, purpose: str, run: str, release: int, records: NDArray[np.int64], count: int) -> Words:  # noqa: ARG002
        """Return `count` words for each record; neither the run nor the release changes them."""
        blocks = (count + 1) // 2  # a block is 16 bytes: two words
        records = np.asarray(records, dtype=np.int64).reshape(-1)
        inputs = np.empty((records.size, blocks, TAG_BYTES), dtype=np.uint8)
        inputs[:, :, :12] = self.tags.records[records, None, :12]
        inputs[:, :, 12:] = np.arange(blocks, dtype=">u4").view(np.uint8).reshape(blocks, 4)
        key = _derived(self.noise, "words", self.tags.dataset, purpose, self.context)
        stream = _permuted(key, inputs.reshape(-1, TAG_BYTES))
        return stream.reshape(-1).view("<u8").reshape(records.size, 2 * blocks)[:, :count]

    def draw_name(self, purpose: str) -> str:
        """Name the draw in the ledger: charges under one name are for one and the same noise."""
        return sha256(_written("draw", purpose, self.context)).hexdigest()[:32]


def _one_spelling(ids: Sequence[str] | NDArray[np.str_]) -> Iterator[tuple[slice, list[str]]]:
    """Ids as an alignment spells them, so that aligned runs draw the same noise; as written where two would meet.

    A shard at a time where all of them are written so: as texts, millions of ids take more memory than all else.
    """
    if all(_spelled(some) == some for some in (_texts(ids[rows]) for rows in pieces(len(ids)))):
        yield from ((rows, _texts(ids[rows])) for rows in pieces(len(ids)))
        return
    raw = _texts(ids)
    spelled = _spelled(raw)
    counts = Counter(spelled)
    yield slice(None), [one if counts[one] == 1 else other for one, other in zip(spelled, raw, strict=True)]


def _texts(ids: Sequence[str] | NDArray[np.str_]) -> list[str]:
    return ids.tolist() if isinstance(ids, np.ndarray) else [str(identity) for identity in ids]


def _spelled(ids: list[str]) -> list[str]:
    return [one or other for one, other in zip(canonical_all(ids), ids, strict=True)]


def _derived(noise: KeyedNoise, *parts: str) -> bytes:
    return blake2b(_written("parley.permanent.v1", *parts), key=noise.key, digest_size=32).digest()


def _written(*parts: str) -> bytes:
    encoded = [part.encode() for part in parts]
    return b"".join(len(part).to_bytes(8, "big") + part for part in encoded)


def _permuted(key: bytes, blocks: Tags) -> Tags:
    """Each block under AES-256: a permutation for one key, so distinct blocks stay distinct."""
    cipher = Cipher(algorithms.AES(key), modes.ECB()).encryptor()  # noqa: S305
    return np.frombuffer(cipher.update(np.ascontiguousarray(blocks).tobytes()), dtype=np.uint8).reshape(-1, TAG_BYTES)
