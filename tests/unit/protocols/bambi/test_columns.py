"""The class that does not cross comes back."""

import numpy as np
import pytest

from parley.numerics.losses import Softmax
from parley.privacy.label_mechanisms import RandomisedLabels, UnaryLabels
from parley.protocols.bambi.columns import completed, crossing_columns, reduced, shortened, widened

DRAW = np.random.default_rng(2)
H, A, TARGET = DRAW.normal(size=(7, 4)), DRAW.normal(size=(7, 4)), np.eye(4)[DRAW.integers(4, size=7)]


@pytest.mark.parametrize(
    "loss",
    [
        Softmax(4),
        RandomisedLabels(1.0, 4).training_loss(Softmax(4)),
        UnaryLabels(1.0, 4).training_loss(Softmax(4)),
    ],
    ids=["exact", "randomised", "unary"],
)
def test_gradients_and_products_lose_nothing_without_their_last_class(loss):
    there = widened(reduced(H, 3), 4)
    assert np.allclose(completed(shortened(loss.gradient(there, TARGET), 3), 4), loss.gradient(H, TARGET))
    product = loss.curvature_product(there, widened(reduced(A, 3), 4))
    assert np.allclose(completed(shortened(product, 3), 4), loss.curvature_product(H, A))


def test_a_noisy_row_of_any_sum_loses_nothing_either():
    noisy = TARGET + DRAW.normal(size=TARGET.shape)
    gradient = Softmax(4).gradient(H, noisy)
    assert np.allclose(completed(shortened(gradient, 3), 4), gradient)


def test_trajectories_keep_their_axis_and_one_logit_its_column():
    assert reduced(H[None], 3).shape == (1, 7, 3)
    assert reduced(H[:, :1], 1).shape == shortened(H[:, :1], 1).shape == (7, 1)
    assert completed(H[:, :1], 1).shape == widened(H[:, :1], 1).shape == (7, 1)
    assert [crossing_columns(outputs) for outputs in (1, 2, 10)] == [1, 1, 9]
