"""Ids of millions of rows as bytes: what Python would do one after the other, done for all of them at once.

An array of texts holds four bytes for each character, with zeros behind the last. Where all are ASCII, as ids nearly
always are, that is a table of bytes with a row for each; elsewhere texts are taken one by one, and the result is the
same.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_LENGTH_BYTES = 4


def terminated(texts: NDArray[np.str_]) -> bytes:
    """UTF-8 of each text, and a zero behind it."""
    codes = _ascii(texts)
    if codes is None:
        return b"".join(text.encode() + b"\0" for text in texts.tolist())
    written = np.zeros((len(codes), codes.shape[1] + 1), np.uint8)
    written[:, :-1] = codes
    return written[np.arange(written.shape[1]) <= _lengths(codes)[:, None]].tobytes()


def with_lengths(texts: NDArray[np.str_] | Sequence[str]) -> bytes:
    """UTF-8 of each text behind its length in bytes, as four bytes with the highest first."""
    codes = _ascii(texts) if isinstance(texts, np.ndarray) else None
    if codes is None:
        encoded = [str(text).encode() for text in texts]
        return b"".join(len(text).to_bytes(_LENGTH_BYTES, "big") + text for text in encoded)
    lengths = _lengths(codes)
    written = np.empty((len(codes), _LENGTH_BYTES + codes.shape[1]), np.uint8)
    written[:, :_LENGTH_BYTES] = lengths.astype(">u4").view(np.uint8).reshape(len(codes), _LENGTH_BYTES)
    written[:, _LENGTH_BYTES:] = codes
    return written[np.arange(written.shape[1]) < _LENGTH_BYTES + lengths[:, None]].tobytes()


def in_order(texts: NDArray[np.str_]) -> NDArray[np.str_]:
    """The same texts sorted by their characters, as Python sorts them."""
    codes = _ascii(texts)
    if codes is None:
        return np.sort(texts)
    narrow = np.sort(codes.view(f"S{codes.shape[1]}").reshape(-1))  # a quarter of the bytes to compare
    return narrow.astype(texts.dtype)


def from_arrow(texts: pa.Array, width: int) -> NDArray[np.str_]:
    """Arrow's texts, none of them missing, as an array of texts of up to `width` characters."""
    _, offsets, data = texts.buffers()
    if not len(texts) or data is None:
        return np.zeros(len(texts), dtype=f"<U{width}")
    ends = np.frombuffer(offsets, np.int64 if pa.types.is_large_string(texts.type) else np.int32)
    ends = ends[texts.offset : texts.offset + len(texts) + 1]
    written = np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]
    if written.max(initial=0) > 127:
        return np.array(texts.to_pylist(), dtype=f"<U{width}")
    codes = np.zeros((len(texts), width), "<u4")
    codes[np.arange(width) < np.diff(ends)[:, None]] = written
    return codes.view(f"<U{width}").reshape(-1)


def _ascii(texts: NDArray[np.str_]) -> NDArray[np.uint8] | None:
    """A row of bytes for each text; None where they are not all ASCII."""
    if not texts.size:
        return None
    codes = np.ascontiguousarray(texts).view(np.dtype("u4").newbyteorder(texts.dtype.byteorder))
    return codes.astype(np.uint8).reshape(len(texts), -1) if codes.max() < 128 else None


def _lengths(codes: NDArray[np.uint8]) -> NDArray[np.intp]:
    """Of each text: up to its last character that is not zero."""
    last: NDArray[np.intp] = (codes[:, ::-1] != 0).argmax(axis=1)
    return np.where(codes.any(axis=1), codes.shape[1] - last, 0)
