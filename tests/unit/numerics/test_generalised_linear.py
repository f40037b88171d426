"""Families agree with their own derivatives, and refuse what has no solution."""

import numpy as np
import pytest

from parley.numerics.generalised_linear import Classes, NoSolution, Numbers, Quadratic, fit, inference

DRAW = np.random.default_rng(0)
FAMILIES = [Classes(), Classes(flip=0.2), Numbers(0.0), Numbers(1.0), Numbers(1.5), Numbers(2.0)]


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_the_score_is_the_slope_of_the_loss(family):
    eta, y, h = DRAW.normal(size=20), DRAW.integers(0, 2, 20) + 0.0, 1e-6
    numeric = (family.losses(eta + h, y) - family.losses(eta - h, y)) / (2 * h)
    np.testing.assert_allclose(family.slope(eta) / family.variance(eta) * (family.mean(eta) - y), numeric, atol=1e-7)
    slopes = (family.mean(eta + h) - family.mean(eta - h)) / (2 * h)
    np.testing.assert_allclose(family.slope(eta), slopes, atol=1e-7)


def test_a_penalty_pulls_where_its_vector_points():
    z = np.column_stack([DRAW.standard_normal((50, 2)), np.ones(50)])
    found = fit(z, np.zeros(50), Numbers(0.0), Quadratic(np.diag([1e9, 1e9, 0]), np.array([2e9, -1e9, 0])))
    np.testing.assert_allclose(found.beta[:2], [2, -1], atol=1e-6)


def test_classes_of_one_side_each_have_no_solution():
    z = np.column_stack([np.linspace(-1, 1, 40), np.ones(40)])
    with pytest.raises(NoSolution, match="apart perfectly"):
        fit(z, (z[:, 0] > 0) + 0.0, Classes())


def test_intervals_are_wider_with_few_degrees_of_freedom():
    normal, student = (inference(np.array([1.0]), np.array([0.5]), freedom) for freedom in (0.0, 5.0))
    assert normal.high[0] == pytest.approx(1 + 1.959964 * 0.5, abs=1e-6)
    assert student.high[0] == pytest.approx(1 + 2.570582 * 0.5, abs=1e-6)
    assert normal.p_values[0] == pytest.approx(0.0455003, abs=1e-6)
