"""Arrays to tensors and back. Decoding makes a read-only view of the message's bytes, not a copy."""

import math
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parley.contracts.tensor.v1 import tensor_pb2 as pb

Array = NDArray[Any]
Blobs = deque[memoryview]

INLINE_BYTES = 1 << 20
"""Larger tensors follow their message in chunks of this size, so that no message is large."""
LARGEST_TENSOR_BYTES = 1 << 30
"""Most bytes that the tensors of one message may announce together."""
MOST_AXES = 8
HALF_EXPONENT = 15
"""The largest element in half precision lies below 2^15."""
LARGEST_EXPONENT = 1100
"""Of two, beyond all that a float64 can hold."""

_TYPES: dict[int, np.dtype[Any]] = {
    pb.ELEMENT_TYPE_FLOAT32: np.dtype("<f4"),
    pb.ELEMENT_TYPE_FLOAT64: np.dtype("<f8"),
    pb.ELEMENT_TYPE_INT64: np.dtype("<i8"),
    pb.ELEMENT_TYPE_UINT64: np.dtype("<u8"),
    pb.ELEMENT_TYPE_UINT32: np.dtype("<u4"),
    pb.ELEMENT_TYPE_FLOAT16: np.dtype("<f2"),
    pb.ELEMENT_TYPE_UINT8: np.dtype("u1"),
    pb.ELEMENT_TYPE_UINT16: np.dtype("<u2"),
}
_CODES: dict[np.dtype[Any], Any] = {dtype: code for code, dtype in _TYPES.items()}


class MessageInvalid(ValueError):
    """A message that breaks its contract: shape, element type, size, order or a value that is not finite."""


def encode_tensor(array: Array, blobs: Blobs, into: pb.Tensor | None = None, *, half: bool = False) -> pb.Tensor:
    """Encode an array; a large one is announced, and its bytes are appended to `blobs` to follow in chunks.

    `into` is a field of a message: what is put there directly is copied once less. `half` sends floats in half
    precision with one exponent for all: each is good to 2^-11 of itself, or to 2^-40 of the largest if that is more.
    """
    tensor = pb.Tensor() if into is None else into
    if half and array.dtype.kind == "f":
        exponent = int(np.frexp(np.abs(array).max(initial=0.0))[1]) - HALF_EXPONENT
        tensor.exponent, array = exponent, np.ldexp(array, -exponent).astype(np.float16)
    code = _CODES.get(array.dtype.newbyteorder("<"))
    if code is None:
        raise MessageInvalid(f"arrays of {array.dtype} have no place on the wire")
    array = np.ascontiguousarray(array, dtype=_TYPES[code])
    tensor.element_type = code
    tensor.shape.extend(array.shape)
    if array.nbytes <= INLINE_BYTES:
        tensor.data = array.tobytes()
    else:
        tensor.chunked_bytes = array.nbytes
        blobs.append(array.reshape(-1).data.cast("B"))
    return tensor


def decode_tensor(tensor: pb.Tensor, blobs: Blobs, *, name: str, kinds: str = "f", ndim: int | None = None) -> Array:
    """Decode a tensor and check it. `kinds` are the numpy kinds that the field takes; `name` is for the message."""
    dtype = _TYPES.get(tensor.element_type)
    if dtype is None or dtype.kind not in kinds:
        raise MessageInvalid(f"{name}: element type {tensor.element_type} is not one that this field takes")
    shape = tuple(tensor.shape)
    if ndim is not None and len(shape) != ndim:
        raise MessageInvalid(f"{name}: {len(shape)} axes came, {ndim} are expected")
    if len(shape) > MOST_AXES or max(shape, default=0) > LARGEST_TENSOR_BYTES:
        raise MessageInvalid(f"{name}: shape {shape[:MOST_AXES]} is out of range")
    wanted = math.prod(shape) * dtype.itemsize
    if tensor.chunked_bytes and not blobs:
        raise MessageInvalid(f"{name}: its announced bytes did not come")
    data: bytes | memoryview = blobs.popleft() if tensor.chunked_bytes else tensor.data
    if wanted != len(data):
        raise MessageInvalid(f"{name}: shape {shape} needs {wanted} bytes, {len(data)} came")
    array = np.frombuffer(data, dtype=dtype).reshape(shape)
    if dtype.kind == "f" and not np.isfinite(array).all():
        raise MessageInvalid(f"{name}: holds values that are not finite")
    return _scaled(array, tensor.exponent, name) if tensor.exponent else array


def _scaled(array: Array, exponent: int, name: str) -> Array:
    if array.dtype.itemsize != 2 or array.dtype.kind != "f" or abs(exponent) > LARGEST_EXPONENT:
        raise MessageInvalid(f"{name}: an exponent of {exponent} is for half precision, and within ±{LARGEST_EXPONENT}")
    with np.errstate(over="ignore"):  # infinity is refused below
        values = np.ldexp(array.astype(np.float64), exponent)
    if not np.isfinite(values).all():
        raise MessageInvalid(f"{name}: holds values that are not finite")
    return values
