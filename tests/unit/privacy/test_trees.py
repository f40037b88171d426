"""Shapes of aggregation trees."""

import pytest

from parley.privacy.trees import NotATree, Tree, rotated
from tests.heap_trees import requester_trees

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


def test_turning_the_heaps_of_party_zero_gives_the_heaps_of_any_requester():
    for requester in range(7):
        assert rotated(requester_trees(7, 0), requester) == requester_trees(7, requester)
