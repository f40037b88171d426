"""Sums that a party asks for and opens itself: Zhang et al., KDD 2021, Algorithm 2, with any party as root.

Each requester has masks (or trees) of its own, so that several sums can be under way at once without a common count.
A sum is over all parties of the session: a party that is away stops it, and no smaller sum is opened in its place.
"""

from collections.abc import Callable, Mapping, Sequence

from parley.privacy.aggregation import Pairwise, SumOpening, SumOutOfRange, ring_of
from parley.privacy.pairwise import without_check
from parley.privacy.release import Addend, ClearProtection, OpenedSum, SumGate, TreeGate, TreeSum
from parley.privacy.ring import Beyond
from parley.privacy.tree_search import collusion_resistant_trees
from parley.privacy.two_tree import PartialSum, SumOpener, TreeNumber
from parley.spec.protection import AggregationSpec

LEAST_PARTIES = 3
"""Whoever opens a sum of two knows the other's value."""
SecretsOf = Callable[[int], Mapping[int, bytes]]
"""Pair secrets with every other party, for the sums of one requester."""


class RequestedTreeSums:
    """One party's gates into sums up every requester's trees, and how it opens its own."""

    def __init__(
        self, index: int, parties: int, settings: AggregationSpec, secrets: SecretsOf, beyond: Beyond = "raise"
    ) -> None:
        """`secrets` derives pair secrets for the sums of one requester."""
        ring = ring_of(settings, beyond)
        pairs = [collusion_resistant_trees(parties, requester) for requester in range(parties)]
        self.gates = [TreeGate(index, pair, ring, secrets(requester)) for requester, pair in enumerate(pairs)]
        """This party's gate into the trees of each requester, who is the root of its own tree of values."""
        self.mask_roots = [pair.masks.root for pair in pairs]
        """Who ends each requester's tree of masks, and tells the requester."""
        self._index, self._ring = index, ring
        self._opener = SumOpener(pairs[index], ring, minimum_parties=max(LEAST_PARTIES, settings.minimum_parties))

    def open(self, values: TreeSum, masks: TreeSum) -> OpenedSum:
        """φ₁ − φ₂ of a sum that this party asked for."""
        phi1 = PartialSum(values.round, TreeNumber.MASKED, self._index, values.participants, values.elements)
        root = self.mask_roots[self._index]
        phi2 = PartialSum(masks.round, TreeNumber.MASKS, root, masks.participants, masks.elements)
        opened = self._ring.decode(without_check(self._opener.open_sum(phi1, phi2), self._ring))
        if not self._ring.opens(opened, len(self.gates)):
            raise SumOutOfRange
        return OpenedSum(opened)


class RequestedMaskedSums:
    """One party's gates into every requester's sums under masks that cancel (or none), and how it opens its own."""

    def __init__(
        self,
        index: int,
        parties: int,
        settings: AggregationSpec,
        secrets: SecretsOf,
        beyond: Beyond = "raise",
    ) -> None:
        """`secrets` derives pair secrets for the sums of one requester."""

        def gate(requester: int) -> SumGate:
            if settings.kind == "plain":
                return SumGate(ClearProtection(parties))
            least = max(LEAST_PARTIES, settings.minimum_parties)
            return SumGate(Pairwise(index, secrets(requester), ring_of(settings, beyond), least))

        self.gates = [gate(requester) for requester in range(parties)]
        """This party's gate into the sums of each requester."""
        self._opening = SumOpening(settings, parties)

    def open(self, addends: Sequence[Addend]) -> OpenedSum:
        """The sum of everyone's addends, in the order of blocks."""
        return OpenedSum(self._opening.open(addends))
