"""The two-tree sum, one role at a time, without a network.

Zhang et al., KDD 2021, Algorithm 2, steps 3 to 6. Every party draws a mask δ_ℓ for the round; masked values
v_ℓ + δ_ℓ are summed up T1 and masks up T2; the output opens φ₁ − φ₂.

# differs from the paper: masks are uniform ring elements, trees must pass `check_trees` (each party checks for itself),
# a partial sum says whose values it holds, and nothing is opened unless both trees hold the same parties.

symbol · code · shape · held by · leaves?
  v_ℓ             · encoded            · any    · party ℓ             · no
  δ_ℓ             · a random mask      · same   · party ℓ             · no
  Σ (v + δ)       · PartialSum, tree 1 · same   · parent in T1        · yes, masked
  Σ δ             · PartialSum, tree 2 · same   · parent in T2        · yes, masks only
  φ₁, φ₂          · the two roots' PartialSum · same · the output     · yes
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from parley.privacy.mask_stream import random_mask
from parley.privacy.pairwise import NotAParticipant, RoundReused
from parley.privacy.ring import Ring, RingArray
from parley.privacy.tree_leakage import check_trees
from parley.privacy.trees import TooFewParties, Tree, TreePair


class TreeNumber(IntEnum):
    """Which tree a partial sum climbs."""

    MASKED = 1
    MASKS = 2


class BitmapsDisagree(ValueError):
    """φ₁ and φ₂ do not hold the same parties: their difference would still hold masks, or give away a part."""


class SubtreeIncomplete(ValueError):
    """A child's partial sum does not hold exactly the participants below it.

    A smaller partial sum can complete a leak that the check excluded for the agreed set, so it is not passed on.
    """


class UnexpectedPartialSum(ValueError):
    """A partial sum of another round, tree, sender or shape."""


class OpenedOtherwise(ValueError):
    """This round was already opened over another set of parties; two such sums differ by somebody's value."""


@dataclass(frozen=True)
class PartialSum:
    """What a party sends to its parent in one tree."""

    round_id: int
    tree: TreeNumber
    sender: int
    participants: int
    """Bitmap of the parties whose summands it holds (bit ℓ = party ℓ)."""
    elements: RingArray


@dataclass
class _Contribution:
    """A party's own summands in a round that is under way; each is dropped once it is passed on."""

    participants: int
    shape: tuple[int, ...]
    summands: dict[TreeNumber, RingArray | None]


class TwoTreeNode:
    """One party's part in sums over one pair of trees. A new requester means another node, with round ids of its own.

    The round id names the values: the caller gives the same values the same round id, so that they never enter two sums
    over different parties. A retry is answered with the bytes that the caller kept.
    """

    def __init__(self, index: int, trees: TreePair, ring: Ring, *, colluders: int = 1, last_round: int = -1) -> None:
        check_trees(trees.masked, trees.masks, trees.output, colluders=colluders)
        self._index = index
        self._trees = trees
        self._ring = ring
        self._colluders = colluders
        self._last_round = last_round
        self._under_way: dict[int, _Contribution] = {}
        self._checked = {_bitmap(range(trees.masked.size))}

    @property
    def last_round(self) -> int:
        """The largest round id begun; −1 before the first."""
        return self._last_round

    def begin(self, round_id: int, encoded: RingArray, participants: frozenset[int] | None = None) -> None:
        """Enter a round with this party's value; its mask is drawn here.

        `participants` (all, if omitted) must be agreed by every party before the round. A party that is not among
        them only passes sums on: it gives zeros of the right shape, and they are not used.
        """
        everyone = frozenset(range(self._trees.masked.size))
        chosen = everyone if participants is None else participants
        if round_id <= self._last_round:
            raise RoundReused(
                f"round {round_id} is not after round {self._last_round}: "
                "replay the kept message for a retry, take a new round id for new values"
            )
        if not chosen <= everyone:
            raise NotAParticipant(f"participants {sorted(chosen - everyone)} are not in these trees")
        self._ring.check(len(chosen))
        bitmap = _bitmap(chosen)
        if bitmap not in self._checked:  # trees that hide among all need not hide among some
            check_trees(
                self._trees.masked,
                self._trees.masks,
                self._trees.output,
                colluders=self._colluders,
                participants=chosen,
            )
            self._checked.add(bitmap)
        summands: dict[TreeNumber, RingArray | None] = {TreeNumber.MASKED: None, TreeNumber.MASKS: None}
        value = self._ring.checked(encoded)
        if self._index in chosen:
            delta = random_mask(value.shape, self._ring)
            summands = {TreeNumber.MASKED: self._ring.add(value, delta), TreeNumber.MASKS: delta}
        self._last_round = round_id
        self._under_way[round_id] = _Contribution(bitmap, value.shape, summands)

    def children(self, round_id: int, tree: TreeNumber) -> tuple[int, ...]:
        """The children from which a partial sum is due in this round."""
        present = self._contribution(round_id, tree).participants
        shape = self._tree(tree)
        return tuple(child for child in shape.children[self._index] if shape.subtrees[child] & present)

    def is_due(self, round_id: int, tree: TreeNumber) -> bool:
        """Whether this party has anything to send on a tree: a bystander with nobody below it has not."""
        return bool(self._tree(tree).subtrees[self._index] & self._contribution(round_id, tree).participants)

    def forward(self, round_id: int, tree: TreeNumber, received: Sequence[PartialSum]) -> PartialSum:
        """Own summand plus the children's partial sums: the message to the parent, or φ at the root. Once per tree."""
        own = self._contribution(round_id, tree)
        if not self.is_due(round_id, tree):
            raise NotAParticipant(f"party {self._index} has nothing to send on tree {tree}; its parent does not wait")
        self._check_received(round_id, tree, received, own)
        holds = self._tree(tree).subtrees[self._index] & own.participants
        summand = own.summands[tree]
        total = received[0].elements.copy() if summand is None else summand
        for part in received[1:] if summand is None else received:
            total += part.elements
        del own.summands[tree]
        if not own.summands:
            del self._under_way[round_id]
        return PartialSum(round_id, tree, self._index, holds, total)

    def abandon(self, round_id: int) -> None:
        """Forget a round that will not end; its id stays used."""
        self._under_way.pop(round_id, None)

    def _tree(self, tree: TreeNumber) -> Tree:
        return self._trees.masked if tree is TreeNumber.MASKED else self._trees.masks

    def _contribution(self, round_id: int, tree: TreeNumber) -> _Contribution:
        own = self._under_way.get(round_id)
        if own is None or tree not in own.summands:
            raise RoundReused(f"round {round_id} is not under way on tree {tree}: it was never begun, or is done")
        return own

    def _check_received(
        self, round_id: int, tree: TreeNumber, received: Sequence[PartialSum], own: _Contribution
    ) -> None:
        due = self.children(round_id, tree)
        if sorted(part.sender for part in received) != sorted(due):
            raise UnexpectedPartialSum(
                f"partial sums from parties {sorted(part.sender for part in received)} on tree {tree}, due from {due}"
            )
        for part in received:
            if (part.round_id, part.tree) != (round_id, tree):
                raise UnexpectedPartialSum(
                    f"party {part.sender} sent round {part.round_id} of tree {part.tree}, "
                    f"expected round {round_id} of tree {tree}"
                )
            if self._ring.checked(part.elements).shape != own.shape:
                raise UnexpectedPartialSum(f"party {part.sender} sent {part.elements.shape}, expected {own.shape}")
            below = self._tree(tree).subtrees[part.sender] & own.participants
            if part.participants != below:
                raise SubtreeIncomplete(
                    f"party {part.sender}'s sum on tree {tree} holds {parties_of(part.participants)}, agreed were "
                    f"{parties_of(below)}: end the round and agree on new participants"
                )


class SumOpener:
    """The output's part: it takes φ₁ − φ₂ where both hold the same, sufficiently many parties."""

    def __init__(self, trees: TreePair, ring: Ring, *, minimum_parties: int | None = None) -> None:
        least = 2 if trees.output is None else 3
        self._minimum = least if minimum_parties is None else minimum_parties
        if self._minimum < least:
            raise TooFewParties(f"minimum_parties must be at least {least} here, got {minimum_parties}")
        self._trees = trees
        self._ring = ring
        self._last_opened: tuple[int, int] | None = None

    def open_sum(self, phi1: PartialSum, phi2: PartialSum) -> RingArray:
        """φ₁ − φ₂ in the ring. Rounds are opened in ascending order, each over one set of parties."""
        roots = (self._trees.masked.root, self._trees.masks.root)
        if (phi1.tree, phi2.tree) != (TreeNumber.MASKED, TreeNumber.MASKS) or (phi1.sender, phi2.sender) != roots:
            raise UnexpectedPartialSum(f"φ₁ must come from party {roots[0]} on T1 and φ₂ from party {roots[1]} on T2")
        if phi1.round_id != phi2.round_id or phi1.elements.shape != phi2.elements.shape:
            raise UnexpectedPartialSum(
                f"φ₁ is of round {phi1.round_id} and φ₂ of round {phi2.round_id}, or sizes differ"
            )
        if phi1.participants != phi2.participants:
            raise BitmapsDisagree(
                f"T1 holds parties {parties_of(phi1.participants)} and T2 {parties_of(phi2.participants)}: "
                "nothing is opened; run the round again with the parties that are present in both"
            )
        count = phi1.participants.bit_count()
        if count < self._minimum:
            raise TooFewParties(f"a sum of {count} parties is below the minimum of {self._minimum}: nothing is opened")
        self._remember(phi1.round_id, phi1.participants)
        return self._ring.subtract(phi1.elements, phi2.elements)

    def _remember(self, round_id: int, participants: int) -> None:
        if self._last_opened is not None:
            last, over = self._last_opened
            if round_id < last:
                raise RoundReused(f"round {round_id} comes after round {last} was opened: late sums are dropped")
            if round_id == last and participants != over:
                raise OpenedOtherwise(
                    f"round {round_id} was opened over parties {parties_of(over)}; "
                    f"opening it over {parties_of(participants)} would reveal the difference"
                )
        self._last_opened = (round_id, participants)


def parties_of(bitmap: int) -> list[int]:
    """The parties in a bitmap, ascending."""
    return [party for party in range(bitmap.bit_length()) if bitmap >> party & 1]


def _bitmap(parties: Sequence[int] | frozenset[int] | range) -> int:
    return sum(1 << party for party in parties)
