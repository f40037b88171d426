"""Ids as points of Curve25519, and powers of points by X25519.

A point travels as its u-coordinate, 32 bytes little-endian. A power is one X25519 (RFC 7748), of `cryptography` or
eight at once (`privacy.psi_lanes`): its scalars are multiples of 8, so a result lies in the subgroup of prime order ℓ
or on the twist, never in a small group.

Ids are hashed to the curve by Elligator 2 (RFC 9380, section 6.7.1): t = SHA-512(id) mod p, v = −A/(1 + 2t²), and
u = v if v is on the curve, else −v − A, which then is. A bare hash as u-coordinate would not do: half of them lie on
the twist, a power stays on its side, and so a blinded id would give away one bit of it. Elligator 2 reaches half of
the curve, every reached point from a t that is easily found; that is enough for the argument in `privacy.psi`, in which
a simulator draws random points until one is reached.

`Blinding.inverse` undoes a blinding: on the subgroup [s][r]P = P if s·r ≡ 1 mod ℓ. X25519 takes scalars of the form
8·n in [2^254, 2^255) only, and about half of all r have an inverse of that form; r is drawn until it has one.
"""

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from gmpy2 import invert, jacobi, mpz

from parley.privacy.psi_lanes import POINT_BYTES as POINT_BYTES
from parley.privacy.psi_lanes import lanes

_P = mpz(2**255 - 19)
_A = mpz(486662)
_ORDER = 2**252 + 27742317777372353535851937790883648493
"""ℓ: the prime order of the subgroup that X25519 works in."""
_LABEL = b"parley/psi/id/v1"
_NO_POINT = bytes(POINT_BYTES)
_SMALL_ORDER = "a point has small order: it says nothing about an id, but might about a key"


class PointRefused(ValueError):
    """Bytes that are no list of usable points."""


@dataclass(frozen=True)
class Blinding:
    """A scalar r, and the scalar s that undoes it."""

    scalar: bytes = field(repr=False)
    inverse: bytes = field(repr=False)


def fresh_scalar() -> bytes:
    """A secret scalar from the operating system's randomness."""
    return _fresh().to_bytes(32, "little")


def fresh_blinding() -> Blinding:
    """A secret scalar that has an inverse which X25519 takes."""
    while True:
        r = _fresh()
        # s ≡ 1/r mod ℓ and s ≡ 0 mod 8; 8ℓ is a little more than 2^255, so there is one candidate.
        s = 8 * (pow(8 * r, -1, _ORDER))
        if 2**254 <= s < 2**255:
            return Blinding(r.to_bytes(32, "little"), s.to_bytes(32, "little"))


def _fresh() -> int:
    return 2**254 + 8 * secrets.randbelow(2**251)


def hashed(ids: Sequence[str], context: bytes) -> bytes:
    """The points of ids, one after the other. Points of different contexts have nothing to do with each other."""
    prefix = hashlib.sha512(_LABEL + len(context).to_bytes(4, "big") + context)
    ts = []
    for identity in ids:
        digest = prefix.copy()
        digest.update(identity.encode())
        ts.append(mpz.from_bytes(digest.digest(), "little") % _P)
    # 1 + 2t² is never 0: −1/2 is no square mod p.
    vs = [-_A * inverse % _P for inverse in _inverses([(1 + 2 * t * t) % _P for t in ts])]
    points = (v if jacobi(v * (v * v + _A * v + 1) % _P, _P) >= 0 else (-v - _A) % _P for v in vs)
    return b"".join(u.to_bytes(POINT_BYTES, "little") for u in points)


def power(points: bytes, scalar: bytes) -> bytes:
    """Every point to the power of one scalar.

    Raises:
        PointRefused: if the bytes are no whole points, or one of them has small order.
    """
    if len(points) % POINT_BYTES:
        raise PointRefused(f"{len(points)} bytes are no whole number of points of {POINT_BYTES} bytes")
    starts = range(0, len(points), POINT_BYTES)
    exchange = lanes()
    if exchange is not None:
        found = exchange(points, scalar)
        if any(found[start : start + POINT_BYTES] == _NO_POINT for start in starts):
            raise PointRefused(_SMALL_ORDER)
        return found
    key = X25519PrivateKey.from_private_bytes(scalar)
    try:
        return b"".join(
            key.exchange(X25519PublicKey.from_public_bytes(points[start : start + POINT_BYTES])) for start in starts
        )
    except ValueError:
        raise PointRefused(_SMALL_ORDER) from None


def hashed_power(ids: Sequence[str], context: bytes, scalar: bytes) -> bytes:
    """The points of ids to the power of one scalar."""
    return power(hashed(ids, context), scalar)


def _inverses(values: Sequence[mpz]) -> list[mpz]:
    """1/v mod p for all v with one inversion: products up to each v, and then back."""
    products, product = [], mpz(1)
    for value in values:
        products.append(product)
        product = product * value % _P
    inverse = invert(product, _P)
    found = []
    for value, before in zip(reversed(values), reversed(products), strict=True):
        found.append(inverse * before % _P)
        inverse = inverse * value % _P
    return found[::-1]
