"""Linear systems with the lower problem's Hessian, which is block by block SᵀL''(h)S/batch + 2γ.

A party holds its own rows of the Hessian. The product with L''(h) needs every party's S z, so the coordinator makes it
from a secure sum and sends it back; everything else happens here.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from parley.numerics.arrays import Array


class IllConditioned(ArithmeticError):
    """The lower problem cannot be solved in this precision."""


@dataclass(frozen=True, eq=False)
class LowerBatch:
    """The lower problem on one batch, at one x: all Newton steps and the adjoint system of an iteration share it."""

    s: Array
    """s_m, (rows, embedding)."""
    penalty: Array | float
    """Coefficient of ‖y‖², γ or exp(x)."""
    curvature: float
    """L''(h) of an undecided prediction."""
    preconditioned: bool

    def gradient(self, theta: Array, y: Array) -> Array:
        """Sᵀθ + 2γy: ∇_y g where θ is the loss's gradient, and a product with H where θ = L''(h) Σ_m S_m y_m."""
        gradient: Array = self.s.T @ theta + 2 * self.penalty * y
        return gradient

    def precondition(self, residual: Array) -> Array:
        """M⁻¹ residual, with this party's own block as M; the residual itself where preconditioning is off."""
        return np.asarray(cho_solve((self._factor, True), residual)) if self.preconditioned else residual

    @cached_property
    def _factor(self) -> Array:
        """Cholesky factor of M, made when a system first needs it."""
        gram = self.s.T @ self.s * (self.curvature / len(self.s))
        try:
            return np.asarray(cho_factor(gram + 2 * self.penalty * np.eye(len(gram), dtype=gram.dtype), lower=True)[0])
        except ValueError:  # not positive definite, or not finite
            raise IllConditioned(
                "this party's embedding is too badly scaled to precondition with: standardise the features, raise "
                "train.regularisation, or take dtype float64"
            ) from None


class Solve(NamedTuple):
    """A linear system H d = r under conjugate gradients."""

    solution: Array
    residual: Array
    direction: Array
    image: Array
    """H times the direction."""

    @classmethod
    def of(cls, residual: Array) -> Self:
        """Before the first iteration."""
        zero = np.zeros_like(residual)
        return cls(zero, residual, zero, zero)

    def moved(self, z: Array, image: Array, alpha: float, beta: float) -> "Solve":
        """One iteration after Chronopoulos and Gear; z is the preconditioned residual and `image` is H z.

        α and β came with the product, so no second reduction is needed.
        """
        direction = z + beta * self.direction
        image = image + beta * self.image
        return Solve(self.solution + alpha * direction, self.residual - alpha * image, direction, image)
