from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_array, csr_matrix

from parley.numerics.gradient_estimators import (
    UnsuitableFeatures,
    as_features,
    check_scaling,
    estimate,
    local_difference,
    reference_at,
    replace_entries,
)
from parley.numerics.linear_losses import Logistic

RNG = np.random.default_rng(7)
ROWS, COLUMNS, REGULARISATION = 60, 5, 0.01
DENSE = RNG.standard_normal((ROWS, COLUMNS)) * (RNG.random((ROWS, COLUMNS)) < 0.5)
LABELS = np.where(RNG.random(ROWS) < 0.5, 1.0, -1.0)
WEIGHTS = RNG.standard_normal(COLUMNS)
OTHERS = RNG.standard_normal(ROWS)  # the other parties' share of θ
LOSS = Logistic()
KINDS = pytest.mark.parametrize("features", [DENSE, csr_array(DENSE)], ids=["dense", "sparse"])


def slopes(weights, rows=slice(None), others=OTHERS):
    return LOSS.derivative(DENSE[rows] @ weights + others[rows], LABELS[rows])


def full_gradient(weights):
    return DENSE.T @ slopes(weights) / ROWS + REGULARISATION * weights


@KINDS
def test_on_all_rows_the_estimate_is_the_gradient_of_the_objective(features):
    def objective(weights):
        value = LOSS.value(DENSE @ weights + OTHERS, LABELS).mean()
        return value + REGULARISATION / 2 * weights @ weights

    numeric = [(objective(WEIGHTS + 1e-6 * axis) - objective(WEIGHTS - 1e-6 * axis)) / 2e-6 for axis in np.eye(COLUMNS)]
    found = estimate(features, slopes(WEIGHTS), WEIGHTS, regularisation=REGULARISATION)
    assert found == pytest.approx(numeric, abs=1e-8)


@KINDS
def test_averaged_over_a_partition_every_reference_gives_the_full_gradient(features):
    """Unbiased whatever the reference holds, even one that no single w would give."""
    reference = reference_at(features, RNG.standard_normal(ROWS))
    batches = np.split(RNG.permutation(ROWS), 6)
    found = [
        estimate(
            features[rows],
            slopes(WEIGHTS, rows),
            WEIGHTS,
            regularisation=REGULARISATION,
            reference=reference,
            rows=rows,
        )
        for rows in batches
    ]
    assert np.mean(found, axis=0) == pytest.approx(full_gradient(WEIGHTS), abs=1e-12)


@KINDS
def test_at_the_snapshot_any_batch_gives_the_full_gradient(features):
    reference = reference_at(features, slopes(WEIGHTS))
    rows = np.array([3, 8, 11])
    found = estimate(
        features[rows],
        slopes(WEIGHTS, rows),
        WEIGHTS,
        regularisation=REGULARISATION,
        reference=reference,
        rows=rows,
    )
    assert found == pytest.approx(full_gradient(WEIGHTS), abs=1e-12)


def test_the_penalty_uses_the_present_weights_and_not_those_of_the_snapshot():
    reference = reference_at(DENSE, slopes(WEIGHTS))
    rows = np.arange(4)
    present = WEIGHTS + 1.0
    with_penalty, without = (
        estimate(DENSE[rows], slopes(present, rows), present, regularisation=value, reference=reference, rows=rows)
        for value in (REGULARISATION, 0.0)
    )
    assert with_penalty - without == pytest.approx(REGULARISATION * present, abs=1e-15)


@KINDS
def test_the_table_of_saga_stays_consistent_over_many_steps(features):
    reference = reference_at(features, slopes(WEIGHTS))
    rng = np.random.default_rng(1)
    for _ in range(50):
        rows = rng.choice(ROWS, 7, replace=False)
        reference = replace_entries(features, reference, rows, rng.standard_normal(7))
    rebuilt = reference_at(features, reference.derivatives)
    assert reference.mean_gradient == pytest.approx(rebuilt.mean_gradient, abs=1e-12)


def test_a_sample_drawn_twice_counts_once_in_the_table():
    reference = reference_at(DENSE, slopes(WEIGHTS))
    twice = replace_entries(DENSE, reference, np.array([4, 4, 9]), np.array([0.5, 0.5, -0.5]))
    once = replace_entries(DENSE, reference, np.array([4, 9]), np.array([0.5, -0.5]))
    assert np.array_equal(twice.derivatives, once.derivatives)
    assert twice.mean_gradient == pytest.approx(once.mean_gradient, abs=1e-15)


def test_a_new_table_leaves_the_old_one_as_it_was():
    reference = reference_at(DENSE, slopes(WEIGHTS))
    kept = replace(reference, derivatives=reference.derivatives.copy())
    replace_entries(DENSE, reference, np.array([1, 2]), np.array([9.0, 9.0]))
    assert np.array_equal(reference.derivatives, kept.derivatives)


@KINDS
def test_the_local_difference_is_the_blocks_own_hessian_times_the_step(features):
    step = RNG.standard_normal(COLUMNS)
    curvature = LOSS.curvature(DENSE @ WEIGHTS + OTHERS, LABELS)
    hessian = DENSE.T @ (DENSE * curvature[:, None]) / ROWS + REGULARISATION * np.eye(COLUMNS)
    found = local_difference(features, curvature, step, regularisation=REGULARISATION)
    assert found == pytest.approx(hessian @ step, abs=1e-12)
    assert float(step @ found) >= REGULARISATION * float(step @ step)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("kind", [np.array, csr_matrix])
def test_features_that_are_not_finite_are_refused(kind, bad):
    with pytest.raises(UnsuitableFeatures, match="impute or drop"):
        as_features(kind([[1.0, bad], [0.0, 2.0]]))


@pytest.mark.parametrize("shape", [(3,), (0, 4), (4, 0)])
def test_features_without_rows_and_columns_are_refused(shape):
    with pytest.raises(UnsuitableFeatures, match="give a matrix"):
        as_features(np.ones(shape))


@KINDS
def test_a_column_a_million_times_too_large_or_small_is_warned_of_by_number(features):
    assert check_scaling(as_features(features)) is None
    scaled = as_features(features * np.array([1.0, 1e6, 1.0, 1.0, 1e-6]))
    warning = check_scaling(scaled)
    assert warning is not None
    assert warning.columns == (1, 4)
    assert "standardise" in warning.text


def test_a_rare_one_hot_column_and_an_empty_one_are_no_cause_for_warning():
    rare = csr_array(([1.0], ([5], [0])), shape=(4_000_000, 1))  # its root mean square is 5e-4
    assert check_scaling(as_features(rare)) is None
    assert check_scaling(as_features(np.zeros((5, 2)))) is None
