"""Shamir's t-of-n sharing of 32-byte secrets (A. Shamir, How to share a secret, 1979).

The field is Z_p with p = 2^256 + 297, the smallest prime above 2^256, so that any 32 bytes are one element and a share
is 33 bytes. Fewer than t shares are independent of the secret.
"""

import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

PRIME = 2**256 + 297
SECRET_BYTES = 32
SHARE_BYTES = 33


class ThresholdImpossible(ValueError):
    """The threshold or the points cannot make a sharing."""


class NotEnoughShares(ValueError):
    """Fewer shares than the threshold."""


class SharesInconsistent(ValueError):
    """The shares do not lie on one polynomial of the right degree: some holder sent a wrong one."""


@dataclass(frozen=True)
class Share:
    """One point of the polynomial. Its value is secret."""

    point: int
    """x ≥ 1; party i holds the point i + 1."""
    value: int = field(repr=False)
    """The polynomial at x, below PRIME."""

    def to_bytes(self) -> bytes:
        """The value, big-endian, SHARE_BYTES long."""
        return self.value.to_bytes(SHARE_BYTES, "big")

    @classmethod
    def from_bytes(cls, point: int, value: bytes) -> "Share":
        """The share at `point`, from its holder's bytes."""
        if len(value) != SHARE_BYTES or (number := int.from_bytes(value, "big")) >= PRIME:
            raise SharesInconsistent(f"the share at point {point} is not {SHARE_BYTES} bytes below the prime")
        return cls(point, number)


def split(secret: bytes, threshold: int, points: Collection[int]) -> dict[int, Share]:
    """Share `secret` so that any `threshold` of the points give it back and fewer say nothing."""
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a secret has {SECRET_BYTES} bytes, got {len(secret)}")
    if not 1 <= threshold <= len(points):
        raise ThresholdImpossible(f"a threshold of {threshold} cannot be met by {len(points)} holders")
    if any(not 1 <= point < PRIME for point in points) or len(set(points)) != len(points):
        raise ThresholdImpossible("points must differ and start at 1: the point 0 is the secret itself")
    coefficients = [int.from_bytes(secret, "big"), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    return {point: Share(point, _evaluate(coefficients, point)) for point in points}


def combine(shares: Mapping[int, Share], threshold: int) -> bytes:
    """The secret from at least `threshold` shares, keyed by point; more than that must agree with it."""
    if len(shares) < threshold:
        raise NotEnoughShares(f"{len(shares)} shares of {threshold} needed: wait for more survivors or end the round")
    known = sorted((share.point, share.value) for share in shares.values())
    basis, surplus = known[:threshold], known[threshold:]
    if any(_interpolate(basis, point) != value for point, value in surplus):
        raise SharesInconsistent("some share is wrong: the shares do not lie on one polynomial")
    secret = _interpolate(basis, 0)
    if secret.bit_length() > 8 * SECRET_BYTES:
        raise SharesInconsistent("some share is wrong: the shares do not give 32 bytes")
    return secret.to_bytes(SECRET_BYTES, "big")


def _evaluate(coefficients: list[int], x: int) -> int:
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * x + coefficient) % PRIME
    return value


def _interpolate(known: list[tuple[int, int]], x: int) -> int:
    """Lagrange: Σ_i y_i Π_{j≠i} (x − x_j)/(x_i − x_j)."""
    weights = _weights(tuple(x_i for x_i, _ in known), x)
    return sum(y_i * weight for (_, y_i), weight in zip(known, weights, strict=True)) % PRIME


@lru_cache(maxsize=4096)  # a round's secrets are all shared at the same points, which are public
def _weights(points: tuple[int, ...], x: int) -> tuple[int, ...]:
    weights = []
    for i, x_i in enumerate(points):
        above, below = 1, 1
        for j, x_j in enumerate(points):
            if j != i:
                above = above * (x - x_j) % PRIME
                below = below * (x_i - x_j) % PRIME
        weights.append(above * pow(below, -1, PRIME) % PRIME)
    return tuple(weights)
