"""The obvious pair of trees, two heaps: what one colluder cannot open, and two can where q is odd or small."""

from collections.abc import Sequence

from parley.privacy.trees import Tree, TreePair


def heap(order: Sequence[int]) -> Tree:
    """The binary heap in which `order[i]` hangs below `order[(i−1)//2]`: depth ⌊log₂ q⌋."""
    parents: list[int | None] = [None] * len(order)
    for position in range(1, len(order)):
        parents[order[position]] = order[(position - 1) // 2]
    return Tree(tuple(parents))


def requester_trees(parties: int, requester: int) -> TreePair:
    """Trees for a sum that party r opens: T1 = heap over r, r+1, …; T2 = heap over r−1, r−2, …, whose root forwards φ₂.

    They pass the one-party check for every q ≥ 3 tried (3..64), and the pair check for even q ≥ 6.
    """
    up = [(requester + i) % parties for i in range(parties)]
    down = [(requester - 1 - i) % parties for i in range(parties)]
    return TreePair(heap(up), heap(down), requester)


def coordinator_trees(parties: int) -> TreePair:
    """Trees for a sum that the coordinator opens: heaps over 0, 1, … and over q−1, q−2, …; both roots send to it."""
    return TreePair(heap(range(parties)), heap(range(parties - 1, -1, -1)), None)
