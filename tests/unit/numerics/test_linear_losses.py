import numpy as np
import pytest

from parley.numerics.linear_losses import LOSSES, Logistic, UnknownLoss, loss_named, predict_sign

THETA = np.array([-3.0, -0.4, 0.2, 0.9, 4.0, -2.0, 0.5, 3.0])
SIGNS = np.array([1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 1.0, -1.0])
STEP = 1e-6


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_the_slopes_are_the_finite_differences_of_the_value(loss):
    up, down = loss.value(THETA + STEP, SIGNS), loss.value(THETA - STEP, SIGNS)
    assert loss.derivative(THETA, SIGNS) == pytest.approx((up - down) / (2 * STEP), abs=1e-8)
    up, down = loss.derivative(THETA + STEP, SIGNS), loss.derivative(THETA - STEP, SIGNS)
    assert loss.curvature(THETA, SIGNS) == pytest.approx((up - down) / (2 * STEP), abs=1e-8)


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_a_party_recovers_the_curvature_from_the_derivative_alone(loss):
    recovered = loss.curvature_from_derivative(loss.derivative(THETA, SIGNS))
    assert recovered == pytest.approx(loss.curvature(THETA, SIGNS), abs=1e-15)


def test_noise_on_the_derivative_never_makes_the_curvature_negative():
    assert (Logistic().curvature_from_derivative(np.array([-1.7, 1.2, 0.5])) >= 0.0).all()


def test_the_logistic_loss_survives_huge_margins():
    theta = np.array([-1e4, 1e4])
    assert Logistic().value(theta, np.array([1.0, 1.0])) == pytest.approx([1e4, 0.0])
    assert np.isfinite(Logistic().derivative(theta, np.array([1.0, -1.0]))).all()


def test_an_unknown_loss_is_refused_with_the_known_names():
    with pytest.raises(UnknownLoss, match="logistic, ridge, squared_hinge"):
        loss_named("hinge")


def test_a_tie_predicts_minus_one():
    assert predict_sign(np.array([0.0, 1e-300, -2.0])).tolist() == [-1.0, 1.0, -1.0]
