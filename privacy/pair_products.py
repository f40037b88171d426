"""Inner products of two parties' columns, with a third party's help: what each adds to a secure sum.

D. Beaver, "Efficient multiparty protocols using circuit randomization" (1991), with masks that follow from the secrets
that each two parties have anyway. Of parties i and j with columns X and Y, as elements of Z_2^64, and a helper d:

    symbol   code       known to   is
    R        left       i and d    a stream of their secret
    S        right      j and d    a stream of their secret
    U        masked     i and j    X + R, which i sends to j
    W        masked     i and j    Y + S, which j sends to i

    j adds UᵀY, i adds −RᵀW, d adds RᵀS; the sum is XᵀY.

U and W are uniform to whoever has them; the helper has neither. Each of the three terms is hidden by a further stream
that the helper takes away again, so that all that is known of them is their sum. Whoever has U and R has X: i's columns
are hidden from any one party, with the coordinator's help too, and not from j and d together.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from parley.numerics.arrays import Array, Vector
from parley.privacy.mask_stream import mask
from parley.privacy.ring import Ring

Elements = NDArray[np.uint64]
LIMBS = 4
"""Elements leave as so many floats of 16 bits, which any ring of a sum carries exactly."""
LIMB_UNIT = 2.0**-8
_SPAN = 62
"""Bits of the largest sum of products, so that it has a sign."""
_STREAMS = 4


@dataclass(frozen=True)
class Pair:
    """Two parties whose columns are multiplied, and who helps."""

    number: int
    first: int
    second: int
    helper: int


def pairs_of(parties: int) -> list[Pair]:
    """Every two of at least three parties; the next one that is neither helps."""
    if parties < 3:
        raise ValueError("products of two parties' columns take a third party that helps")
    found = []
    for number, (first, second) in enumerate(combinations(range(parties), 2)):
        helper = next(one % parties for one in range(second + 1, second + 4) if one % parties not in (first, second))
        found.append(Pair(number, first, second, helper))
    return found


def products_of(sizes: Sequence[int]) -> int:
    """How many products there are of parties with so many columns: one of every two columns, whoever has them."""
    return sum(sizes) * (sum(sizes) - 1) // 2


def fraction_bits(rows: int) -> int:
    """Binary digits that standardised columns of so many rows keep: by Cauchy and Schwarz no sum of products wraps."""
    return min(24, (_SPAN - 1 - max(1, rows).bit_length()) // 2)


def elements_of(columns: Array) -> Elements:
    """Standardised columns as ring elements."""
    scaled = np.rint(columns * 2.0 ** fraction_bits(len(columns)))
    return np.ascontiguousarray(scaled.astype(np.int64)).view(np.uint64)


def correlations_of(products: Vector, rows: int) -> Vector:
    """Correlations from sums of products in units of 2^62."""
    return np.asarray(np.clip(products * 2.0 ** (_SPAN - 2 * fraction_bits(rows)) / max(1, rows), -1.0, 1.0))


def column_mask(secret: bytes, pair: Pair, *, first: bool, shape: tuple[int, ...]) -> Elements:
    """R or S of a pair, from the secret of its owner and the helper."""
    return np.asarray(mask(secret, _STREAMS * pair.number + (0 if first else 1), shape, Ring.WIDE), dtype=np.uint64)


def hiding(secret: bytes, pair: Pair, *, first: bool, shape: tuple[int, ...]) -> Elements:
    """What one of a pair adds to its term, and the helper takes away."""
    return np.asarray(mask(secret, _STREAMS * pair.number + (2 if first else 3), shape, Ring.WIDE), dtype=np.uint64)


def term_of_first(pair: Pair, secret: bytes, received: Elements, width: int) -> Elements:
    """−RᵀW, hidden."""
    left = column_mask(secret, pair, first=True, shape=(len(received), width))
    shape = (width, received.shape[1])
    return np.asarray(hiding(secret, pair, first=True, shape=shape) - left.T @ received)


def term_of_second(pair: Pair, secret: bytes, received: Elements, own: Elements) -> Elements:
    """UᵀY, hidden."""
    shape = (received.shape[1], own.shape[1])
    return np.asarray(received.T @ own + hiding(secret, pair, first=False, shape=shape))


def term_of_helper(pair: Pair, first: bytes, second: bytes, rows: int, widths: tuple[int, int]) -> Elements:
    """RᵀS, less what hides the others' terms; from the helper's secrets with both."""
    left = column_mask(first, pair, first=True, shape=(rows, widths[0]))
    right = column_mask(second, pair, first=False, shape=(rows, widths[1]))
    hidden = hiding(first, pair, first=True, shape=widths) + hiding(second, pair, first=False, shape=widths)
    return np.asarray(left.T @ right - hidden)


def to_floats(elements: Elements) -> Vector:
    """Elements as limbs of 16 bits, one after the other."""
    limbs = [(elements >> np.uint64(16 * place)) & np.uint64(0xFFFF) for place in range(LIMBS)]
    return np.concatenate([limb.ravel() for limb in limbs]).astype(np.float64) * LIMB_UNIT


def from_floats(sums: Vector) -> Vector:
    """The signed elements whose limbs' sums these are, in units of 2^62."""
    limbs = np.rint(sums / LIMB_UNIT).astype(np.uint64).reshape(LIMBS, -1)
    whole = np.zeros(limbs.shape[1], dtype=np.uint64)
    for place, limb in enumerate(limbs):
        whole += limb << np.uint64(16 * place)
    return np.asarray(whole.view(np.int64).astype(np.float64) * 2.0**-_SPAN)
