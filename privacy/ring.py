"""The ring Z_2^bits in which secure sums are formed.

A float x becomes rint(x·2^f) in two's complement, so that a sum of encodings is exact modulo 2^bits and a uniform
mask hides its summand perfectly. The paper (Zhang et al., KDD 2021, Algorithm 2) adds float "random numbers":
# differs from the paper: floats neither hide (their exponent shows) nor cancel exactly.

symbol · code
  f    · fraction_bits   bits after the binary point
  R    · limit           largest magnitude that a party may contribute
  l    · parties         how many encodings are summed; l·R·2^f < 2^(bits−1) or the sum could wrap
"""

import hashlib
import logging
import math
import secrets
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

RingArray = NDArray[np.unsignedinteger[Any]]
"""Ring elements: little-endian uint64, uint32 or uint16."""

_UNSIGNED: dict[int, np.dtype[Any]] = {64: np.dtype("<u8"), 32: np.dtype("<u4"), 16: np.dtype("<u2")}
_SIGNED: dict[int, np.dtype[Any]] = {64: np.dtype("<i8"), 32: np.dtype("<i4"), 16: np.dtype("<i2")}
_DOUBLE_PRECISION_BITS = 53

Beyond = Literal["raise", "spoil", "clip"]
"""What becomes of values beyond ±limit: an error here; elements that no sum opens with; or the limit itself."""
logger = logging.getLogger(__name__)


class RingMisconfigured(ValueError):
    """The ring's fields do not describe a usable ring."""


class RingTooSmall(ValueError):
    """The sum of so many parties could wrap around."""


class ValueOutOfRange(ValueError):
    """A value is beyond ±limit. Clipping it would change the sum silently, so it is refused.

    The text holds a private magnitude and never goes to a peer; `without_values` is for logs.
    """

    def __init__(self, magnitude: float, limit: float) -> None:
        super().__init__(
            f"a value of magnitude {magnitude:.6g} exceeds the ring's limit {limit:g} by {magnitude - limit:.6g} "
            f"({magnitude / limit:.3g} times): raise `limit` (and lower `fraction_bits` by as many bits, or take "
            "`ring_bits: 64`) in the run spec, or scale the values down"
        )
        self.without_values = f"a value exceeds the ring's limit {limit:g}"
        self.magnitude = magnitude
        self.limit = limit


class ValueNotFinite(ValueError):
    """NaN or infinity has no encoding."""


class NotRingElements(TypeError):
    """An array has another dtype than the ring's elements."""


@dataclass(frozen=True)
class Ring:
    """Fixed-point numbers in Z_2^bits, two's complement."""

    bits: int
    """Width of an element: 64, 32 or 16."""
    fraction_bits: int
    """f: bits after the binary point; one encoding is off by at most 2^-(f+1), or by 2^-f where it rounds at random."""
    limit: float
    """R: largest magnitude that can be encoded."""
    beyond: Beyond = "raise"
    """What `encode` does with a value beyond it."""

    WIDE: ClassVar["Ring"]
    """64 bits, f=40, R=2^16: up to 127 parties, sums good to parties·2^-41."""
    NARROW: ClassVar["Ring"]
    """32 bits, f=16, R=2^10: up to 31 parties, half the bytes."""

    def __post_init__(self) -> None:
        if self.bits not in _UNSIGNED:
            raise RingMisconfigured(f"a ring has 64, 32 or 16 bits, not {self.bits}")
        if self.fraction_bits < 0 or not 0 < self.limit < math.inf:
            raise RingMisconfigured(
                f"fraction_bits must be at least 0 and limit positive, got {self.fraction_bits} and {self.limit}"
            )
        self.check(1)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Unsigned, little-endian dtype of the elements."""
        return _UNSIGNED[self.bits]

    @property
    def most_parties(self) -> int:
        """The largest number of parties whose sum cannot wrap."""
        return ((1 << (self.bits - 1)) - 1) // self._largest

    @cached_property
    def _largest(self) -> int:
        """R·2^f, rounded up: no encoding is larger. Exact, since floats would round just where it matters."""
        return math.ceil(Fraction(self.limit) * (1 << self.fraction_bits))

    @property
    def rounds_at_random(self) -> bool:
        """With so few digits, rounding to the nearest would add up to a bias over many rounds."""
        return self.bits == 16

    def check(self, parties: int) -> None:
        """Refuse a sum over `parties` that could wrap: l·R·2^f must stay below 2^(bits−1)."""
        if parties * self._largest >= 1 << (self.bits - 1):
            raise RingTooSmall(
                f"{parties} parties x limit {self.limit:g} x 2^{self.fraction_bits} reaches 2^{self.bits - 1}: "
                f"this ring sums at most {self.most_parties} parties; lower `limit` or `fraction_bits`"
                + (", or take `ring_bits: 64`" if self.bits < 64 else "")
            )

    def encode(self, values: NDArray[np.floating[Any]]) -> RingArray:
        """rint(x·2^f) as ring elements, same shape; in a ring of 16 bits, up or down at random."""
        if values.size == 0:
            return np.empty(values.shape, self.dtype)
        # min and max carry NaN through, so two reductions settle range and finiteness at once
        low, high = float(values.min()), float(values.max())
        if not (-self.limit <= low and high <= self.limit):
            return self._encode_beyond(values, low, high)
        return self._encode_within(values)

    def _encode_beyond(self, values: NDArray[np.floating[Any]], low: float, high: float) -> RingArray:
        """What leaves in place of values that do not fit.

        A refusal would tell the coordinator whose value it was, and a run with another limit how large: so a party
        adds elements that hold nothing of its value and keep the sum from opening, and tells its own log alone.
        """
        finite = bool(np.isfinite(low) and np.isfinite(high))
        if self.beyond == "clip" and finite:
            logger.warning("values beyond the ring's limit %g were clipped to it", self.limit)
            return self._encode_within(np.clip(values, -self.limit, self.limit))
        if self.beyond == "raise":
            if finite:
                raise ValueOutOfRange(max(-low, high), self.limit)
            raise ValueNotFinite("a value is NaN or infinite: look for a diverging step before this sum")
        logger.error(
            "%s does not fit the ring's limit %g: a sum was kept from opening. Lower the run's step sizes or scale "
            "the table; the limit is `policy.aggregation.limit`",
            "a value" if finite else "a value that is NaN or infinite",
            self.limit,
        )
        return self.spoilt(values.shape)

    def spoilt(self, shape: tuple[int, ...]) -> RingArray:
        """Random elements of magnitude at least 2^(bits−2): a sum that holds them leaves the range of honest sums."""
        drawn = np.frombuffer(secrets.token_bytes(math.prod(shape) * self.dtype.itemsize), self.dtype)
        top = self.dtype.type(1 << (self.bits - 1))
        half = self.dtype.type(1 << (self.bits - 2))
        signs = drawn & top
        # the bit after the sign is its opposite: far from zero in two's complement, whichever sign it is
        return np.asarray(
            (drawn & (half - self.dtype.type(1))) | signs | ((signs ^ top) >> self.dtype.type(1))
        ).reshape(shape)

    def _encode_within(self, values: NDArray[np.floating[Any]]) -> RingArray:
        scaled = np.array(values, dtype=np.float64)
        scaled *= 2.0**self.fraction_bits
        if self.rounds_at_random:
            np.clip(np.floor(scaled + _fractions(scaled)), -self._largest, self._largest, out=scaled)
        else:
            np.rint(scaled, out=scaled)
        if self.bits < 64:
            return scaled.astype(_SIGNED[self.bits]).view(self.dtype)
        # the same eight bytes serve as float and then as integer: no second array has to be paged in
        elements = scaled.view(_SIGNED[64])
        np.copyto(elements, scaled, casting="unsafe")
        return elements.view(self.dtype)

    def decode(self, elements: RingArray) -> NDArray[np.float64]:
        """The float64 nearest to each element (exact while |sum| < 2^(53−f))."""
        values = self.checked(elements).view(_SIGNED[self.bits]).astype(np.float64)
        values *= 2.0**-self.fraction_bits
        return values

    def opens(self, values: NDArray[np.float64], parties: int) -> bool:
        """Whether a decoded sum lies where sums of so many values that fit must lie."""
        bound = parties * self.limit + self.error_bound(parties)
        return values.size == 0 or bool(-bound <= values.min() and values.max() <= bound)

    def add(self, left: RingArray, right: RingArray) -> RingArray:
        """Sum modulo 2^bits."""
        return np.asarray(self.checked(left) + self.checked(right))

    def subtract(self, left: RingArray, right: RingArray) -> RingArray:
        """Difference modulo 2^bits."""
        return np.asarray(self.checked(left) - self.checked(right))

    def error_bound(self, parties: int) -> float:
        """How far a decoded sum can lie from the sum of the floats: l·2^-(f+1), plus half a float64 step of decode.

        Twice the first term where encodings are rounded at random.

        The second term is 0 while the largest sum, l·R·2^f, fits in 53 bits.
        """
        largest = parties * self._largest
        rounding = 2.0 ** (largest.bit_length() - _DOUBLE_PRECISION_BITS - 1 - self.fraction_bits)
        return parties * 2.0 ** -(self.fraction_bits + (not self.rounds_at_random)) + (
            rounding if largest.bit_length() > _DOUBLE_PRECISION_BITS else 0.0
        )

    def checked(self, elements: RingArray) -> RingArray:
        """`elements`, or a refusal if they are not of this ring."""
        if elements.dtype != self.dtype:
            raise NotRingElements(f"expected {self.dtype} ring elements, got {elements.dtype}")
        return elements


def _fractions(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Numbers in [0, 1) that decide how values are rounded, drawn from the values themselves.

    So the same values give the same elements again, after a crash too. They hide nothing: masks do that.
    """
    seed = int.from_bytes(hashlib.blake2b(np.ascontiguousarray(values).data, digest_size=16).digest(), "big")
    return np.random.Generator(np.random.PCG64(seed)).random(values.shape)


Ring.WIDE = Ring(bits=64, fraction_bits=40, limit=1 << 16)
Ring.NARROW = Ring(bits=32, fraction_bits=16, limit=1 << 10)
