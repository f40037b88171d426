"""Stored and searched tree pairs withstand two colluders."""

import subprocess
import sys
from importlib.resources import files

import pytest

from parley.privacy.tree_leakage import check_trees
from parley.privacy.tree_search import (
    TABLE_PARTIES,
    NoTreesFound,
    collusion_resistant_trees,
    search_trees,
    stored_trees,
    table_text,
)
from parley.privacy.trees import TooFewParties


def test_the_stored_table_is_what_the_search_draws():
    assert files("parley.privacy").joinpath("tree_table.json").read_text("utf-8") == table_text()


def test_the_stored_table_is_found_wherever_a_service_is_started(tmp_path):
    asks = "from parley.privacy.tree_search import stored_trees; print(stored_trees(3, opened_by_party=True).output)"
    found = subprocess.run([sys.executable, "-c", asks], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert found.stdout == "0\n", found.stderr


@pytest.mark.parametrize("parties", range(3, TABLE_PARTIES + 1))
def test_a_stored_pair_withstands_two_colluders_and_is_shallow(parties):
    pair = stored_trees(parties, opened_by_party=True)
    check_trees(pair.masked, pair.masks, 0, colluders=2)
    assert max(pair.masked.depth, pair.masks.depth) <= 3
    assert not pair.masked.leaves & pair.masks.leaves


@pytest.mark.parametrize("parties", range(2, TABLE_PARTIES + 1))
def test_a_stored_pair_for_the_coordinator_withstands_it_and_one_party(parties):
    pair = stored_trees(parties, opened_by_party=False)
    check_trees(pair.masked, pair.masks, None, colluders=2)


@pytest.mark.parametrize("requester", range(5))
def test_any_requester_gets_a_resistant_pair(requester):
    pair = collusion_resistant_trees(5, requester)
    assert pair.masked.root == pair.output == requester
    check_trees(pair.masked, pair.masks, requester, colluders=2)


def test_beyond_the_table_the_search_serves():
    pair = collusion_resistant_trees(TABLE_PARTIES + 1, 3)
    check_trees(pair.masked, pair.masks, 3, colluders=2)


def test_a_seed_gives_the_same_trees_again_and_another_seed_others():
    first = search_trees(9, 0, seed=1, attempts=40)
    assert first == search_trees(9, 0, seed=1, attempts=40)
    assert first != search_trees(9, 0, seed=2, attempts=40)


def test_a_search_that_finds_nothing_says_so():
    with pytest.raises(NoTreesFound, match="try more attempts"):
        search_trees(12, 0, seed=0, attempts=0)


@pytest.mark.parametrize(("parties", "output"), [(2, 0), (1, None)])
def test_too_few_parties_have_no_trees(parties, output):
    with pytest.raises(TooFewParties):
        collusion_resistant_trees(parties, output)
