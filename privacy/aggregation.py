"""The run's way of aggregation: what a party hides its addends with, and how the coordinator opens a sum."""

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from privacy.pairwise import PairwiseMasker, sum_masked
from privacy.release import Addend, TreeSum
from privacy.ring import Ring
from privacy.rounds import Vector
from privacy.tree_search import collusion_resistant_trees
from privacy.trees import TreePair
from privacy.two_tree import PartialSum, SumOpener, TreeNumber
from spec.protection import AggregationSpec


class SumRefused(ValueError):
    """The parties' addends do not make one sum over all of them."""


def ring_of(settings: AggregationSpec) -> Ring:
    """The ring that the spec describes."""
    bits, fraction_bits, limit = settings.resolved
    return Ring(bits, fraction_bits, limit)


@lru_cache
def trees_of(parties: int) -> TreePair:
    """The trees of sums that the coordinator opens; every party derives them for itself."""
    return collusion_resistant_trees(parties, None)


class Pairwise:
    """Masks that cancel in the sum over all parties of the session."""

    def __init__(self, index: int, secrets: Mapping[int, bytes], ring: Ring, minimum_parties: int) -> None:
        self._ring = ring
        self._parties = frozenset(secrets) | {index}
        self._masker = PairwiseMasker(index, secrets, ring, minimum_parties=max(2, minimum_parties))

    def protect(self, round_number: int, values: Vector) -> Addend:
        """Encode and mask the values of a round."""
        masked = self._masker.mask(round_number, self._ring.encode(values), self._parties)
        return Addend(sum(1 << party for party in self._parties), masked=masked)


class SumDesk:
    """Where the coordinator opens sums, over all parties of a run or not at all."""

    def __init__(self, settings: AggregationSpec, parties: int) -> None:
        self._kind, self._parties = settings.kind, parties
        self._ring = ring_of(settings)
        self._trees = trees_of(parties) if settings.kind == "two_tree" else None
        if self._trees is not None:
            self._opener = SumOpener(self._trees, self._ring, minimum_parties=max(2, settings.minimum_parties))

    def open(self, addends: Sequence[Addend]) -> NDArray[np.float64]:
        """The sum of everyone's addends.

        Raises:
            SumRefused: unless every party took part, all say so, and all sent the same number of values as agreed.
        """
        everyone = (1 << self._parties) - 1
        wrong = [index for index, addend in enumerate(addends) if addend.participants != everyone]
        if wrong or len(addends) != self._parties:
            raise SumRefused(f"parties {wrong} add to a sum over other parties than the {self._parties} of this run")
        if self._kind == "plain":
            return self._open_clear(addends)
        return self._ring.decode(self._open_trees(addends) if self._trees else self._open_masked(addends))

    def _open_clear(self, addends: Sequence[Addend]) -> NDArray[np.float64]:
        values = [addend.clear for addend in addends if addend.clear is not None]
        sizes = {value.size for value in values}
        if len(values) != self._parties or len(sizes) != 1:
            raise SumRefused(f"{len(values)} parties sent values in the clear, of sizes {sorted(sizes)}")
        return np.asarray(np.sum(values, axis=0, dtype=np.float64))

    def _open_masked(self, addends: Sequence[Addend]) -> NDArray[np.unsignedinteger]:
        masked = {index: addend.masked for index, addend in enumerate(addends) if addend.masked is not None}
        sizes = {value.size for value in masked.values()}
        if len(masked) != self._parties or len(sizes) != 1:
            raise SumRefused(f"{len(masked)} of {self._parties} parties sent masked values, of sizes {sorted(sizes)}")
        return sum_masked(masked, range(self._parties), self._ring)

    def _open_trees(self, addends: Sequence[Addend]) -> NDArray[np.unsignedinteger]:
        assert self._trees is not None  # noqa: S101 (open has looked)
        roots = {"values": self._trees.masked.root, "masks": self._trees.masks.root}
        found = {part.tree: part for name, root in roots.items() for part in addends[root].roots if part.tree == name}
        if found.keys() != roots.keys():
            raise SumRefused(f"the roots {sorted(roots.values())} of the two trees sent {sorted(found)} only")
        values, masks = found["values"], found["masks"]
        return self._opener.open_sum(
            _partial(values, TreeNumber.MASKED, roots["values"]), _partial(masks, TreeNumber.MASKS, roots["masks"])
        )


def _partial(part: TreeSum, number: TreeNumber, root: int) -> PartialSum:
    return PartialSum(part.round, number, root, part.participants, part.elements)
