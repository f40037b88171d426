"""The run's way of aggregation, put together: what a party hides its addends with and how the coordinator opens a sum."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from privacy.pairwise import PairwiseMasker, sum_masked
from privacy.release import Addend
from privacy.ring import Ring
from privacy.rounds import Vector
from spec.protection import AggregationSpec


class SumRefused(ValueError):
    """The parties' addends do not make one sum over all of them."""


def ring_of(settings: AggregationSpec) -> Ring:
    """The ring that the spec describes."""
    bits, fraction_bits, limit = settings.resolved
    return Ring(bits, fraction_bits, limit)


class Pairwise:
    """Masks that cancel in the sum over all parties of the session."""

    def __init__(self, index: int, secrets: Mapping[int, bytes], ring: Ring, minimum_parties: int) -> None:
        self._ring = ring
        self._parties = frozenset(secrets) | {index}
        self._masker = PairwiseMasker(index, secrets, ring, minimum_parties=max(2, minimum_parties))

    def protect(self, round_number: int, values: Vector) -> Addend:
        """Encode and mask the values of a round."""
        masked = self._masker.mask(round_number, self._ring.encode(values), self._parties)
        return Addend(bitmap(self._parties), masked=masked)


def bitmap(parties: frozenset[int]) -> int:
    """Bit i is set if party i is in the set."""
    return sum(1 << party for party in parties)


def open_sum(addends: Sequence[Addend], settings: AggregationSpec) -> NDArray[np.float64]:
    """The sum of everyone's addends, as the coordinator opens it.

    Raises:
        SumRefused: unless every party took part, all say so, and all sent the same number of values in the agreed form.
    """
    everyone = (1 << len(addends)) - 1
    wrong = [index for index, addend in enumerate(addends) if addend.participants != everyone]
    if wrong:
        raise SumRefused(f"parties {wrong} mask for another set of parties than the {len(addends)} of this run")
    if settings.kind == "plain":
        return _open_clear(addends)
    return _open_masked(addends, ring_of(settings))


def _open_clear(addends: Sequence[Addend]) -> NDArray[np.float64]:
    values = [addend.clear for addend in addends]
    sizes = {None if value is None else value.size for value in values}
    if len(sizes) != 1 or None in sizes:
        raise SumRefused(f"addends of sizes {sorted(map(str, sizes))} came where one size in the clear was agreed")
    return np.sum([value for value in values if value is not None], axis=0, dtype=np.float64)


def _open_masked(addends: Sequence[Addend], ring: Ring) -> NDArray[np.float64]:
    masked = {index: addend.masked for index, addend in enumerate(addends) if addend.masked is not None}
    sizes = {value.size for value in masked.values()}
    if len(masked) != len(addends) or len(sizes) != 1:
        raise SumRefused(f"{len(masked)} of {len(addends)} parties sent masked addends, of sizes {sorted(sizes)}")
    return ring.decode(sum_masked(masked, range(len(addends)), ring))
