"""Draft → Gate → Release: the one way out.

A role computes drafts. A gate applies the protection that the manifest names for the field, makes sure that the ledger
has paid, and only then makes a `Release`. The codec in `services/wire` takes releases and nothing else, and nothing
outside this module makes one (`tests/contract` checks both).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from numerics.push_sum import Mass, RunningTotal
from privacy.ring import Ring
from privacy.rounds import Vector
from privacy.trees import TreePair
from privacy.two_tree import PartialSum, TreeNumber, TwoTreeNode

Array = NDArray[Any]
Content = TypeVar("Content", covariant=True)
TreeName = Literal["values", "masks"]
_SEAL = object()
_NUMBERS = {"values": TreeNumber.MASKED, "masks": TreeNumber.MASKS}


class NotPaid(RuntimeError):
    """An outcome holds a label release that the ledger does not cover."""


class Release(Generic[Content]):
    """Something that may leave. Made by the gates of this module only."""

    __slots__ = ("content",)

    def __init__(self, content: Content, seal: object) -> None:
        if seal is not _SEAL:
            raise TypeError("only a gate makes a Release")
        self.content = content


@dataclass(frozen=True)
class TreeSum:
    """A sum over a subtree of parties, on its way up tree 1 (values plus masks) or tree 2 (masks)."""

    tree: TreeName
    round: int
    elements: Array
    participants: int


@dataclass(frozen=True)
class Addend:
    """A party's part of a round's sum: in the clear, masked, or as the roots of trees."""

    participants: int
    """Bit i is set if party i takes part."""
    clear: Array | None = None
    masked: Array | None = None
    roots: tuple[TreeSum, ...] = ()


def bitmap(participants: Iterable[int]) -> int:
    """Bit i is set if party i takes part."""
    return sum(1 << party for party in participants)


class Protection(Protocol):
    """How a party's addend is hidden from whoever sums it."""

    def protect(self, round_number: int, values: Vector, participants: frozenset[int] | None = None) -> Addend:
        """The addend of a round among `participants` (everyone if None). A round number never names two values."""


class SumGate:
    """A party's gate for addends of secure sums."""

    def __init__(self, protection: Protection) -> None:
        self._protection = protection

    def release(self, round_number: int, draft: Vector, participants: frozenset[int] | None = None) -> Release[Addend]:
        """Hide a draft in the sum of a round."""
        return Release(self._protection.protect(round_number, draft, participants), _SEAL)


class MayHoldLabels(Protocol):
    """A draft that says which label release it was made from."""

    @property
    def label_release(self) -> int | None:
        """The release, or None where no label is in the draft."""


Draft = TypeVar("Draft", bound=MayHoldLabels)


class OutcomeGate:
    """The coordinator's gate: an outcome that was made from labels leaves only if the ledger covers it."""

    def __init__(self, is_paid: Callable[[int], bool]) -> None:
        self._is_paid = is_paid

    def release(self, draft: Draft) -> Release[Draft]:
        """Let the outcome of a round pass."""
        if draft.label_release is not None and not self._is_paid(draft.label_release):
            raise NotPaid(f"label release {draft.label_release} is not in the ledger; nothing was sent")
        return Release(draft, _SEAL)


@dataclass(frozen=True)
class Portion:
    """What Push-Sum moves along one edge at one step: a portion, or (robust form) the edge's running total."""

    step: int
    mass: Mass
    total: RunningTotal | None = None


class PortionGate:
    """A party's gate for Push-Sum. No mechanism hides a portion, so a party's policy must name the algorithm."""

    def release(self, step: int, mass: Mass, total: RunningTotal | None = None) -> Release[Portion]:
        """Let one step's portion (the same for all receivers with equal shares) pass."""
        return Release(Portion(step, mass, total), _SEAL)


class Plain:
    """No protection: the addend in the clear. A party's policy must allow it."""

    def __init__(self, parties: int) -> None:
        self._everyone = frozenset(range(parties))

    def protect(
        self,
        round_number: int,  # noqa: ARG002 (nothing to hide, so nothing to count)
        values: Vector,
        participants: frozenset[int] | None = None,
    ) -> Addend:
        """Hand the values on."""
        return Addend(bitmap(participants or self._everyone), clear=np.asarray(values))


class TreeGate:
    """A party's gate for `two_tree`: its value plus a fresh mask goes up tree 1, the mask up tree 2."""

    def __init__(self, index: int, trees: TreePair, ring: Ring) -> None:
        self._index, self._trees, self._ring = index, trees, ring
        self._node = TwoTreeNode(index, trees, ring)  # refuses trees that leak

    def begin(self, round_number: int, draft: Vector) -> None:
        """Enter a round with this party's value."""
        self._node.begin(round_number, self._ring.encode(draft))

    def children(self, round_number: int, tree: TreeName) -> tuple[int, ...]:
        """Parties whose partial sums are due."""
        return self._node.children(round_number, _NUMBERS[tree])

    def parent(self, tree: TreeName) -> int | None:
        """Whom this party's partial sum goes to; None at the root, which sends it to the coordinator."""
        return (self._trees.masked if tree == "values" else self._trees.masks).parents[self._index]

    def forward(self, round_number: int, tree: TreeName, received: Sequence[tuple[int, TreeSum]]) -> Release[TreeSum]:
        """Own summand plus what the children sent."""
        number = _NUMBERS[tree]
        parts = [PartialSum(part.round, number, child, part.participants, part.elements) for child, part in received]
        total = self._node.forward(round_number, number, parts)
        return Release(TreeSum(tree, round_number, total.elements, total.participants), _SEAL)

    def abandon(self, round_number: int) -> None:
        """Forget a round that will not end; its number stays used."""
        self._node.abandon(round_number)

    def addend(self, roots: Sequence[Release[TreeSum]]) -> Release[Addend]:
        """What this party tells the coordinator: the sums that ended here."""
        everyone = (1 << self._trees.masked.size) - 1
        return Release(Addend(everyone, roots=tuple(root.content for root in roots)), _SEAL)
