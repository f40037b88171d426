"""Noisy rows: bounded, permanent, and no more precise than the grid."""

import numpy as np
import pytest

from parley.privacy.feature_noise import RowNoise, RowsNotFinite
from parley.privacy.gaussian import DISTANCE, STEPS, gaussian_delta
from parley.privacy.noise import KeyedNoise

KEY = KeyedNoise(bytes(range(32)))
MECHANISM = RowNoise(epsilon=4.0, delta=1e-6, bound=1.5)
COLUMNS = ("age", "income", "debt")
ROWS = np.random.default_rng(0).standard_normal((400, 3)) * [1.0, 2.0, 5.0]
IDS = [f"person-{row}" for row in range(400)]


def noised(rows=ROWS, ids=IDS, columns=COLUMNS, mechanism=MECHANISM, key=KEY, dataset="features/train"):
    return mechanism.noised(key, dataset, ids, columns, rows)


def noise_of(**changes):
    """What was added, in standard deviations."""
    mechanism, rows = changes.get("mechanism", MECHANISM), changes.get("rows", ROWS)
    return (noised(**changes).values - mechanism.clipped(rows)) / mechanism.sigma(rows.shape[1])


def test_the_event_says_what_the_noise_costs():
    event = noised().event
    assert event.ratio == 2 * MECHANISM.bound / MECHANISM.sigma(3)
    total = gaussian_delta(4.0, event.ratio) + (1 + np.exp(4.0)) * 3 * DISTANCE
    assert total <= 1e-6


@pytest.mark.parametrize("scale", [1e-300, 1.0, 1e6, 1e200, 1e308])
def test_no_row_is_longer_than_the_bound(scale):
    rows = ROWS / np.abs(ROWS).max() * scale
    clipped = MECHANISM.clipped(rows)
    assert np.linalg.norm(clipped, axis=1).max() <= MECHANISM.bound
    inside = np.linalg.norm(rows / scale, axis=1) * scale < MECHANISM.bound
    np.testing.assert_array_equal(clipped[inside], rows[inside])
    far = ~inside
    np.testing.assert_allclose(np.linalg.norm(clipped[far], axis=1), MECHANISM.bound, rtol=1e-9)


def test_before_noise_a_row_stands_on_the_grid_and_two_are_at_most_the_sensitivity_apart():
    step = MECHANISM.sigma(3) / STEPS
    on_grid = np.trunc(MECHANISM.clipped(ROWS) / step)
    assert (on_grid.astype(np.int64) ** 2).sum(axis=1).max() <= (MECHANISM.bound / step) ** 2
    steps = noised().values / step
    np.testing.assert_allclose(steps, np.rint(steps), atol=1e-6)


def test_rows_beyond_the_bound_tell_no_more_than_their_direction():
    np.testing.assert_allclose(MECHANISM.clipped(ROWS * 1e3), MECHANISM.clipped(ROWS * 1e6), rtol=1e-9)


@pytest.mark.parametrize(
    "chosen", [np.arange(400)[::-1], np.arange(20, 90), np.array([3])], ids=["another order", "some rows", "one row"]
)
def test_a_row_keeps_its_noise_wherever_it_stands(chosen):
    part = noised(ROWS[chosen], [IDS[row] for row in chosen])
    np.testing.assert_array_equal(part.values, noised().values[chosen])
    assert part.draw == noised().draw


def test_a_row_that_has_changed_draws_noise_of_its_own():
    rows = ROWS.copy()
    rows[7, 0] += 1e-9
    changed = noise_of(rows=rows)
    assert (changed[7] != noise_of()[7]).all()
    assert np.abs(np.delete(changed - noise_of(), 7, axis=0)).max() < 1e-9
    assert (noised(rows).tags.records[7] != noised().tags.records[7]).any()
    np.testing.assert_array_equal(noised(rows).tags.identities, noised().tags.identities)


@pytest.mark.parametrize(
    "change",
    [
        {"mechanism": RowNoise(4.5, 1e-6, 1.5)},
        {"mechanism": RowNoise(4.0, 1e-7, 1.5)},
        {"mechanism": RowNoise(4.0, 1e-6, 1.6)},
        {"columns": ("age", "income", "wealth")},
        {"key": KeyedNoise(bytes(32))},
    ],
    ids=["epsilon", "delta", "bound", "view", "key"],
)
def test_other_settings_are_another_draw_which_shares_no_noise(change):
    assert noised(**change).draw != noised().draw
    assert abs(np.corrcoef(noise_of(**change).ravel(), noise_of().ravel())[0, 1]) < 4 / np.sqrt(ROWS.size)


def test_another_table_with_the_same_rows_draws_other_noise():
    other = noised(dataset="features/other").values
    assert (other != noised().values).mean() > 0.99


def test_the_noise_is_gaussian_of_the_size_that_the_ledger_charges():
    rows = np.random.default_rng(1).standard_normal((4000, 5))
    ids = [str(row) for row in range(4000)]
    found = noise_of(rows=rows, ids=ids, columns=tuple("abcde"))
    assert found.std() == pytest.approx(1.0, abs=0.02)
    assert abs(found.mean()) < 4 / np.sqrt(found.size)
    assert np.abs(np.corrcoef(found.T) - np.eye(5)).max() < 4 / np.sqrt(4000)


def test_zero_has_one_sign():
    rows = np.zeros((2, 3))
    np.testing.assert_array_equal(noised(rows, IDS[:2]).values, noised(-rows, IDS[:2]).values)


def test_a_row_without_a_norm_is_refused():
    with pytest.raises(RowsNotFinite):
        noised(np.array([[1.0, np.inf, 0.0]]), IDS[:1])
