"""Pairs of aggregation trees for the two-tree sum.

Zhang et al., KDD 2021, Algorithm 2: party ℓ sends v_ℓ + δ_ℓ up T1 and δ_ℓ up T2; the output takes
φ₁ − φ₂. T1 ends at the output. T2 ends elsewhere, and its root forwards φ₂ to the output.

# differs from the paper: "significantly different" trees are not enough (two equal stars satisfy it);
`parley.privacy.tree_leakage.check_trees` decides exactly. This module only builds.

symbol · code
  q        · parties
  T1, T2   · TreePair.masked, TreePair.masks
  r        · output (None: the coordinator, which holds no share)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property


class NotATree(ValueError):
    """A parent vector has no root, several roots, a cycle, or a parent that does not exist."""


class TooFewParties(ValueError):
    """The sum over so few parties would itself reveal a party's value."""


@dataclass(frozen=True)
class Tree:
    """A rooted tree over parties 0..q−1."""

    parents: tuple[int | None, ...]
    """Parent of each party; None at the root."""

    def __post_init__(self) -> None:
        roots = [i for i, parent in enumerate(self.parents) if parent is None]
        if len(roots) != 1:
            raise NotATree(f"a tree has one root, this one has {len(roots)}: {self}")
        if any(parent is not None and not 0 <= parent < self.size for parent in self.parents):
            raise NotATree(f"a parent lies outside 0..{self.size - 1}: {self}")
        if len(self.order) != self.size:
            raise NotATree(f"some parties do not lead to the root: {self}")

    def __str__(self) -> str:
        return "(" + ",".join("-" if parent is None else str(parent) for parent in self.parents) + ")"

    @property
    def size(self) -> int:
        """q: number of parties."""
        return len(self.parents)

    @cached_property
    def root(self) -> int:
        """The party at which the sum ends."""
        return self.parents.index(None)

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Children of each party, ascending."""
        below: list[list[int]] = [[] for _ in self.parents]
        for child, parent in enumerate(self.parents):
            if parent is not None:
                below[parent].append(child)
        return tuple(map(tuple, below))

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Parties from the root downwards; reversed, every child comes before its parent."""
        found = [self.root]
        for party in found:
            found.extend(self.children[party])
        return tuple(found)

    @cached_property
    def leaves(self) -> frozenset[int]:
        """Parties without children."""
        return frozenset(party for party, below in enumerate(self.children) if not below)

    @cached_property
    def levels(self) -> tuple[int, ...]:
        """Number of hops from each party to the root."""
        level = [0] * self.size
        for party in self.order[1:]:
            level[party] = level[_present(self.parents[party])] + 1
        return tuple(level)

    @property
    def depth(self) -> int:
        """Hops from the farthest party to the root: the latency of a sum."""
        return max(self.levels)

    @cached_property
    def subtrees(self) -> tuple[int, ...]:
        """For each party the bitmap of the parties in its subtree, itself included (bit ℓ = party ℓ)."""
        bitmap = [1 << party for party in range(self.size)]
        for party in reversed(self.order[1:]):
            bitmap[_present(self.parents[party])] |= bitmap[party]
        return tuple(bitmap)

    def relabelled(self, names: Sequence[int]) -> "Tree":
        """The same shape with party i called names[i]."""
        parents: list[int | None] = [None] * self.size
        for party, parent in enumerate(self.parents):
            parents[names[party]] = None if parent is None else names[parent]
        return Tree(tuple(parents))


@dataclass(frozen=True)
class TreePair:
    """The two trees of a sum and where it is opened."""

    masked: Tree
    """T1: masked values v + δ go up this one."""
    masks: Tree
    """T2: masks δ go up this one."""
    output: int | None
    """The party that opens the sum (the root of T1), or None: the coordinator, to which both roots send."""


def _present(parent: int | None) -> int:
    if parent is None:  # only the root has no parent, and callers leave the root out
        raise NotATree("the root has no parent")
    return parent


def rotated(pair: TreePair, requester: int) -> TreePair:
    """A pair made for output 0, turned so that `requester` opens the sum."""
    parties = pair.masked.size
    names = [(party + requester) % parties for party in range(parties)]
    return TreePair(pair.masked.relabelled(names), pair.masks.relabelled(names), requester)
