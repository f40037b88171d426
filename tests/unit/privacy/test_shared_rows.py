"""The share of a row in what several counts tell together, against all combinations that there are."""

import numpy as np
import pytest

from parley.privacy.shared_rows import row_shares


def numbers(rows):
    return np.unique(np.array(list(rows), dtype=np.uint64))


def projected(sets, rows):
    """The same by the projection on what the sets' indicators span."""
    members = np.stack([np.isin(rows, each) for each in sets]).astype(float)
    return np.diag(np.linalg.pinv(members) @ members)


@pytest.mark.parametrize("seed", range(5))
def test_shares_are_the_diagonal_of_the_projection(seed):
    rng = np.random.default_rng(seed)
    rows = numbers(range(30))
    sets = [numbers(rng.permutation(30)[: rng.integers(1, 25)]) for _ in range(6)]
    sets.append(sets[0])
    np.testing.assert_allclose(row_shares(sets, rows), projected(sets, rows), atol=1e-9)


def test_rows_of_one_set_share_it_evenly_and_a_row_that_sets_add_up_to_has_all_of_itself():
    a, b, x = list(range(20)), list(range(30, 50)), 99
    rows = numbers([*a, *b, x])
    np.testing.assert_allclose(row_shares([numbers(a)], rows)[:20], 1 / 20)
    shares = row_shares([numbers([*a, x]), numbers(b), numbers(a + b)], rows)
    assert shares[-1] == pytest.approx(1)
    assert shares[:-1].max() < 0.1
