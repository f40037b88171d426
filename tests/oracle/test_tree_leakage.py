"""A brute-force adversary agrees with the exact leakage check.

Two oracles, neither of which eliminates anything:
- the enumerating adversary lists every value that combinations of the T1 messages can take and every value that
  combinations of the T2 messages can take, over Z_4; masks cancel exactly where the two lists meet. Z_4 has the
  zero divisor that a check over a field would overlook, and tells −1 from +1;
- the counting adversary runs the protocol for every choice of masks over a small modulus and compares the
  distributions of what the coalition sees: no linear algebra at all.
"""

from collections import Counter
from itertools import combinations, product
from random import Random

import numpy as np
import pytest

from parley.privacy.tree_leakage import TreesLeak, check_trees
from parley.privacy.tree_search import stored_trees
from parley.privacy.trees import Tree, TreePair
from tests.heap_trees import coordinator_trees, requester_trees

MODULUS = 4


def members_below(tree: Tree, party: int) -> list[int]:
    return [party, *(p for child in tree.children[party] for p in members_below(tree, child))]


def sums_seen(tree: Tree, coalition: set, output) -> list[list[int]]:
    """Who is in each partial sum of one tree that some member of the coalition receives or, as the output, opens."""
    seen = [members_below(tree, child) for p in coalition if p is not None for child in tree.children[p]]
    return seen + ([members_below(tree, tree.root)] if output in coalition else [])


def reachable(sums: list[list[int]], outsiders: list[int]) -> set[tuple[int, ...]]:
    """Every combination over Z_4 of the indicator vectors of the sums."""
    found = np.zeros((1, len(outsiders)), dtype=np.int8)
    for members in sums:
        indicator = np.array([p in members for p in outsiders], dtype=np.int8)
        steps = np.arange(MODULUS, dtype=np.int8)[:, None, None] * indicator
        found = np.unique(((found[None] + steps) % MODULUS).reshape(-1, len(outsiders)), axis=0)
    return set(map(tuple, found.tolist()))


def adversary_wins(pair: TreePair, coalition: set) -> bool:
    outsiders = [p for p in range(pair.masked.size) if p not in coalition]
    if not outsiders:
        return False
    learnt = reachable(sums_seen(pair.masked, coalition, pair.output), outsiders) & reachable(
        sums_seen(pair.masks, coalition, pair.output), outsiders
    )
    both_roots = {pair.masked.root, pair.masks.root}
    entitled = pair.output in coalition or (len(both_roots) == 2 and both_roots <= coalition)
    allowed = {(c,) * len(outsiders) for c in range(MODULUS if entitled else 1)}
    return not learnt <= allowed


def brute_force_finds_a_leak(pair: TreePair, colluders: int) -> bool:
    everyone = [*range(pair.masked.size), *([None] if pair.output is None else [])]
    coalitions = (set(c) for size in range(1, colluders + 1) for c in combinations(everyone, size))
    return any(adversary_wins(pair, coalition) for coalition in coalitions)


def check_finds_a_leak(pair: TreePair, colluders: int) -> bool:
    everyone = frozenset(range(pair.masked.size))  # given explicitly: only the exact check, no structural conditions
    try:
        check_trees(pair.masked, pair.masks, pair.output, colluders=colluders, participants=everyone)
    except TreesLeak:
        return True
    return False


def random_tree(parties: int, root: int, rng: Random) -> Tree:
    order = [root, *rng.sample([p for p in range(parties) if p != root], parties - 1)]
    parents: list[int | None] = [None] * parties
    for place in range(1, parties):
        parents[order[place]] = order[rng.randrange(max(0, place - 3), place)]
    return Tree(tuple(parents))


def random_pair(parties: int, output: int | None, rng: Random) -> TreePair:
    root = rng.randrange(parties) if output is None else output
    return TreePair(random_tree(parties, root, rng), random_tree(parties, rng.randrange(parties), rng), output)


@pytest.mark.parametrize("parties", range(3, 9))
@pytest.mark.parametrize("output", [0, None], ids=["party", "coordinator"])
@pytest.mark.parametrize("colluders", [1, 2])
def test_the_check_agrees_with_the_enumerating_adversary_on_random_pairs(parties, output, colluders):
    rng = Random(f"{parties}/{output}")
    verdicts = Counter()
    for _ in range(60):
        pair = random_pair(parties, output, rng)
        verdict = check_finds_a_leak(pair, colluders)
        assert verdict == brute_force_finds_a_leak(pair, colluders), f"{pair.masked} {pair.masks}"
        verdicts[verdict] += 1
    if colluders == 1:
        assert len(verdicts) == 2, "the sample should hold both safe and leaking pairs"


@pytest.mark.parametrize("parties", range(3, 9))
@pytest.mark.parametrize("opened_by_party", [True, False], ids=["party", "coordinator"])
def test_the_enumerating_adversary_fails_on_every_stored_pair(parties, opened_by_party):
    assert not brute_force_finds_a_leak(stored_trees(parties, opened_by_party=opened_by_party), colluders=2)


@pytest.mark.parametrize("parties", range(3, 9))
def test_one_adversary_fails_on_the_heaps_of_every_requester(parties):
    for requester in range(parties):
        assert not brute_force_finds_a_leak(requester_trees(parties, requester), colluders=1)
    assert not brute_force_finds_a_leak(coordinator_trees(parties), colluders=1)


@pytest.mark.parametrize("parties", range(3, 17))
def test_heaps_pass_the_one_party_check_for_any_requester(parties):
    for requester in range(parties):
        pair = requester_trees(parties, requester)
        check_trees(pair.masked, pair.masks, requester)


def test_heaps_pass_the_one_party_check_up_to_64_parties():
    for parties in range(17, 65):  # a heap for another requester is the same one with other names
        pair = requester_trees(parties, 0)
        check_trees(pair.masked, pair.masks, 0)


def view(pair: TreePair, party: int, values: tuple[int, ...], masks: tuple[int, ...], modulus: int) -> tuple:
    """All that one party knows after the protocol has run on these values and masks."""

    def partial(tree: Tree, node: int, summand) -> int:
        return (summand(node) + sum(partial(tree, child, summand) for child in tree.children[node])) % modulus

    def masked_value(p: int) -> int:
        return values[p] + masks[p]

    received = [partial(pair.masked, child, masked_value) for child in pair.masked.children[party]]
    received += [partial(pair.masks, child, masks.__getitem__) for child in pair.masks.children[party]]
    if party == pair.output:
        received.append(partial(pair.masks, pair.masks.root, masks.__getitem__))
    return (values[party], masks[party], *received)


def view_depends_on_more_than_the_total(pair: TreePair, party: int, modulus: int) -> bool:
    """Whether some two inputs with the same total (or any two, if this party may not see it) look different."""
    parties = pair.masked.size
    looks: dict[tuple[int, ...], set] = {}
    for others in product(range(modulus), repeat=parties - 1):
        values = (*others[:party], 0, *others[party:])
        everything = product(range(modulus), repeat=parties)
        distribution = Counter(view(pair, party, values, masks, modulus) for masks in everything)
        may_know = (sum(values) % modulus,) if party == pair.output else ()
        looks.setdefault(may_know, set()).add(frozenset(distribution.items()))
    return any(len(distributions) > 1 for distributions in looks.values())


@pytest.mark.parametrize(("parties", "modulus", "pairs"), [(3, 4, 12), (4, 3, 12), (5, 2, 25)])
def test_the_check_agrees_with_counting_what_each_party_sees(parties, modulus, pairs):
    rng = Random(parties)
    verdicts = Counter()
    for _ in range(pairs):
        pair = random_pair(parties, 0, rng)
        counted = any(view_depends_on_more_than_the_total(pair, p, modulus) for p in range(parties))
        assert counted == check_finds_a_leak(pair, colluders=1), f"{pair.masked} {pair.masks}"
        verdicts[counted] += 1
    assert len(verdicts) == 2, "the sample should hold both safe and leaking pairs"
