"""Figures of predictions equal those of scikit-learn and scipy, on rows with ties."""

import numpy as np
import pytest
from scipy.stats import ks_2samp
from sklearn import metrics as reference

from parley.numerics.metrics import auc, calibration_curve, classification_figures, regression_figures

RNG = np.random.default_rng(3)
P = np.clip(np.round(RNG.random(500), 2), 0.01, 0.99)  # ties
TRUTH = (RNG.random(500) < 0.2 + 0.6 * P).astype(int)


@pytest.mark.parametrize("columns", [1, 2])
def test_figures_of_two_classes_are_those_of_the_reference(columns):
    given = P[:, None] if columns == 1 else np.stack([1 - P, P], axis=1)
    found = classification_figures(given, TRUTH)
    assert found["auc"] == pytest.approx(reference.roc_auc_score(TRUTH, P), abs=1e-12)
    assert found["average precision"] == pytest.approx(reference.average_precision_score(TRUTH, P), abs=1e-12)
    assert found["brier score"] == pytest.approx(reference.brier_score_loss(TRUTH, P), abs=1e-12)
    assert found["ks"] == pytest.approx(ks_2samp(P[TRUTH == 1], P[TRUTH == 0]).statistic, abs=1e-12)


def test_figures_of_several_classes_are_those_of_the_reference():
    logits = RNG.normal(size=(400, 4))
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    truth = np.array([RNG.choice(4, p=row) for row in p])
    found = classification_figures(p, truth)
    assert found["auc"] == pytest.approx(reference.roc_auc_score(truth, p, multi_class="ovr"), abs=1e-12)
    assert found["brier score"] == pytest.approx(np.mean(np.sum((p - np.eye(4)[truth]) ** 2, axis=1)))
    assert "ks" not in found


def test_a_model_that_knows_its_chances_is_calibrated_and_a_certain_one_that_errs_is_not():
    p = RNG.random(200_000)
    truth = RNG.random(200_000) < p
    assert classification_figures(p[:, None], truth)["calibration error"] < 0.01
    assert classification_figures(np.ones((200_000, 1)), truth)["calibration error"] == pytest.approx(0.5, abs=0.01)
    assert sum(rows for _, _, rows in calibration_curve(p, truth)) == 200_000


def test_rows_of_one_class_have_no_ranking_and_no_rows_have_no_figures():
    one = classification_figures(np.array([[0.3], [0.9]]), np.array([1, 1]))
    assert "auc" not in one
    assert "ks" not in one
    assert one["brier score"] == pytest.approx((0.49 + 0.01) / 2)
    assert auc(np.array([0.1, 0.2]), np.array([False, False])) is None
    assert classification_figures(np.empty((0, 2)), np.empty(0)) == {}
    assert regression_figures(np.empty((0, 1)), np.empty(0)) == {}


def test_a_certain_and_wrong_prediction_is_the_worst_there_is():
    found = classification_figures(np.array([[0.0], [1.0]]), np.array([1, 0]))
    assert (found["auc"], found["ks"], found["brier score"]) == (0.0, 1.0, 1.0)


def test_figures_of_numbers_are_those_of_the_reference():
    targets, values = RNG.normal(size=100), RNG.normal(size=(100, 1))
    found = regression_figures(values, targets)
    assert found["mae"] == pytest.approx(reference.mean_absolute_error(targets, values[:, 0]))
    assert found["rmse"] == pytest.approx(reference.root_mean_squared_error(targets, values[:, 0]))
