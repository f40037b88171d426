"""Shapes of aggregation trees."""

import math

import pytest

from parley.privacy.trees import NotATree, TooFewParties, Tree, coordinator_trees, heap, requester_trees, rotated

#       2
#      / \
#     0   4
#    / \
#   1   3
SAMPLE = Tree((2, 0, None, 0, 2))


def test_a_tree_knows_its_root_children_leaves_and_depth():
    assert SAMPLE.root == 2
    assert SAMPLE.children == ((1, 3), (), (0, 4), (), ())
    assert SAMPLE.leaves == {1, 3, 4}
    assert SAMPLE.levels == (1, 2, 0, 2, 1)
    assert SAMPLE.depth == 2


def test_a_subtree_bitmap_holds_the_party_and_all_below_it():
    assert SAMPLE.subtrees == (0b01011, 0b00010, 0b11111, 0b01000, 0b10000)


def test_the_order_puts_every_parent_before_its_children():
    place = {party: i for i, party in enumerate(SAMPLE.order)}
    assert sorted(place) == [0, 1, 2, 3, 4]
    assert all(parent is None or place[parent] < place[child] for child, parent in enumerate(SAMPLE.parents))


@pytest.mark.parametrize(
    "parents", [(), (0,), (None, None), (1, 0), (None, 2, 1), (None, 7), (None, -1), (None, 1)], ids=str
)
def test_what_is_not_a_tree_is_refused(parents):
    with pytest.raises(NotATree):
        Tree(parents)


@pytest.mark.parametrize("parties", range(3, 17))
def test_a_requester_ends_tree_one_and_its_neighbour_ends_tree_two(parties):
    for requester in range(parties):
        pair = requester_trees(parties, requester)
        assert pair.masked.root == pair.output == requester
        assert pair.masks.root == (requester - 1) % parties
        assert pair.masked.depth == pair.masks.depth == math.floor(math.log2(parties))


@pytest.mark.parametrize("parties", range(2, 17))
def test_the_coordinator_gets_its_two_sums_from_different_parties(parties):
    pair = coordinator_trees(parties)
    assert pair.output is None
    assert pair.masked.root != pair.masks.root


def test_a_sum_of_two_parties_cannot_be_opened_by_one_of_them():
    with pytest.raises(TooFewParties, match="reveals the other's value"):
        requester_trees(2, 0)


def test_a_sum_of_one_party_cannot_be_opened_by_the_coordinator():
    with pytest.raises(TooFewParties):
        coordinator_trees(1)


def test_turning_the_heaps_of_party_zero_gives_the_heaps_of_any_requester():
    for requester in range(7):
        assert rotated(requester_trees(7, 0), requester) == requester_trees(7, requester)


def test_a_heap_hangs_position_i_below_half_of_it():
    assert heap([3, 1, 4, 0, 2]).parents == (1, 3, 1, None, 3)
