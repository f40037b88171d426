"""One party's inner and outer cost as torch functions of flat vectors, and their products by autograd.

Terashita and Hara, "Decentralized Hyper-Gradient Computation over Time-Varying Directed Networks" (HGP).

| paper              | code               | shape | held by | leaves? |
|--------------------|--------------------|-------|---------|---------|
| g_i(x, λ_i; ξ_i)   | `BilevelCost.inner`| 1     | party i | no      |
| f_i(x, λ_i)        | `BilevelCost.outer`| 1     | party i | no      |
| ∂_x g, ∂²_x g·u    | `inner_gradient`, `hessian_product` | d_x | party i | inside a Push-Sum vector |
| ∂²_{xλ} g·u        | `jacobian_product` | d_λ   | party i | no      |

No Hessian or Jacobian is ever formed: a product costs about two gradients. `rows` are indices of training rows
(None for all of them); the inner cost is a mean over rows, so that a batch is unbiased.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

Vector = NDArray[np.floating]
Rows = NDArray[np.int64] | None
Predictor = Callable[[Tensor, Tensor], Tensor]
"""(flat parameters, inputs) → logits."""
Personal = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(flat parameters, λ_i, inputs) → logits."""


@dataclass(frozen=True)
class BilevelCost:
    """What HGP needs of a party's problem; the functions close over the party's own rows."""

    inner: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    """g_i(x, λ_i; rows)."""
    outer: Callable[[Tensor, Tensor], Tensor]
    """f_i(x, λ_i)."""
    rows: int
    """Training rows that a batch is drawn from."""
    model_size: int
    """d_x."""
    hyper_size: int
    """d_λ."""


def inner_gradient(cost: BilevelCost, x: Vector, hyper: Vector, rows: Rows = None) -> Vector:
    """Return ∂_x g_i."""
    point = torch.tensor(x, requires_grad=True)
    value = cost.inner(point, torch.as_tensor(hyper), _rows(rows))
    (gradient,) = torch.autograd.grad(value, point)
    return _array(gradient)


def outer_gradients(cost: BilevelCost, x: Vector, hyper: Vector) -> tuple[Vector, Vector]:
    """Return (∂_x f_i, ∂_λ f_i)."""
    point, lam = torch.tensor(x, requires_grad=True), torch.tensor(hyper, requires_grad=True)
    value = cost.outer(point, lam)
    by_point, by_hyper = torch.autograd.grad(value, (point, lam), allow_unused=True, materialize_grads=True)
    return _array(by_point), _array(by_hyper)


def curvature_products(
    cost: BilevelCost, x: Vector, hyper: Vector, u: Vector, rows: Rows = None
) -> tuple[Vector, Vector]:
    """Return (∂²_x g_i·u, ∂²_{xλ} g_i·u) from the same rows, in one pass."""
    point, lam = torch.tensor(x, requires_grad=True), torch.tensor(hyper, requires_grad=True)
    (gradient,) = torch.autograd.grad(cost.inner(point, lam, _rows(rows)), point, create_graph=True)
    hessian, jacobian = torch.autograd.grad(
        gradient, (point, lam), torch.as_tensor(u), allow_unused=True, materialize_grads=True
    )
    return _array(hessian), _array(jacobian)


def hessian_product(cost: BilevelCost, x: Vector, hyper: Vector, u: Vector, rows: Rows = None) -> Vector:
    """Return ∂²_x g_i·u."""
    return curvature_products(cost, x, hyper, u, rows)[0]


def jacobian_product(cost: BilevelCost, x: Vector, hyper: Vector, u: Vector, rows: Rows = None) -> Vector:
    """Return ∂²_{xλ} g_i·u."""
    return curvature_products(cost, x, hyper, u, rows)[1]


def regularised_logistic(
    features: NDArray[np.floating],
    labels: NDArray[np.integer],
    validation_features: NDArray[np.floating],
    validation_labels: NDArray[np.integer],
) -> BilevelCost:
    """Return Eq. (11): logistic regression with one regularisation coefficient per coordinate.

    g = mean cross-entropy + ½ xᵀ diag(λ) x on the training rows, f = mean cross-entropy on the validation rows;
    labels are 0 or 1.
    """
    a, b = torch.as_tensor(features), torch.as_tensor(labels).to(torch.as_tensor(features).dtype)
    va, vb = torch.as_tensor(validation_features), torch.as_tensor(validation_labels).to(a.dtype)

    def inner(x: Tensor, hyper: Tensor, rows: Tensor | None) -> Tensor:
        inputs, target = (a, b) if rows is None else (a[rows], b[rows])
        return functional.binary_cross_entropy_with_logits(inputs @ x, target) + 0.5 * (hyper * x * x).sum()

    def outer(x: Tensor, _: Tensor) -> Tensor:
        return functional.binary_cross_entropy_with_logits(va @ x, vb)

    width = int(a.shape[1])
    return BilevelCost(inner, outer, rows=len(a), model_size=width, hyper_size=width)


def weighted_samples(
    features: NDArray[np.floating],
    labels: NDArray[np.integer],
    validation_features: NDArray[np.floating],
    validation_labels: NDArray[np.integer],
    *,
    weight_decay: float,
) -> BilevelCost:
    """Return Eq. (12): each training row's logistic loss times its own λ_k, for the influence of rows.

    g = (1/N) Σ_k λ_k ℓ_k + (weight_decay/2)‖x‖². λ = 1 is ordinary training and λ_k = 0 leaves row k out, so
    −dλ_k f predicts how f changes when the row is removed. Weight decay makes g strongly convex (Assumption 2).
    """
    a, b = torch.as_tensor(features), torch.as_tensor(labels).to(torch.as_tensor(features).dtype)
    va, vb = torch.as_tensor(validation_features), torch.as_tensor(validation_labels).to(a.dtype)

    def inner(x: Tensor, hyper: Tensor, rows: Tensor | None) -> Tensor:
        inputs, target, weight = (a, b, hyper) if rows is None else (a[rows], b[rows], hyper[rows])
        losses = functional.binary_cross_entropy_with_logits(inputs @ x, target, reduction="none")
        return (weight * losses).mean() + 0.5 * weight_decay * (x * x).sum()

    def outer(x: Tensor, _: Tensor) -> Tensor:
        return functional.binary_cross_entropy_with_logits(va @ x, vb)

    return BilevelCost(inner, outer, rows=len(a), model_size=int(a.shape[1]), hyper_size=len(a))


def class_mask(
    predictor: Predictor,
    model_size: int,
    features: NDArray[np.floating],
    labels: NDArray[np.integer],
    *,
    classes: int,
    weight_decay: float,
    hyper_decay: float,
) -> BilevelCost:
    """Return HGP-PL: λ_i ∈ R^C gives a mask over classes that multiplies the shared model's logits.

    g and f are the cross-entropy on the training rows, with L2 on x and on λ respectively (section 5.3).
    """
    logits = masked_logits(predictor, classes)
    return _personalised(logits, model_size, classes, features, labels, weight_decay, hyper_decay)


def mixture(
    predictor: Predictor,
    model_size: int,
    features: NDArray[np.floating],
    labels: NDArray[np.integer],
    *,
    components: int,
    weight_decay: float,
    hyper_decay: float,
) -> BilevelCost:
    """Return HGP-MTL: λ_i ∈ R^K weighs K shared base models whose parameters lie one after the other in x."""
    log_probabilities = mixed_logits(predictor, model_size, components)
    return _personalised(
        log_probabilities, components * model_size, components, features, labels, weight_decay, hyper_decay
    )


def masked_logits(predictor: Predictor, classes: int) -> Personal:
    """Return HGP-PL's model: the shared logits times a party's mask over classes."""

    def logits(x: Tensor, hyper: Tensor, inputs: Tensor) -> Tensor:
        # differs from the paper: times C, so that λ = 0 is the unmasked model and the step sizes of plain
        # training carry over; the paper's mask starts at 1/C.
        return predictor(x, inputs) * (classes * torch.softmax(hyper, dim=0))

    return logits


def mixed_logits(predictor: Predictor, model_size: int, components: int) -> Personal:
    """Return HGP-MTL's model: log-probabilities of a party's mixture of the shared models."""

    def log_probabilities(x: Tensor, hyper: Tensor, inputs: Tensor) -> Tensor:
        parts = x.reshape(components, model_size)
        each = torch.stack([functional.log_softmax(predictor(part, inputs), dim=1) for part in parts])
        return torch.logsumexp(each + functional.log_softmax(hyper, dim=0)[:, None, None], dim=0)

    return log_probabilities


def dense_network(widths: Sequence[int]) -> Predictor:
    """Return a network of dense layers with ReLU between them; weights, then biases, layer by layer."""

    def logits(x: Tensor, inputs: Tensor) -> Tensor:
        at = 0
        for layer, (before, after) in enumerate(pairwise(widths)):
            if layer:
                inputs = torch.relu(inputs)
            weights, bias = x[at : at + before * after], x[at + before * after : at + before * after + after]
            inputs = inputs @ weights.reshape(before, after) + bias
            at += before * after + after
        return inputs

    return logits


def _personalised(
    logits: Personal,
    model_size: int,
    hyper_size: int,
    features: NDArray[np.floating],
    labels: NDArray[np.integer],
    weight_decay: float,
    hyper_decay: float,
) -> BilevelCost:
    a, b = torch.as_tensor(features), torch.as_tensor(labels).long()

    def inner(x: Tensor, hyper: Tensor, rows: Tensor | None) -> Tensor:
        inputs, target = (a, b) if rows is None else (a[rows], b[rows])
        return functional.cross_entropy(logits(x, hyper, inputs), target) + 0.5 * weight_decay * (x * x).sum()

    def outer(x: Tensor, hyper: Tensor) -> Tensor:
        return functional.cross_entropy(logits(x, hyper, a), b) + 0.5 * hyper_decay * (hyper * hyper).sum()

    return BilevelCost(inner, outer, rows=len(a), model_size=model_size, hyper_size=hyper_size)


def _rows(rows: Rows) -> Tensor | None:
    return None if rows is None else torch.as_tensor(rows)


def _array(tensor: Tensor) -> Vector:
    return np.asarray(tensor.detach().numpy())
