"""Figures of a column against pooled computations, and never over fewer rows than a cell."""

import numpy as np
import pytest

from parley.numerics.column_figures import cut, evidence, quantile, stability

DRAW = np.random.default_rng(0)
SKEWED = np.exp(DRAW.normal(size=1000))


def test_weight_of_evidence_and_information_value_are_the_pooled_ones_exactly():
    classes = (np.log(SKEWED) + DRAW.normal(size=1000) > 0.5).astype(int)
    bins = cut(SKEWED, 8, 20)
    told = evidence(bins.counts(SKEWED), bins.counts(SKEWED, classes))
    wanted, iv = [], 0.0
    for low, high in zip([-np.inf, *bins.edges], [*bins.edges, np.inf], strict=True):
        inside = (low < SKEWED) & (high >= SKEWED)
        zero, one = (np.sum(inside & (classes == c)) / np.sum(classes == c) for c in (0, 1))
        wanted.append(np.log(zero / one))
        iv += (zero - one) * wanted[-1]
    assert len(wanted) == 8
    np.testing.assert_allclose(told.weights, wanted, 1e-14)
    assert told.value == pytest.approx(iv, rel=1e-14)


def test_flipped_labels_are_corrected_for():
    rows, ones = np.array([400.0, 600.0]), np.array([100.0, 300.0])
    flipped = 0.2 * (rows - ones) + 0.8 * ones  # what is expected of labels that are flipped with probability 0.2
    assert evidence(rows, flipped, 0.2).value == pytest.approx(evidence(rows, ones).value)


def test_a_bin_of_one_class_has_a_finite_weight():
    assert np.isfinite(evidence(np.array([30.0, 70.0]), np.array([0.0, 20.0])).weights).all()


@pytest.mark.parametrize("values", [SKEWED, np.round(SKEWED), DRAW.integers(0, 2, 500), np.ones(100), SKEWED[:25]])
@pytest.mark.parametrize("cell", [2, 20, 60])
def test_no_bin_has_fewer_rows_than_a_cell_unless_there_is_one_bin(values, cell):
    counts = cut(np.asarray(values, dtype=float), 10, cell).counts(np.asarray(values, dtype=float))
    assert counts.sum() == len(values)
    assert len(counts) == 1 or counts.min() >= cell
    assert len(counts) <= 10


def test_a_column_of_few_values_has_a_bin_for_each():
    assert cut(np.repeat([1.0, 2.0, 5.0], 40), 10, 20).edges.tolist() == [1.5, 3.5]


def test_a_quantile_is_a_mean_over_a_cell():
    ordered = np.arange(101.0)
    assert quantile(ordered, 0.5, 20) == np.arange(40, 60).mean()
    assert quantile(ordered, 1.0, 20) == np.arange(81, 101).mean()
    assert quantile(np.arange(5.0), 0.5, 20) == 2.0


def test_stability_is_zero_for_the_same_shares_and_finite_where_a_bin_is_empty():
    assert stability(np.array([10.0, 30.0]), np.array([20.0, 60.0])) == 0
    assert stability(np.array([50.0, 50.0]), np.array([30.0, 70.0])) == pytest.approx(
        (0.3 - 0.5) * np.log(0.3 / 0.5) + (0.7 - 0.5) * np.log(0.7 / 0.5)
    )
    assert np.isfinite(stability(np.array([10.0, 30.0]), np.array([0.0, 40.0])))
