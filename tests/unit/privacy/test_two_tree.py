"""The two-tree sum, simulated node by node."""

from dataclasses import replace

import numpy as np
import pytest

from parley.privacy.pairwise import NotAParticipant, RoundReused
from parley.privacy.ring import NotRingElements, Ring, RingTooSmall
from parley.privacy.tree_leakage import TreesLeak
from parley.privacy.tree_search import collusion_resistant_trees
from parley.privacy.trees import TooFewParties, Tree, TreePair
from parley.privacy.two_tree import (
    BitmapsDisagree,
    OpenedOtherwise,
    PartialSum,
    SubtreeIncomplete,
    SumOpener,
    TreeNumber,
    TwoTreeNode,
    UnexpectedPartialSum,
)
from tests.heap_trees import coordinator_trees, requester_trees

RING = Ring.WIDE


def climb(nodes: list[TwoTreeNode], trees: TreePair, round_id: int, number: TreeNumber) -> dict[int, PartialSum]:
    """All messages of one tree, by sender."""
    tree = trees.masked if number is TreeNumber.MASKED else trees.masks
    sent: dict[int, PartialSum] = {}
    for party in reversed(tree.order):
        if not nodes[party].is_due(round_id, number):
            continue
        children = nodes[party].children(round_id, number)
        sent[party] = nodes[party].forward(round_id, number, [sent[child] for child in children])
    return sent


def values_for(parties: int, ring: Ring = RING, shape=(4, 6)) -> list[np.ndarray]:
    return [ring.encode(np.random.default_rng(p).normal(size=shape)) for p in range(parties)]


def begun(trees: TreePair, values, round_id=0, ring=RING, participants=None) -> list[TwoTreeNode]:
    nodes = [TwoTreeNode(p, trees, ring) for p in range(trees.masked.size)]
    for node, value in zip(nodes, values, strict=True):
        node.begin(round_id, value, participants)
    return nodes


def phis(nodes, trees, round_id=0) -> tuple[PartialSum, PartialSum]:
    return (
        climb(nodes, trees, round_id, TreeNumber.MASKED)[trees.masked.root],
        climb(nodes, trees, round_id, TreeNumber.MASKS)[trees.masks.root],
    )


@pytest.mark.parametrize("ring", [Ring.WIDE, Ring.NARROW], ids=["64", "32"])
@pytest.mark.parametrize("parties", range(3, 17))
def test_the_sum_is_exact_to_the_bit_for_any_requester(parties, ring):
    values = values_for(parties, ring)
    for requester in (0, parties // 2, parties - 1):
        trees = requester_trees(parties, requester)
        phi1, phi2 = phis(begun(trees, values, ring=ring), trees)
        assert np.array_equal(SumOpener(trees, ring).open_sum(phi1, phi2), sum(values[1:], values[0]))


@pytest.mark.parametrize("parties", range(2, 17))
def test_the_coordinator_opens_the_sum_of_parties_from_two_roots(parties):
    values = values_for(parties)
    trees = coordinator_trees(parties)
    phi1, phi2 = phis(begun(trees, values), trees)
    assert phi1.sender != phi2.sender
    assert np.array_equal(SumOpener(trees, RING).open_sum(phi1, phi2), sum(values[1:], values[0]))


@pytest.mark.parametrize("output", [0, 3, None], ids=str)
def test_stored_trees_carry_the_sum(output):
    trees = collusion_resistant_trees(9, output)
    values = values_for(9)
    phi1, phi2 = phis(begun(trees, values), trees)
    assert np.array_equal(SumOpener(trees, RING).open_sum(phi1, phi2), sum(values[1:], values[0]))


def test_parties_that_stay_out_pass_sums_on_and_add_nothing():
    trees, chosen = requester_trees(8, 0), frozenset({0, 1, 2, 4, 5, 6, 7})
    values = values_for(8)
    phi1, phi2 = phis(begun(trees, values, participants=chosen), trees)
    assert phi1.participants == phi2.participants == 0b11110111
    opened = SumOpener(trees, RING).open_sum(phi1, phi2)
    assert np.array_equal(opened, sum((values[p] for p in chosen), np.zeros((4, 6), RING.dtype)))


def test_a_bystander_with_nobody_below_it_sends_nothing():
    node = TwoTreeNode(3, requester_trees(8, 0), RING)  # a leaf of tree 2
    node.begin(0, values_for(8)[3], frozenset({0, 1, 2, 4, 5, 6, 7}))
    assert not node.is_due(0, TreeNumber.MASKS)
    with pytest.raises(NotAParticipant, match="nothing to send"):
        node.forward(0, TreeNumber.MASKS, [])


def test_a_set_of_participants_for_which_the_trees_leak_is_refused_by_the_party():
    trees = TreePair(Tree((None, 2, 0, 0)), Tree((2, 3, None, 2)), 0)
    node = TwoTreeNode(1, trees, RING)
    with pytest.raises(TreesLeak, match="party 2 would learn v1"):
        node.begin(0, values_for(4)[1], frozenset({0, 1, 2}))
    node.begin(0, values_for(4)[1])


def test_leaking_trees_are_refused_before_any_round():
    star = Tree((None, 0, 0, 0))
    with pytest.raises(TreesLeak):
        TwoTreeNode(1, TreePair(star, star, 0), RING)


def test_a_party_may_ask_for_trees_that_withstand_two_colluders():
    with pytest.raises(TreesLeak):
        TwoTreeNode(1, requester_trees(7, 0), RING, colluders=2)


def test_a_message_up_tree_one_shows_neither_the_value_nor_the_same_bytes_twice():
    trees, value = requester_trees(3, 0), values_for(3)[1]
    sent = []
    for _ in range(2):
        node = TwoTreeNode(1, trees, RING)
        node.begin(0, value)
        sent.append(node.forward(0, TreeNumber.MASKED, []).elements)
    assert not np.intersect1d(sent[0], value).size
    assert not np.intersect1d(sent[0], sent[1]).size


@pytest.mark.filterwarnings("error")
def test_a_single_number_can_be_summed():
    trees, values = requester_trees(5, 2), [RING.encode(np.array(0.25 * p)) for p in range(5)]
    opened = SumOpener(trees, RING).open_sum(*phis(begun(trees, values), trees))
    assert opened.shape == ()
    assert RING.decode(opened) == 2.5


def test_the_callers_value_is_left_alone():
    trees, values = requester_trees(3, 0), values_for(3)
    before = [value.copy() for value in values]
    phis(begun(trees, values), trees)
    assert all(np.array_equal(a, b) for a, b in zip(values, before, strict=True))


@pytest.mark.parametrize("again", [6, 5])
def test_a_round_id_is_never_used_twice(again):
    node = TwoTreeNode(1, requester_trees(3, 0), RING)
    node.begin(6, values_for(3)[1])
    with pytest.raises(RoundReused):
        node.begin(again, values_for(3)[2])


def test_a_node_that_is_made_again_goes_on_after_its_last_round():
    node = TwoTreeNode(1, requester_trees(3, 0), RING, last_round=9)
    with pytest.raises(RoundReused):
        node.begin(9, values_for(3)[1])
    node.begin(10, values_for(3)[1])
    assert node.last_round == 10


def test_each_tree_is_climbed_once():
    trees = requester_trees(3, 0)
    node = TwoTreeNode(1, trees, RING)
    node.begin(0, values_for(3)[1])
    node.forward(0, TreeNumber.MASKED, [])
    with pytest.raises(RoundReused, match="it was never begun, or is done"):
        node.forward(0, TreeNumber.MASKED, [])


def test_an_abandoned_round_cannot_be_taken_up_again():
    node = TwoTreeNode(1, requester_trees(3, 0), RING)
    node.begin(0, values_for(3)[1])
    node.abandon(0)
    with pytest.raises(RoundReused):
        node.forward(0, TreeNumber.MASKED, [])
    with pytest.raises(RoundReused):
        node.begin(0, values_for(3)[1])


@pytest.fixture
def at_root():
    """Party 0 of three, and its children's messages on tree 1."""
    trees = requester_trees(3, 0)
    nodes = begun(trees, values_for(3))
    return nodes[0], [nodes[child].forward(0, TreeNumber.MASKED, []) for child in (1, 2)]


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ({"round_id": 1}, UnexpectedPartialSum),
        ({"tree": TreeNumber.MASKS}, UnexpectedPartialSum),
        ({"sender": 0}, UnexpectedPartialSum),
        ({"sender": 2}, UnexpectedPartialSum),
        ({"elements": np.zeros(3, RING.dtype)}, UnexpectedPartialSum),
        ({"elements": np.zeros((4, 6), np.uint32)}, NotRingElements),
        ({"participants": 0b000}, SubtreeIncomplete),
        ({"participants": 0b110}, SubtreeIncomplete),
    ],
    ids=str,
)
def test_a_partial_sum_that_is_not_what_was_agreed_is_refused(at_root, change, refusal):
    node, received = at_root
    with pytest.raises(refusal):
        node.forward(0, TreeNumber.MASKED, [replace(received[0], **change), received[1]])
    node.forward(0, TreeNumber.MASKED, received)  # nothing was used up


def test_a_missing_child_holds_the_sum_back(at_root):
    node, received = at_root
    with pytest.raises(UnexpectedPartialSum, match="due from"):
        node.forward(0, TreeNumber.MASKED, received[:1])


def test_participants_outside_the_trees_are_refused():
    with pytest.raises(NotAParticipant):
        TwoTreeNode(1, requester_trees(3, 0), RING).begin(0, values_for(3)[1], frozenset({0, 1, 2, 3}))


def test_more_parties_than_the_ring_can_sum_are_refused():
    tight = Ring(bits=32, fraction_bits=20, limit=1 << 10)
    with pytest.raises(RingTooSmall):
        TwoTreeNode(1, requester_trees(3, 0), tight).begin(0, values_for(3, tight)[1])


@pytest.fixture
def opening():
    trees = requester_trees(4, 0)
    return SumOpener(trees, RING), *phis(begun(trees, values_for(4)), trees)


def test_bitmaps_that_disagree_open_nothing(opening):
    opener, phi1, phi2 = opening
    with pytest.raises(BitmapsDisagree, match=r"T1 holds parties \[0, 1, 2\] and T2 \[0, 1, 2, 3\]"):
        opener.open_sum(replace(phi1, participants=0b0111), phi2)


def test_a_sum_of_too_few_parties_opens_nothing(opening):
    opener, phi1, phi2 = opening
    with pytest.raises(TooFewParties):
        opener.open_sum(replace(phi1, participants=0b0011), replace(phi2, participants=0b0011))


def test_a_round_is_not_opened_over_two_sets(opening):
    opener, phi1, phi2 = opening
    first = opener.open_sum(phi1, phi2)
    with pytest.raises(OpenedOtherwise, match="would reveal the difference"):
        opener.open_sum(replace(phi1, participants=0b0111), replace(phi2, participants=0b0111))
    assert np.array_equal(opener.open_sum(phi1, phi2), first)


def test_a_late_round_is_not_opened(opening):
    opener, phi1, phi2 = opening
    opener.open_sum(replace(phi1, round_id=5), replace(phi2, round_id=5))
    with pytest.raises(RoundReused):
        opener.open_sum(phi1, phi2)


@pytest.mark.parametrize("change", [{"round_id": 1}, {"sender": 1}, {"tree": TreeNumber.MASKED}], ids=str)
def test_phis_that_do_not_belong_together_open_nothing(opening, change):
    opener, phi1, phi2 = opening
    with pytest.raises(UnexpectedPartialSum):
        opener.open_sum(phi1, replace(phi2, **change))


def test_a_minimum_that_would_reveal_a_value_is_refused():
    with pytest.raises(TooFewParties):
        SumOpener(requester_trees(3, 0), RING, minimum_parties=2)
