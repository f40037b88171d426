"""Eight X25519 at once, by crypto_mb of Intel's Cryptography Primitives, where it is there to use.

The extra `parley-fl[align]` brings the library; it needs a processor with AVX-512 IFMA and is then about seven times as
fast as one X25519 after the other. The results are the same bytes, so that organisations with and without it align with
each other. It is taken only if it gives what `cryptography` gives for known points: wherever it is missing or cannot
run, nothing else changes.
"""

import ctypes
import functools
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

LANES, POINT_BYTES = 8, 32
_RUNTIME = ("libintlc.so.5", "libimf.so", "libirng.so", "libsvml.so")
"""What crypto_mb was linked with, in an order in which each finds those that it needs."""

Exchange = Callable[[bytes, bytes], bytes]
"""(points, scalar) → every point to the power of the scalar; zeros for a point of small order."""


@functools.cache
def lanes() -> Exchange | None:
    """The library, if it is installed and right on this processor."""
    try:
        for name in _RUNTIME:
            ctypes.CDLL(_installed("intel-cmplr-lib-rt", name), mode=ctypes.RTLD_GLOBAL)
        library = ctypes.CDLL(_installed("ipp-crypto", "libcrypto_mb.so"))
        applicable, exchange = library.mbx_is_crypto_mb_applicable, _bound(library.mbx_x25519_mb8)
    except (PackageNotFoundError, FileNotFoundError, OSError, AttributeError):
        return None
    applicable.argtypes = (ctypes.c_uint64,)
    # Asked before anything else is called: what a processor does not know would end the process.
    return exchange if applicable(0) == 1 and _is_right(exchange) else None


def _installed(package: str, name: str) -> str:
    """Where a package has put a shared library."""
    for file in files(package) or ():
        if file.name == name:
            return str(Path(str(file.locate())).resolve(strict=True))
    raise FileNotFoundError(name)


def _bound(function: Callable[..., int]) -> Exchange:
    addresses = ctypes.c_void_p * LANES

    def exchange(points: bytes, scalar: bytes) -> bytes:
        count = len(points) // POINT_BYTES
        padded = points + points[-POINT_BYTES:] * (-count % LANES)  # every lane is used; what is too many is dropped
        key, given = ctypes.create_string_buffer(scalar, POINT_BYTES), ctypes.create_string_buffer(padded, len(padded))
        found = ctypes.create_string_buffer(len(padded))
        keys = addresses(*[ctypes.addressof(key)] * LANES)
        sources, targets = ctypes.addressof(given), ctypes.addressof(found)
        step = LANES * POINT_BYTES
        for first in range(0, len(padded), step):
            lane = range(first, first + step, POINT_BYTES)
            function(addresses(*(targets + at for at in lane)), keys, addresses(*(sources + at for at in lane)))
        ctypes.memset(key, 0, POINT_BYTES)
        return found.raw[: len(points)]

    return exchange


def _is_right(exchange: Exchange) -> bool:
    """Whether it gives what OpenSSL gives: the base point, bytes beyond p, the twist, and zeros for small order."""
    scalar = bytes([64] * 31 + [127])
    known = [bytes([number]) + bytes(30) + bytes([top]) for number in range(2, 11) for top in (0, 127, 255)]
    key = X25519PrivateKey.from_private_bytes(scalar)
    expected = b"".join(key.exchange(X25519PublicKey.from_public_bytes(point)) for point in known)
    return exchange(b"".join([*known, bytes(32)]), scalar) == expected + bytes(POINT_BYTES)
