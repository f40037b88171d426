"""A weighted loss is the sum over rows that are counted as often as their class weighs."""

import numpy as np
import pytest
from sklearn.utils.class_weight import compute_class_weight

from parley.numerics.losses import Logistic, Softmax, Squared
from parley.numerics.weighted_loss import balanced_weights, weighted

RNG = np.random.default_rng(2)


@pytest.mark.parametrize(("loss", "columns"), [(Logistic(), 1), (Softmax(3), 3)])
def test_whole_weights_are_repeated_rows(loss, columns):
    h, labels = RNG.normal(size=(12, columns)), RNG.integers(0, max(columns, 2), 12)
    weights, target = np.array([1.0, 3.0, 2.0][: max(columns, 2)]), loss.encode(labels, np.float64)
    again = np.repeat(np.arange(12), weights[labels].astype(int))
    found = weighted(loss, weights)
    assert found.value(h, target) * 12 == pytest.approx(loss.value(h[again], target[again]) * len(again))
    gradient = np.zeros_like(h)
    np.add.at(gradient, again, loss.gradient(h[again], target[again]) * len(again))
    np.testing.assert_allclose(found.gradient(h, target) * 12, gradient)


def test_curvature_takes_the_weight_that_the_model_expects_and_no_label():
    h, a = RNG.normal(size=(9, 1)), RNG.normal(size=(9, 1))
    p = Logistic().predict(h)
    found = weighted(Logistic(), np.array([1.0, 5.0])).curvature_product(h, a)
    np.testing.assert_allclose(found, (1 - p + 5 * p) * Logistic().curvature_product(h, a))


def test_balanced_weights_are_those_of_the_reference():
    labels = np.array([0] * 97 + [1] * 3)
    wanted = compute_class_weight("balanced", classes=np.array([0, 1]), y=labels)
    np.testing.assert_allclose(balanced_weights(labels, 2), wanted)


def test_numbers_have_no_classes_to_weigh():
    assert isinstance(weighted(Squared(), np.ones(2)), Squared)
