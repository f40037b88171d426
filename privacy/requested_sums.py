"""Sums that a party asks for and opens itself: Zhang et al., KDD 2021, Algorithm 2, with any party as root.

Each requester has masks (or trees) of its own, so that several sums can be under way at once without a common count.
A sum is over all parties of the session: a party that is away stops it, and no smaller sum is opened in its place.
"""

from collections.abc import Callable, Mapping, Sequence

from parley.privacy.aggregation import Pairwise, SumOpening, ring_of
from parley.privacy.release import Addend, ClearProtection, OpenedSum, SumGate, TreeGate, TreeSum
from parley.privacy.tree_search import collusion_resistant_trees
from parley.privacy.two_tree import PartialSum, SumOpener, TreeNumber
from parley.spec.protection import AggregationSpec

LEAST_PARTIES = 3
"""Whoever opens a sum of two knows the other's value."""


class RequestedSums:
    """One party's gates into the sums of every requester, and how it opens its own."""

    def __init__(
        self,
        index: int,
        parties: int,
        settings: AggregationSpec,
        secrets: Callable[[int], Mapping[int, bytes]],
    ) -> None:
        """`secrets` derives pair secrets for the sums of one requester."""
        self._index, self._parties = index, parties
        self._opening = SumOpening(settings, parties)
        self._ring = ring_of(settings)
        self.by_trees = settings.kind == "two_tree"
        if self.by_trees:
            pairs = [collusion_resistant_trees(parties, requester) for requester in range(parties)]
            self._trees = [TreeGate(index, pair, self._ring) for pair in pairs]
            self.mask_roots = [pair.masks.root for pair in pairs]
            self._opener = SumOpener(
                pairs[index], self._ring, minimum_parties=max(LEAST_PARTIES, settings.minimum_parties)
            )
            return
        self._gates = [
            SumGate(ClearProtection(parties))
            if settings.kind == "plain"
            else SumGate(
                Pairwise(
                    index,
                    secrets(requester),
                    self._ring,
                    max(LEAST_PARTIES, settings.minimum_parties),
                )
            )
            for requester in range(parties)
        ]

    def tree_gate(self, requester: int) -> TreeGate:
        """This party's gate into a requester's trees."""
        return self._trees[requester]

    def gate(self, requester: int) -> SumGate:
        """This party's gate into a requester's sums under masks that cancel."""
        return self._gates[requester]

    def open_trees(self, values: TreeSum, masks: TreeSum) -> OpenedSum:
        """φ₁ − φ₂ of a sum that this party asked for."""
        phi1 = PartialSum(values.round, TreeNumber.MASKED, self._index, values.participants, values.elements)
        root = self.mask_roots[self._index]
        phi2 = PartialSum(masks.round, TreeNumber.MASKS, root, masks.participants, masks.elements)
        return OpenedSum(self._ring.decode(self._opener.open_sum(phi1, phi2)))

    def open(self, addends: Sequence[Addend]) -> OpenedSum:
        """The sum of everyone's addends, in the order of blocks."""
        return OpenedSum(self._opening.open(addends))
