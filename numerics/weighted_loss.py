"""A loss in which the rows of each class count as much as their class: for classes that are rare."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from parley.numerics.losses import Logistic, Loss, Softmax

Array = NDArray[Any]


def balanced_weights(classes: Array, count: int) -> Array:
    """rows / (classes × rows of the class), as scikit-learn has it; 1 for a class without rows."""
    rows = np.bincount(np.asarray(classes, dtype=np.int64), minlength=count)
    return np.where(rows > 0, len(classes) / (count * np.maximum(rows, 1)), 1.0)


@dataclass(frozen=True, eq=False)
class ClassWeighted:
    """Σ_i w(y_i) L(h_i, y_i) / B for exact labels.

    The Hessian depends on labels through their weights, so `curvature_product` takes the weight that the model itself
    expects of a row, Σ_k p_k w_k: it has no label in it, and is positive where the loss's own is.
    """

    loss: Softmax | Logistic
    weights: Array
    """Of each class."""

    accuracy_name: ClassVar[str] = "accuracy"

    def encode(self, labels: Array, dtype: Any = np.float32) -> Array:
        """As the loss itself."""
        return self.loss.encode(labels, dtype)

    def sample_losses(self, h: Array, target: Array) -> Array:
        """w(y) L(h, y)."""
        return np.asarray(self._of(target).astype(h.dtype) * self.loss.sample_losses(h, target))

    def value(self, h: Array, target: Array) -> float:
        """Mean of `sample_losses`."""
        return float(self.sample_losses(h, target).mean())

    def gradient(self, h: Array, target: Array) -> Array:
        """w(y) ∂L/∂h / B."""
        return np.asarray(self._of(target).astype(h.dtype)[:, None] * self.loss.gradient(h, target))

    def curvature_product(self, h: Array, a: Array) -> Array:
        """Σ_k p_k w_k · L''(h) a / B."""
        expected = self._of(self.loss.predict(h))[..., None].astype(h.dtype)
        return np.asarray(expected * self.loss.curvature_product(h, a))

    def predict(self, h: Array) -> Array:
        """As the loss itself: probabilities of a world in which classes are as frequent as they are weighted."""
        return self.loss.predict(h)

    def accuracy(self, h: Array, target: Array) -> float:
        """Of rows that count alike."""
        return self.loss.accuracy(h, target)

    def _of(self, target: Array) -> Array:
        """The weight of each row of shares of classes."""
        if isinstance(self.loss, Logistic):
            share = target[..., 0]
            return np.asarray((1 - share) * self.weights[0] + share * self.weights[1])
        return np.asarray(target @ self.weights)


def weighted(loss: Loss, weights: Array | None) -> Loss:
    """The loss with its classes weighted, if they are."""
    if weights is None or not isinstance(loss, Softmax | Logistic):
        return loss
    return ClassWeighted(loss, np.asarray(weights, dtype=np.float64))
