"""Losses of a generalised linear model, as functions of the margin θ_i = Σ_ℓ w_ℓᵀ(x_i)_ℓ.

Problem (P) and Eq. 17 of AsySQN (Zhang et al., KDD 2021).

| paper     | code                  | shape | held by                    | leaves?                       |
|-----------|-----------------------|-------|----------------------------|-------------------------------|
| θ_I       | `theta`               | (b,)  | the requester, as a sum    | only as a secure sum          |
| y_I       | `labels`              | (b,)  | the label holder           | no                            |
| ∂L/∂θ     | `derivative`          | (b,)  | label holder → requester   | yes, it determines the label  |
| ∂²L/∂θ²   | `curvature`           | (b,)  | computed where it is used  | no                            |

differs from the paper: the factor in Eq. 3 is the first derivative ∂L/∂θ; the printed second derivative is
what the curvature pair needs, not the gradient.

Every loss here lets a party recover L'' from L' alone, so a party without labels needs no second message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

Vector = NDArray[np.float64]


class UnknownLoss(ValueError):
    """The name is not one of the losses of this module."""


@dataclass(frozen=True)
class Slopes:
    """What a party needs to know of the loss on one batch."""

    derivative: Vector
    """L'(θ_i), one scalar per row."""
    curvature: Vector
    """L''(θ_i) ≥ 0, one scalar per row."""


class LinearLoss(Protocol):
    """A convex loss of one margin and one label; all methods work element by element."""

    def value(self, theta: Vector, labels: Vector) -> Vector:
        """Return L(θ, y)."""
        ...

    def derivative(self, theta: Vector, labels: Vector) -> Vector:
        """Return ∂L/∂θ."""
        ...

    def curvature(self, theta: Vector, labels: Vector) -> Vector:
        """Return ∂²L/∂θ²."""
        ...

    def curvature_from_derivative(self, derivative: Vector) -> Vector:
        """Return ∂²L/∂θ² from ∂L/∂θ alone, for a party that sees neither θ nor labels."""
        ...


@dataclass(frozen=True)
class Logistic:
    """L = log(1 + e^(−yθ)), y = ±1 (Eq. 17)."""

    def value(self, theta: Vector, labels: Vector) -> Vector:
        """Return log(1 + e^(−yθ)), without overflow for any finite θ."""
        return np.logaddexp(0.0, -labels * theta)

    def derivative(self, theta: Vector, labels: Vector) -> Vector:
        """Return −y σ(−yθ)."""
        return np.asarray(-labels * expit(-labels * theta))

    def curvature(self, theta: Vector, labels: Vector) -> Vector:
        """Return σ(θ)σ(−θ): the label's sign cancels."""
        margin = labels * theta
        return np.asarray(expit(margin) * expit(-margin))

    def curvature_from_derivative(self, derivative: Vector) -> Vector:
        """Return |L'|(1 − |L'|), clipped at 0 in case noise carried |L'| past 1."""
        size = np.abs(derivative)
        return np.maximum(size * (1.0 - size), 0.0)


@dataclass(frozen=True)
class Squared:
    """L = ½(θ − y)², y real: with the l2 term of (P), ridge regression."""

    def value(self, theta: Vector, labels: Vector) -> Vector:
        """Return ½(θ − y)²."""
        return np.asarray(0.5 * (theta - labels) ** 2)

    def derivative(self, theta: Vector, labels: Vector) -> Vector:
        """Return θ − y."""
        return theta - labels

    def curvature(self, theta: Vector, labels: Vector) -> Vector:  # noqa: ARG002
        """Return 1."""
        return np.ones_like(theta)

    def curvature_from_derivative(self, derivative: Vector) -> Vector:
        """Return 1."""
        return np.ones_like(derivative)


@dataclass(frozen=True)
class SquaredHinge:
    """L = ½ max(0, 1 − yθ)², y = ±1: the smooth support vector machine."""

    def value(self, theta: Vector, labels: Vector) -> Vector:
        """Return ½ max(0, 1 − yθ)²."""
        return np.asarray(0.5 * np.maximum(0.0, 1.0 - labels * theta) ** 2)

    def derivative(self, theta: Vector, labels: Vector) -> Vector:
        """Return −y max(0, 1 − yθ)."""
        return np.asarray(-labels * np.maximum(0.0, 1.0 - labels * theta))

    def curvature(self, theta: Vector, labels: Vector) -> Vector:
        """Return 1 inside the margin and 0 outside it (the generalised second derivative)."""
        return np.asarray(labels * theta < 1.0, dtype=np.float64)

    def curvature_from_derivative(self, derivative: Vector) -> Vector:
        """Return 1 where L' ≠ 0: the derivative vanishes exactly outside the margin."""
        return np.asarray(derivative != 0.0, dtype=np.float64)


LOSSES: Mapping[str, LinearLoss] = MappingProxyType(
    {"logistic": Logistic(), "ridge": Squared(), "squared_hinge": SquaredHinge()}
)


def loss_named(name: str) -> LinearLoss:
    """Return the loss that a run spec names, or raise `UnknownLoss`."""
    try:
        return LOSSES[name]
    except KeyError:
        raise UnknownLoss(f"there is no loss {name!r}; choose one of {', '.join(LOSSES)}") from None


def slopes_at(loss: LinearLoss, theta: Vector, labels: Vector) -> Slopes:
    """Return both slopes at θ, where the labels are at hand."""
    return Slopes(loss.derivative(theta, labels), loss.curvature(theta, labels))


def slopes_from_derivative(loss: LinearLoss, derivative: Vector) -> Slopes:
    """Return both slopes from the derivative that the label holder sent."""
    return Slopes(derivative, loss.curvature_from_derivative(derivative))


def predict_sign(theta: Vector) -> Vector:
    """Return ±1; a tie (a row of zeros has θ = 0) is −1, as in scikit-learn."""
    return np.where(theta > 0.0, 1.0, -1.0)
