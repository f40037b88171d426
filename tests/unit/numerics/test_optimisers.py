"""Steps of a party's own block are those of torch's optimisers."""

import numpy as np
import pytest
import torch

from parley.numerics.optimisers import AdamInPlace, ConstantStep, Moments, descend
from parley.party.hgp.steps import outer_step

GRADIENTS = [np.array([0.5, -2.0, 1e-3]), np.array([-0.1, 0.3, 4.0]), np.array([1.0, 1.0, -1.0])]


@pytest.mark.parametrize(
    ("optimiser", "theirs"),
    [
        (ConstantStep("sgd", 0.1, momentum=0.9), lambda x: torch.optim.SGD([x], lr=0.1, momentum=0.9)),
        (ConstantStep("adam", 0.1), lambda x: torch.optim.Adam([x], lr=0.1)),
    ],
    ids=["heavy ball", "adam"],
)
def test_steps_are_those_of_torch(optimiser, theirs):
    x, own = torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64, requires_grad=True)
    reference, moments = theirs(own), Moments.zeros(x)
    for gradient in GRADIENTS:
        x, moments = descend(x, torch.as_tensor(gradient), moments, optimiser, k=1, steps=1)
        own.grad = torch.as_tensor(gradient)
        reference.step()
    np.testing.assert_allclose(x, own.detach(), rtol=1e-12)


def test_steps_in_place_are_those_that_make_new_arrays_and_leave_what_they_began_from():
    x, sizes = np.arange(3.0), np.array([0.1, 0.1, 0.02])
    begun = Moments.zeros(x)
    adam, moments, moved = AdamInPlace(x, begun, sizes), begun, x
    for gradient in GRADIENTS:
        adam.step(gradient, 0.5)
        whole, moments = descend(moved, gradient, moments, ConstantStep("adam", 1.0), k=1, steps=1)
        moved = moved + 0.5 * sizes * (whole - moved)
    np.testing.assert_allclose(adam.x, moved, rtol=1e-12)
    np.testing.assert_allclose(adam.moments.second, moments.second, rtol=1e-12)
    assert adam.moments.count == moments.count == 3
    assert begun.count == 0
    assert not begun.first.any()
    np.testing.assert_array_equal(x, np.arange(3.0))


def test_a_projected_step_of_a_hyper_parameter_stays_in_its_range():
    hyper, moments = np.full(3, 0.05, np.float32), Moments.zeros(np.zeros(3, np.float32))
    for gradient in GRADIENTS:
        hyper, moments = outer_step(hyper, gradient.astype(np.float32), moments, ConstantStep("adam", 0.1), 0.01)
        assert hyper.dtype == np.float32
        assert hyper.min() >= 0.01
    assert moments.count == 3
