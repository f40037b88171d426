"""Row sets."""

import numpy as np
import pytest

from parley.spec.rows import RowSets, _stable_order


def test_the_rows_of_both_levels_are_found_once():
    """Every batch of a joint problem is drawn from them: to find them anew took most of a step on 60 000 rows."""
    sets = RowSets(np.array([0, 2, 4]), np.array([1, 2, 3]), np.empty(0, np.int64))
    assert sets.trained.tolist() == [0, 1, 2, 3, 4]
    assert sets.trained is sets.trained


@pytest.mark.parametrize("rows", [1, 7, 1000])
def test_the_rows_of_both_levels_are_their_union(rows):
    rng = np.random.default_rng(rows)
    lower, upper = (np.flatnonzero(rng.random(rows) < share).astype(np.int64) for share in (0.4, 0.6))
    trained = RowSets(lower, upper, np.empty(0, np.int64)).trained
    assert trained.dtype == np.int64
    assert trained.tolist() == sorted({*lower.tolist(), *upper.tolist()})


def test_equal_words_keep_the_order_in_which_they_came():
    """Organisations may sort by another method: where two words are equal, all of them must put the same row first."""
    words = np.random.default_rng(0).integers(0, 50, 2000).astype(np.uint64)
    assert _stable_order(words).tolist() == sorted(range(2000), key=words.__getitem__)
