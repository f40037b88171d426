"""What a coalition learns from the two-tree sum, decided exactly before the first round.

Unknowns: the value v_ℓ and the mask δ_ℓ of every party outside the coalition C; those inside are known to it, so their
columns are dropped. C sees, for each of its members p,
    Σ_{ℓ∈S} (v_ℓ + δ_ℓ)   for the subtree S of each child of p in T1,
    Σ_{ℓ∈S} δ_ℓ           for the subtree S of each child of p in T2,
and, if C holds the output, φ₁ and φ₂. Messages between two members add nothing: both ends are known.
A combination of these rows is independent of the uniform masks iff its mask part is zero; everything else that C could
compute is uniform whatever the values are. So C learns precisely the value parts of the mask-free combinations, and
the trees are safe iff those are zero, or multiples of Σ_{ℓ∉C} v_ℓ for a C that is entitled to the total: one that holds
the output, or both roots of a sum for the coordinator (together they have what the coordinator gets, whatever the
trees).

Why integer elimination answers for Z_2^64. The subtrees of one tree are nested or disjoint, and the incidence matrix
of two such (laminar) families is totally unimodular (Edmonds 1970). Pivoting keeps it so: every pivot is ±1. Row
operations with unit pivots are invertible over any commutative ring, hence the rows left without masks generate all
mask-free combinations over Z_2^64 as well; there is no torsion, such as 2^63·(a+b), for a power-of-two modulus to
expose. The code does not take this on trust: it stops if it meets a pivot other than ±1.

The paper's own conditions, "significantly different" (no subtree of T1 of size 1 < s < q has the members of a subtree
of T2) and "no party has the same parent in both", are cheap and are asked for as well; neither is sufficient.
"""

from collections.abc import Iterator
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from parley.privacy.trees import TooFewParties, Tree, TreePair

Coalition = frozenset[int | None]
"""Parties that pool what they see; None is the coordinator."""


class TreesLeak(ValueError):
    """Some party, or some coalition, would learn more than the total."""

    def __init__(self, coalition: Coalition, combination: str, why: str) -> None:
        who = " and ".join(_name(member) for member in sorted(coalition, key=_coordinator_first))
        super().__init__(f"{who} would learn {combination}: {why}; choose other trees, or pairwise masks")
        self.coalition = coalition
        self.combination = combination


def _name(member: int | None) -> str:
    return "the coordinator" if member is None else f"party {member}"


def _coordinator_first(member: int | None) -> int:
    return -1 if member is None else member


def check_trees(
    masked: Tree,
    masks: Tree,
    output: int | None,
    *,
    colluders: int = 1,
    participants: frozenset[int] | None = None,
) -> None:
    """Refuse the trees unless every coalition of up to `colluders` members learns nothing but the total.

    `participants` are the parties that contribute in a round (all, if omitted); the others only pass sums on. Fewer
    participants mean smaller partial sums, so trees that are safe for all need not be safe for some.
    The coordinator counts as a member where it is the output: colluders=2 covers it together with any one party.
    """
    contributing = frozenset(range(masked.size)) if participants is None else participants
    _check_shape(masked, masks, output, contributing)
    pair = TreePair(masked, masks, output)
    for coalition in _coalitions(pair, colluders):
        leaked = leaked_combinations(pair, coalition, contributing)
        if leaked:
            raise TreesLeak(coalition, leaked[0], "in that combination of what it receives all masks cancel")
    if participants is None:
        _check_no_shared_parent(masked, masks)
        _check_no_shared_subtree(masked, masks)


def leaked_combinations(pair: TreePair, coalition: Coalition, participants: frozenset[int]) -> list[str]:
    """What the coalition learns beyond the total, as text such as "v1 + v4"; empty if nothing."""
    hidden = sorted(participants - coalition)
    rows = _observations(pair, coalition, hidden)
    roots = {pair.masked.root, pair.masks.root}
    entitled = pair.output in coalition or (len(roots) == 2 and roots <= coalition)
    return [
        _as_text(row, hidden) for row in _mask_free_rows(rows, len(hidden)) if not (entitled and (row == row[0]).all())
    ]


def _coalitions(pair: TreePair, most: int) -> Iterator[Coalition]:
    members: list[int | None] = list(range(pair.masked.size))
    if pair.output is None:
        members.append(None)
    for size in range(1, most + 1):
        yield from map(frozenset, combinations(members, size))


def _observations(pair: TreePair, coalition: Coalition, hidden: list[int]) -> NDArray[np.int64]:
    """One row per message that enters the coalition: the masks' coefficients, then the values'."""
    seen: list[tuple[int, bool]] = []  # members of a partial sum, and whether it carries values
    for tree, carries_values in ((pair.masked, True), (pair.masks, False)):
        seen += [
            (tree.subtrees[child], carries_values)
            for child, parent in enumerate(tree.parents)
            if parent is not None and parent in coalition and child not in coalition
        ]
        if pair.output in coalition:
            seen.append((tree.subtrees[tree.root], carries_values))
    count = len(hidden)
    rows = np.zeros((len(seen), 2 * count), dtype=np.int64)
    for row, (members, carries_values) in zip(rows, seen, strict=True):
        row[:count] = [members >> party & 1 for party in hidden]
        if carries_values:
            row[count:] = row[:count]
    return rows


def _mask_free_rows(rows: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Eliminate the first `count` columns (the masks) and return the values' part of the rows left without any."""
    free = 0  # rows before this one hold pivots
    for column in range(count):
        candidates = np.flatnonzero(rows[free:, column])
        if candidates.size == 0:
            continue
        rows[[free, free + candidates[0]]] = rows[[free + candidates[0], free]]
        pivot = rows[free, column]
        if abs(pivot) != 1:
            raise ArithmeticError(f"pivot {pivot}: the subtrees of two trees are unimodular, so this is a bug")
        factors = rows[free + 1 :, column] * pivot
        rows[free + 1 :] -= factors[:, None] * rows[free]
        free += 1
    left = rows[free:, count:]
    return left[left.any(axis=1)]


def _as_text(row: NDArray[np.int64], hidden: list[int]) -> str:
    row = row * np.sign(row[np.flatnonzero(row)[0]])
    text = ""
    for coefficient, party in zip(row.tolist(), hidden, strict=True):
        if coefficient:
            sign = ("- " if coefficient < 0 else "+ ") if text else ("-" if coefficient < 0 else "")
            times = "" if abs(coefficient) == 1 else f"{abs(coefficient)}·"
            text += f"{' ' if text else ''}{sign}{times}v{party}"
    return text


def _check_shape(masked: Tree, masks: Tree, output: int | None, contributing: frozenset[int]) -> None:
    if masked.size != masks.size:
        raise ValueError(f"T1 has {masked.size} parties and T2 has {masks.size}")
    if not contributing <= frozenset(range(masked.size)):
        raise ValueError(f"participants {sorted(contributing)} are not all in the trees of {masked.size}")
    others = contributing - {output}
    if len(others) < 2:
        raise TooFewParties(
            f"with {len(contributing)} contributing parties the sum itself reveals one value to {_name(output)}: "
            "at least 2 parties other than the output must contribute"
        )
    if output is not None and masked.root != output:
        raise ValueError(f"T1 must end at the output, party {output}, and ends at party {masked.root}")


def _check_no_shared_parent(masked: Tree, masks: Tree) -> None:
    for party, (above, also_above) in enumerate(zip(masked.parents, masks.parents, strict=True)):
        if above is not None and above == also_above:
            raise TreesLeak(
                frozenset({above}), f"both partial sums of party {party}", "it is that party's parent in both trees"
            )


def _check_no_shared_subtree(masked: Tree, masks: Tree) -> None:
    top = {members: party for party, members in enumerate(masks.subtrees)}
    for party, members in enumerate(masked.subtrees):
        if 1 < members.bit_count() < masked.size and members in top:
            parents = frozenset({masked.parents[party], masks.parents[top[members]]})
            raise TreesLeak(
                parents,
                " + ".join(f"v{p}" for p in range(masked.size) if members >> p & 1),
                "T1 and T2 have a subtree with the same members, so they are not significantly different",
            )
