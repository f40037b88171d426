from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from parley.numerics.losses import (
    ClassOutOfRange,
    ForwardCorrectedBits,
    ForwardCorrectedLogistic,
    ForwardCorrectedSoftmax,
    Logistic,
    LossShapeMismatch,
    Softmax,
    Squared,
    TransitionNotStochastic,
    clean_loss,
    noise_floor,
    noise_share,
    one_hot,
)

BATCH, CLASSES = 7, 4
RNG = np.random.default_rng(3)


def rr_transition(classes: int = CLASSES, keep: float = 0.6) -> np.ndarray:
    table = np.full((classes, classes), (1 - keep) / (classes - 1))
    np.fill_diagonal(table, keep)
    return table


def uneven_transition() -> np.ndarray:
    """Not symmetric, so that a transposed table is noticed."""
    table = RNG.random((CLASSES, CLASSES)) + 0.1
    return table / table.sum(axis=0)


UNEVEN = uneven_transition()


def torch_mean_loss(name: str, h: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    if name == "softmax":
        return -(target * functional.log_softmax(h, dim=-1)).sum(-1).mean()
    if name == "logistic":
        return functional.binary_cross_entropy_with_logits(h, target)
    if name == "squared":
        return 0.5 * ((h - target) ** 2).sum(-1).mean()
    if name == "corrected logistic":
        mixed = 0.2 + 0.6 * torch.sigmoid(h)
        return functional.binary_cross_entropy(mixed, target)
    if name == "corrected bits":
        return functional.binary_cross_entropy(0.2 + 0.3 * functional.softmax(h, dim=-1), target) * CLASSES
    noisy = functional.softmax(h, dim=-1) @ torch.tensor(UNEVEN).T
    return -(target * torch.log(noisy)).sum(-1).mean()


CASES: dict[str, tuple[Any, int]] = {
    "softmax": (Softmax(CLASSES), CLASSES),
    "logistic": (Logistic(), 1),
    "squared": (Squared(), 3),
    "corrected softmax": (ForwardCorrectedSoftmax(UNEVEN), CLASSES),
    "corrected logistic": (ForwardCorrectedLogistic(0.2), 1),
    "corrected bits": (ForwardCorrectedBits(CLASSES, own=0.5, other=0.2), CLASSES),
}
HESSIAN_IS_LABEL_FREE = ["softmax", "logistic", "squared"]


def draw(name: str) -> tuple[np.ndarray, np.ndarray]:
    columns = CASES[name][1]
    h = RNG.normal(size=(BATCH, columns)) * 2
    if name == "corrected bits":
        target = RNG.integers(0, 2, size=(BATCH, columns)).astype(float)
    elif name in ("softmax", "corrected softmax"):
        target = RNG.dirichlet(np.ones(columns), size=BATCH)
    elif name == "squared":
        target = RNG.normal(size=(BATCH, columns))
    else:
        target = RNG.random((BATCH, 1))
    return h, target


@pytest.mark.parametrize("name", CASES)
def test_value_and_gradient_are_those_of_autograd(name):
    loss = CASES[name][0]
    h, target = draw(name)
    leaf = torch.tensor(h, requires_grad=True)
    reference = torch_mean_loss(name, leaf, torch.tensor(target))
    reference.backward()
    assert loss.value(h, target) == pytest.approx(reference.item(), rel=1e-12)
    np.testing.assert_allclose(loss.gradient(h, target), leaf.grad.numpy(), atol=1e-14)


@pytest.mark.parametrize("name", HESSIAN_IS_LABEL_FREE)
def test_the_curvature_product_is_the_hessian_product_of_autograd(name):
    loss = CASES[name][0]
    h, target = draw(name)
    a = RNG.normal(size=h.shape)
    product = torch.autograd.functional.hvp(
        lambda z: torch_mean_loss(name, z, torch.tensor(target)), torch.tensor(h), torch.tensor(a)
    )[1]
    np.testing.assert_allclose(loss.curvature_product(h, a), product.numpy(), atol=1e-14)


def test_the_corrected_softmax_product_is_the_expected_outer_product_of_gradients():
    loss = ForwardCorrectedSoftmax(UNEVEN)
    h, _ = draw("corrected softmax")
    a = RNG.normal(size=h.shape)
    noisy = loss.predict(h) @ UNEVEN.T
    expected = np.zeros_like(h)
    for label in range(CLASSES):
        row = BATCH * loss.gradient(h, np.tile(np.eye(CLASSES)[label], (BATCH, 1)))
        expected += noisy[:, [label]] * row * (row * a).sum(axis=-1, keepdims=True) / BATCH
    np.testing.assert_allclose(loss.curvature_product(h, a), expected, atol=1e-14)


def test_the_corrected_logistic_product_is_the_expected_squared_gradient():
    loss = ForwardCorrectedLogistic(0.2)
    h, _ = draw("corrected logistic")
    a = RNG.normal(size=h.shape)
    one = 0.2 + 0.6 * loss.predict(h)
    squares = [(BATCH * loss.gradient(h, np.full_like(h, label))) ** 2 for label in (0, 1)]
    expected = ((1 - one) * squares[0] + one * squares[1]) * a / BATCH
    np.testing.assert_allclose(loss.curvature_product(h, a), expected, atol=1e-14)


@pytest.mark.parametrize("name", CASES)
def test_curvature_products_are_symmetric_and_never_negative(name):
    loss, columns = CASES[name]
    h = RNG.normal(size=(BATCH, columns)) * 5
    a, b = RNG.normal(size=(2, BATCH, columns))
    assert np.vdot(b, loss.curvature_product(h, a)) == pytest.approx(np.vdot(a, loss.curvature_product(h, b)))
    assert ((a * loss.curvature_product(h, a)).sum(axis=-1) >= -1e-15).all()


@pytest.mark.parametrize("name", CASES)
def test_a_trajectory_axis_gives_the_same_as_one_call_for_each_trajectory(name):
    loss, columns = CASES[name]
    _, target = draw(name)
    h = RNG.normal(size=(3, BATCH, columns))
    a = RNG.normal(size=(3, BATCH, columns))
    np.testing.assert_array_equal(loss.gradient(h, target), [loss.gradient(each, target) for each in h])
    np.testing.assert_array_equal(
        loss.curvature_product(h, a), [loss.curvature_product(each, v) for each, v in zip(h, a, strict=True)]
    )
    assert loss.sample_losses(h, target).shape == (3, BATCH)
    assert loss.value(h, target) == pytest.approx(np.mean([loss.value(each, target) for each in h]))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_dtype_of_the_embedding_is_kept(name, dtype):
    loss = CASES[name][0]
    h, target = draw(name)
    h = h.astype(dtype)
    assert loss.gradient(h, target).dtype == dtype
    assert loss.curvature_product(h, h).dtype == dtype
    assert loss.predict(h).dtype == dtype


@pytest.mark.parametrize("name", ["softmax", "logistic", "corrected softmax", "corrected logistic", "corrected bits"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_extreme_logits_stay_finite(name, dtype):
    loss, columns = CASES[name]
    h = np.full((2, columns), -3e4, dtype=dtype)
    h[0, 0] = 3e4
    target = loss.encode(np.array([1 if columns > 1 else 0, 0]), dtype)
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        assert np.isfinite(loss.value(h, target))
        assert np.isfinite(loss.gradient(h, target)).all()
        assert np.isfinite(loss.curvature_product(h, np.ones_like(h))).all()


def test_the_softmax_gradient_of_a_noisy_target_is_the_noisy_combination_of_class_gradients():
    h, _ = draw("softmax")
    noisy = RNG.integers(-64, 64, size=(BATCH, CLASSES)) / 16
    by_class = [Softmax(CLASSES).gradient(h, np.tile(row, (BATCH, 1))) for row in np.eye(CLASSES)]
    expected = sum(noisy[:, [k]] * by_class[k] for k in range(CLASSES))
    np.testing.assert_allclose(Softmax(CLASSES).gradient(h, noisy), expected, atol=1e-14)


def test_the_logistic_gradient_is_that_of_the_two_class_softmax():
    logit = RNG.normal(size=(BATCH, 1))
    target = RNG.normal(size=(BATCH, 1))
    pair = Softmax(2).gradient(np.hstack([np.zeros_like(logit), logit]), np.hstack([1 - target, target]))
    np.testing.assert_allclose(Logistic().gradient(logit, target), pair[:, [1]], atol=1e-15)


def test_the_corrected_logistic_is_the_two_class_corrected_softmax():
    logit = RNG.normal(size=(BATCH, 1))
    labels = RNG.integers(0, 2, BATCH)
    wide = ForwardCorrectedSoftmax(rr_transition(2, 0.8))
    narrow = ForwardCorrectedLogistic(0.2)
    both = np.hstack([np.zeros_like(logit), logit])
    assert narrow.value(logit, narrow.encode(labels)) == pytest.approx(wide.value(both, wide.encode(labels)))
    np.testing.assert_allclose(
        narrow.gradient(logit, narrow.encode(labels)),
        wide.gradient(both, wide.encode(labels))[:, [1]],
        atol=1e-15,
    )


def test_curvature_scales_are_the_mean_eigenvalue_at_the_uniform_prediction():
    cases = [(clean_loss("softmax", 5), 5), (clean_loss("logistic", 1), 1)]
    for loss, columns in cases:
        h = np.zeros((columns, columns))
        dense = columns * loss.curvature_product(h, np.eye(columns))
        assert loss.curvature_scale == pytest.approx(np.trace(dense) / columns)
    assert Softmax(5).curvature_scale == pytest.approx(4 / 25)
    assert clean_loss("squared", 1).curvature_scale == 1


def test_the_forward_corrected_loss_is_minimised_by_the_clean_distribution():
    clean = np.array([0.7, 0.1, 0.15, 0.05])
    noisy = UNEVEN @ clean
    gradient = ForwardCorrectedSoftmax(UNEVEN).gradient(np.log(clean)[None], noisy[None])
    np.testing.assert_allclose(gradient, 0, atol=1e-15)


def test_the_bits_loss_is_minimised_by_the_clean_distribution_and_its_product_is_the_mean_hessian_there():
    loss = ForwardCorrectedBits(CLASSES, own=0.5, other=0.2)
    clean = np.array([0.7, 0.1, 0.15, 0.05])
    mixed = 0.2 + 0.3 * clean
    np.testing.assert_allclose(loss.gradient(np.log(clean)[None], mixed[None]), 0, atol=1e-15)
    a = RNG.normal(size=(1, CLASSES))
    product = torch.autograd.functional.hvp(
        lambda z: torch_mean_loss("corrected bits", z, torch.tensor(mixed[None])),
        torch.tensor(np.log(clean)[None]),
        torch.tensor(a),
    )[1]
    np.testing.assert_allclose(loss.curvature_product(np.log(clean)[None], a), product.numpy(), atol=1e-14)


def test_accuracy_counts_right_rows_and_a_logit_of_zero_is_class_zero():
    assert Softmax(3).accuracy(np.eye(3)[[0, 1, 2, 2]], one_hot(np.array([0, 1, 2, 0]), 3)) == 0.75
    logits = np.array([[0.0], [2.0], [-1.0]])
    assert Logistic().accuracy(logits, np.array([[0.0], [1.0], [1.0]])) == pytest.approx(2 / 3)


def test_the_accuracy_of_a_regression_is_its_r_squared():
    target = np.array([[1.0], [2.0], [3.0]])
    assert Squared().accuracy(target, target) == 1
    assert Squared().accuracy(np.full((3, 1), 2.0), target) == 0


def test_labels_outside_the_classes_are_refused():
    with pytest.raises(ClassOutOfRange, match="0 … 2"):
        one_hot(np.array([0, 3]), 3)
    with pytest.raises(ClassOutOfRange, match="map −1 to 0"):
        Logistic().encode(np.array([-1, 1]))
    with pytest.raises(ClassOutOfRange, match="whole"):
        Softmax(3).encode(np.array([0.5]))


def test_rows_that_do_not_fit_are_refused_instead_of_broadcast():
    with pytest.raises(LossShapeMismatch):
        Softmax(3).gradient(np.zeros((4, 3)), np.zeros((1, 3)))
    with pytest.raises(LossShapeMismatch):
        Logistic().gradient(np.zeros((4, 1)), np.zeros(4))
    with pytest.raises(LossShapeMismatch):
        Softmax(3).gradient(np.zeros((4, 2)), np.zeros((4, 2)))


def test_a_transition_with_a_zero_or_a_wrong_sum_is_refused():
    with pytest.raises(TransitionNotStochastic):
        ForwardCorrectedSoftmax(np.eye(3))
    with pytest.raises(TransitionNotStochastic):
        ForwardCorrectedSoftmax(np.full((3, 3), 0.5))
    with pytest.raises(TransitionNotStochastic):
        ForwardCorrectedLogistic(0.5)


def test_the_share_of_noise_grows_from_exact_labels_to_coins():
    assert noise_share(Softmax(10)) == noise_share(Logistic()) == noise_share(Squared()) == 0
    shares = [noise_share(ForwardCorrectedLogistic(flip)) for flip in (0.001, 0.1, 0.3, 0.499)]
    assert shares == sorted(shares)
    assert shares[0] < 0.02
    assert shares[-1] > 0.99


@pytest.mark.parametrize("flip", [0.05, 0.3])
def test_the_share_of_noise_is_the_same_by_one_logit_and_by_two(flip):
    two = ForwardCorrectedSoftmax(np.array([[1 - flip, flip], [flip, 1 - flip]]))
    assert noise_share(two) == pytest.approx(noise_share(ForwardCorrectedLogistic(flip)))


def test_the_share_of_noise_of_bits_is_that_of_draws():
    loss = ForwardCorrectedBits(4, 0.5, 0.2)
    generator, rows = np.random.default_rng(0), 40_000
    own = np.arange(4) == generator.integers(4, size=rows)[:, None]
    bits = np.where(own, generator.random((rows, 4)) < 0.5, generator.random((rows, 4)) < 0.2).astype(float)
    assert noise_share(loss) == pytest.approx(noise_floor(loss) / loss.value(np.zeros((rows, 4)), bits), rel=5e-3)
