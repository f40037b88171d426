"""The exact leakage check refuses what leaks and says what leaks to whom."""

import pytest

from parley.privacy.tree_leakage import TreesLeak, check_trees
from parley.privacy.trees import TooFewParties, Tree
from tests.heap_trees import coordinator_trees, requester_trees


def tree(*parents: int | str) -> Tree:
    return Tree(tuple(None if parent == "-" else int(parent) for parent in parents))


KNOWN_GOOD = [
    (tree("-", 0, 0), tree(1, "-", 1)),
    (tree("-", 3, 0, 0), tree(2, "-", 1, 2)),
    (tree("-", 0, 1, 7, 2, 7, 2, 0), tree(4, 5, 3, "-", 6, 3, 3, 6)),
]
STAR = tree("-", 0, 0, 0)


@pytest.mark.parametrize(("masked", "masks"), KNOWN_GOOD, ids=["q=3", "q=4", "q=8"])
@pytest.mark.parametrize("colluders", [1, 2])
def test_known_good_trees_pass_for_single_parties_and_for_pairs(masked, masks, colluders):
    check_trees(masked, masks, 0, colluders=colluders)


def test_two_equal_stars_show_every_value_to_their_centre():
    with pytest.raises(TreesLeak, match="party 0 would learn v1:") as refusal:
        check_trees(STAR, STAR, 0)
    assert refusal.value.coalition == {0}


@pytest.mark.parametrize(
    ("masked", "masks", "leak"),
    [
        (tree("-", 3, 0, 0, 0), tree(2, 0, "-", 4, 1), "v1 + v3 + v4"),
        (tree("-", 4, 0, 0, 2), tree(3, 0, 4, "-", 0), "v1 + v2 + v4"),
    ],
    ids=["first", "second"],
)
def test_significantly_different_trees_can_leak_to_one_party(masked, masks, leak):
    with pytest.raises(TreesLeak) as refusal:
        check_trees(masked, masks, 0)
    assert refusal.value.coalition == {0}
    assert refusal.value.combination == leak


def test_heaps_hide_from_each_party_but_a_double_leaf_is_lost_to_its_two_parents():
    pair = requester_trees(7, 0)
    check_trees(pair.masked, pair.masks, 0, colluders=1)
    (double_leaf,) = pair.masked.leaves & pair.masks.leaves
    with pytest.raises(TreesLeak, match=f"would learn v{double_leaf}") as refusal:
        check_trees(pair.masked, pair.masks, 0, colluders=2)
    assert refusal.value.coalition == {pair.masked.parents[double_leaf], pair.masks.parents[double_leaf]}


@pytest.mark.parametrize("parties", [6, 8, 16, 64])
def test_heaps_of_an_even_number_of_parties_withstand_pairs(parties):
    pair = requester_trees(parties, 1)
    check_trees(pair.masked, pair.masks, 1, colluders=2)
    pair = coordinator_trees(parties)
    check_trees(pair.masked, pair.masks, None, colluders=2)


@pytest.mark.parametrize("parties", range(2, 20))
def test_the_coordinator_and_each_party_alone_learn_nothing_from_heaps(parties):
    pair = coordinator_trees(parties)
    check_trees(pair.masked, pair.masks, None)


def test_one_root_for_both_trees_would_learn_the_coordinators_total():
    with pytest.raises(TreesLeak, match=r"party 0 would learn v1 \+ v2 \+ v3"):
        check_trees(tree("-", 0, 1, 2), tree("-", 3, 0, 2), None)


def test_the_coordinator_with_a_party_sees_through_a_partial_sum_that_both_trees_share():
    # party 1 gets v2+δ2 on T1; party 0 gets δ2 on T2; the coordinator alone gets the total only
    masked, masks = tree(3, 3, 1, "-"), tree("-", 0, 0, 1)
    check_trees(masked, masks, None, colluders=1)
    with pytest.raises(TreesLeak) as refusal:
        check_trees(masked, masks, None, colluders=2)
    assert refusal.value.coalition == {0, 1}
    assert refusal.value.combination == "v2"


def test_two_parties_are_refused_when_one_of_them_opens_the_sum():
    with pytest.raises(TooFewParties, match="reveals one value"):
        check_trees(tree("-", 0), tree(1, "-"), 0)


def test_two_parties_are_enough_for_the_coordinator():
    check_trees(tree("-", 0), tree(1, "-"), None, colluders=1)


def test_trees_that_are_safe_for_all_can_leak_when_some_stay_out():
    # party 2 gets v1+δ1 on T1 and, on T2, δ1+δ3: without party 3 that is δ1
    masked, masks = tree("-", 2, 0, 0), tree(2, 3, "-", 2)
    check_trees(masked, masks, 0)
    with pytest.raises(TreesLeak, match="party 2 would learn v1"):
        check_trees(masked, masks, 0, participants=frozenset({0, 1, 2}))


def test_participants_must_leave_two_values_that_the_output_does_not_hold():
    pair = requester_trees(5, 0)
    with pytest.raises(TooFewParties):
        check_trees(pair.masked, pair.masks, 0, participants=frozenset({0, 3}))


def test_a_common_subtree_is_refused_although_no_single_party_sees_both_halves():
    with pytest.raises(TreesLeak, match="not significantly different") as refusal:
        check_trees(tree("-", 0, 0, 2), tree(1, "-", 3, 1), 0)
    assert refusal.value.combination == "v2 + v3"
    assert refusal.value.coalition == {0, 1}


def test_a_common_parent_is_refused_even_if_the_partial_sums_differ():
    with pytest.raises(TreesLeak, match="party 2 would learn both partial sums of party 4"):
        check_trees(tree("-", 0, 1, 0, 2), tree(2, 4, 3, "-", 2), 0)


def test_tree_one_must_end_at_the_output():
    with pytest.raises(ValueError, match="must end at the output"):
        check_trees(tree(1, "-", 1), tree("-", 0, 0), 0)


def test_trees_over_different_parties_are_refused():
    with pytest.raises(ValueError, match="T1 has 3 parties and T2 has 4"):
        check_trees(tree("-", 0, 0), tree(1, "-", 1, 1), 0)
