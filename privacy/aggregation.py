"""The run's way of aggregation: what a party hides its addends with, and how the coordinator opens a sum."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from parley.numerics.arrays import Vector
from parley.privacy.dropout import Disclosure, RoundKeys, unmask
from parley.privacy.mask_graph import MaskGraph
from parley.privacy.pairwise import PairwiseMasker, sum_masked, with_check, without_check
from parley.privacy.release import Addend, TreeSum, bitmap
from parley.privacy.ring import Beyond, Ring
from parley.privacy.tree_search import collusion_resistant_trees
from parley.privacy.trees import TreePair
from parley.privacy.two_tree import PartialSum, SumOpener, TreeNumber
from parley.spec.protection import AggregationSpec


@dataclass(frozen=True)
class SurvivorsSum:
    """A sum with recovery: it may hold fewer vectors than were asked for."""

    total: NDArray[np.float64]
    addends: int
    """How many parties' vectors it holds."""


SUM_BLOCK = 1 << 15
"""Values that are summed at a time: those of all parties stay in a processor's cache."""


class SumRefused(ValueError):
    """The parties' addends do not make one sum over all of them."""


class SumOutOfRange(SumRefused):
    """The sum of all addends lies where no sum of values that fit the ring can lie. Nobody can tell whose it was."""

    def __init__(self) -> None:
        super().__init__(
            "RANGE_EXCEEDED: a sum did not open: a value of one of the parties does not fit the ring, or the parties "
            "were told different things. Lower the step sizes, standardise the features, declare a `unit` for labels "
            "that are large numbers, or raise `privacy.aggregation.limit`; each party's own log says whether it was "
            "its value"
        )


def ring_of(settings: AggregationSpec, beyond: Beyond = "raise") -> Ring:
    """The ring that the spec describes, and what becomes of values that do not fit it."""
    bits, fraction_bits, limit = settings.resolved
    return Ring(bits, fraction_bits, limit, beyond)


@lru_cache
def trees_of(parties: int) -> TreePair:
    """The trees of sums that the coordinator opens; every party derives them for itself."""
    return collusion_resistant_trees(parties, None)


class Pairwise:
    """Masks that cancel in the sum over the participants of a round, by default all parties of the session."""

    def __init__(
        self,
        index: int,
        secrets: Mapping[int, bytes],
        ring: Ring,
        minimum_parties: int,
        graph: MaskGraph | None = None,
    ) -> None:
        """`graph` says with whom masks are shared where a sum is over many; with everybody if left out."""
        self._ring = ring
        self._parties = frozenset(secrets) | {index}
        self._masker = PairwiseMasker(index, secrets, ring, minimum_parties=max(2, minimum_parties), graph=graph)

    def protect(
        self,
        round_number: int,
        values: Vector,
        participants: frozenset[int] | None = None,
        told: Mapping[int, bytes] | None = None,
    ) -> Addend:
        """Encode and mask the values of a round."""
        chosen = self._parties if participants is None else participants
        masked = with_check(self._ring.encode(values), self._ring)
        self._masker.mask_in_place(round_number, masked, chosen, told)
        return Addend(bitmap(chosen), masked=masked)


class SumOpening:
    """How the coordinator opens sums: over all participants of a round or not at all."""

    def __init__(self, settings: AggregationSpec, parties: int) -> None:
        self._kind, self._parties, self._minimum = settings.kind, parties, settings.minimum_parties
        self._ring = ring_of(settings)
        self._trees = trees_of(parties) if settings.kind == "two_tree" else None
        if self._trees is not None:
            self._opener = SumOpener(self._trees, self._ring, minimum_parties=max(2, settings.minimum_parties))

    def open(self, addends: Sequence[Addend], participants: Sequence[int] | None = None) -> NDArray[np.float64]:
        """The sum of the participants' addends, given in the same order; of everyone's if there are none named.

        Raises:
            SumRefused: unless every participant answered, all name the same participants, enough of them, and all sent
                the same number of values as agreed.
            SumDoesNotOpen: if masks are left in it.
        """
        chosen = range(self._parties) if participants is None else participants
        whole = bitmap(chosen)
        wrong = [party for party, addend in zip(chosen, addends, strict=False) if addend.participants != whole]
        if wrong or len(addends) != len(chosen):
            raise SumRefused(f"parties {wrong} add to a sum over other parties than the {len(chosen)} of this round")
        if len(chosen) < self._minimum:
            raise SumRefused(f"a sum over {len(chosen)} parties is below the run's minimum of {self._minimum}")
        if self._kind == "plain":
            return self._open_clear(addends)
        if self._trees is None:
            return self._decoded(self._open_masked(addends, chosen), len(chosen))
        if len(chosen) != self._parties:
            raise SumRefused("two trees sum over all parties of a run: take `pairwise` where parties are sampled")
        return self._decoded(self._open_trees(addends), self._parties)

    def open_survivors(
        self, addends: Mapping[int, Addend], disclosures: Sequence[Disclosure], keys: RoundKeys
    ) -> NDArray[np.float64]:
        """The sum of those who answered, in a sum with recovery.

        Raises:
            SumRefused: unless their addends are for the participants of these keys and of one size.
        """
        whole = bitmap(keys.participants)
        masked = {p: a.masked for p, a in addends.items() if a.masked is not None and a.participants == whole}
        sizes = {value.size for value in masked.values()}
        if len(masked) != len(addends) or len(sizes) != 1:
            raise SumRefused(f"{len(masked)} of {len(addends)} parties sent masked values, of sizes {sorted(sizes)}")
        if len(masked) < self._minimum:
            raise SumRefused(f"a sum over {len(masked)} parties is below the run's minimum of {self._minimum}")
        return self._decoded(unmask(masked, disclosures, keys, self._ring), len(masked))

    def _decoded(self, total: NDArray[np.unsignedinteger], parties: int) -> NDArray[np.float64]:
        values = self._ring.decode(without_check(total, self._ring))
        if not self._ring.opens(values, parties):
            raise SumOutOfRange
        return values

    def _open_clear(self, addends: Sequence[Addend]) -> NDArray[np.float64]:
        values = [addend.clear for addend in addends if addend.clear is not None]
        sizes = {value.size for value in values}
        if len(values) != len(addends) or len(sizes) != 1:
            raise SumRefused(f"{len(values)} parties sent values in the clear, of sizes {sorted(sizes)}")
        total = np.empty(values[0].size)
        for start in range(0, total.size, SUM_BLOCK):
            block = slice(start, start + SUM_BLOCK)
            total[block] = values[0][block]
            for value in values[1:]:
                total[block] += value[block]
        return total

    def _open_masked(self, addends: Sequence[Addend], chosen: Sequence[int]) -> NDArray[np.unsignedinteger]:
        answers = zip(chosen, addends, strict=True)
        masked = {party: addend.masked for party, addend in answers if addend.masked is not None}
        sizes = {value.size for value in masked.values()}
        if len(masked) != len(chosen) or len(sizes) != 1:
            raise SumRefused(f"{len(masked)} of {len(chosen)} parties sent masked values, of sizes {sorted(sizes)}")
        return sum_masked(masked, chosen, self._ring)

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
