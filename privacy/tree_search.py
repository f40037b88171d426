"""Tree pairs that withstand two colluding parties: a stored table, and the seeded search that made it.

A party that is a leaf in both trees is lost to its two parents, so the leaves of T1 and T2 must be disjoint. The plain
heaps have this for even q ≥ 6 and pass the pair check there; for other q, and for less depth, the search draws pairs
with disjoint leaves and keeps the shallowest that passes `check_trees(…, colluders=2)`. Trees are public, so the
search is seeded and needs no cryptographic randomness.
"""

import json
import sys
from importlib.resources import files
from itertools import chain
from random import Random
from typing import Any

from parley.privacy.tree_leakage import TreesLeak, check_trees
from parley.privacy.trees import TooFewParties, Tree, TreePair, rotated

TABLE_PARTIES = 16
"""The table goes up to this number of parties; beyond it the search runs at configuration time."""
_TABLE_SEED = 20
_TABLE_ATTEMPTS = 1000


class NoTreesFound(LookupError):
    """The search ended without a pair that passes the check."""


def collusion_resistant_trees(parties: int, output: int | None) -> TreePair:
    """A pair for which no two members (parties, or the coordinator and a party) learn more than the total."""
    if parties < (2 if output is None else 3):
        raise TooFewParties(f"no trees hide a value in a sum of {parties} parties; add parties")
    if parties > TABLE_PARTIES:
        made_for_zero = search_trees(parties, None if output is None else 0, seed=_TABLE_SEED, attempts=_TABLE_ATTEMPTS)
    else:
        made_for_zero = stored_trees(parties, opened_by_party=output is not None)
    return made_for_zero if output is None else rotated(made_for_zero, output)


def stored_trees(parties: int, *, opened_by_party: bool) -> TreePair:
    """The table's pair for output 0, or for the coordinator."""
    table = json.loads(files("parley.privacy").joinpath("tree_table.json").read_text("utf-8"))
    entry = table["party" if opened_by_party else "coordinator"][str(parties)]
    return TreePair(Tree(tuple(entry["masked"])), Tree(tuple(entry["masks"])), 0 if opened_by_party else None)


def build_table() -> dict[str, Any]:
    """The content of tree_table.json, drawn anew."""

    def entry(parties: int, output: int | None) -> dict[str, list[int | None]]:
        pair = search_trees(parties, output, seed=_TABLE_SEED, attempts=_TABLE_ATTEMPTS)
        return {"masked": list(pair.masked.parents), "masks": list(pair.masks.parents)}

    return {
        "party": {str(q): entry(q, 0) for q in range(3, TABLE_PARTIES + 1)},
        "coordinator": {str(q): entry(q, None) for q in range(2, TABLE_PARTIES + 1)},
    }


def search_trees(parties: int, output: int | None, *, seed: int, attempts: int, colluders: int = 2) -> TreePair:
    """The shallowest of `attempts` random pairs that passes the exact check; ties go to the first found."""
    rng = Random(f"{seed}/{parties}/{output}")
    best: TreePair | None = None
    for _ in range(attempts):
        pair = _candidate(parties, output, rng)
        if pair.masked.root == pair.masks.root or (best is not None and _latency(pair) >= _latency(best)):
            continue
        try:
            check_trees(pair.masked, pair.masks, output, colluders=colluders)
        except TreesLeak:
            continue
        best = pair
    if best is None:
        raise NoTreesFound(
            f"none of {attempts} random pairs for {parties} parties withstands {colluders} colluders: "
            "try more attempts or another seed, or use pairwise masks"
        )
    return best


def _latency(pair: TreePair) -> tuple[int, int]:
    """Depth first (both trees work at once), then the busiest parent's fan-in."""
    fan_in = max(map(len, chain(pair.masked.children, pair.masks.children)))
    return max(pair.masked.depth, pair.masks.depth), fan_in


def _candidate(parties: int, output: int | None, rng: Random) -> TreePair:
    """Two random trees without a common leaf; T1 ends at the output where that is a party."""
    names = list(range(parties))
    rng.shuffle(names)
    if output is not None:
        names.remove(output)
        names.insert(0, output)
    inner = rng.randint(max(1, parties // 3), parties - 1)
    also_leaves = rng.sample(names[:inner], rng.randint(1, inner))
    also_inner = [party for party in names if party not in also_leaves]
    rng.shuffle(also_inner)
    return TreePair(_grow(names[:inner], names[inner:], rng), _grow(also_inner, also_leaves, rng), output)


def _grow(inner: list[int], leaves: list[int], rng: Random) -> Tree:
    """A random tree with these inner parties (the first is the root), each with at least one child, level by level."""
    below = [1] * len(inner)
    for _ in range(len(leaves) - 1):
        below[rng.randrange(len(inner))] += 1
    below.sort(reverse=True)  # many children near the root: less depth
    waiting = iter([*inner[1:], *leaves])
    parents: list[int | None] = [None] * (len(inner) + len(leaves))
    for parent, count in zip(inner, below, strict=True):
        for _ in range(count):
            parents[next(waiting)] = parent
    return Tree(tuple(parents))


def table_text() -> str:
    """tree_table.json as it is stored, one pair to a line."""
    sections = (
        f' "{output}": {{\n' + ",\n".join(f'  "{q}": {json.dumps(pair)}' for q, pair in pairs.items()) + "\n }"
        for output, pairs in build_table().items()
    )
    return "{\n" + ",\n".join(sections) + "\n}\n"


if __name__ == "__main__":  # python -m parley.privacy.tree_search > privacy/tree_table.json
    sys.stdout.write(table_text())
