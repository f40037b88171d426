"""A number as two, so that a sum with an absolute quantum keeps the digits of a small one.

A ring of f fraction bits rounds every value to 2^-f. The high limb is a multiple of 2^-16, which any such ring with
f ≥ 16 carries exactly; the low one is the rest, 2^24 times as large. Together they are good to 2^-(f+25).
"""

from parley.numerics.arrays import Vector

HIGH = 2.0**16
"""One over the quantum of the high limb."""
LOW = 2.0**24
"""What the rest is multiplied by; it then lies within ±2^7."""


def to_limbs(values: Vector) -> tuple[Vector, Vector]:
    """Return high and low limbs; both are exact, since all factors are powers of two."""
    high = (values * HIGH).round() / HIGH
    return high, (values - high) * LOW


def from_limbs(high: Vector, low: Vector) -> Vector:
    """Return the numbers whose limbs, or whose sums of limbs, these are."""
    return high + low / LOW
