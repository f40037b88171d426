"""Two ways to the inverse-Hessian product u = H⁻¹ b from Hessian-vector products alone.

FedBiO family, Eq. (4) and Eq. (11). The quadratic problem of Eq. (4) is solved by steps along `residual`, kept in a
ball by `project_ball`; the truncated Neumann series of Eq. (11) is `neumann_product`.

paper · code
∇_{y²}g · `hessian_product`, ∇_y f · `b`, u · `u`, τ · `tau`, Q · `terms`, P_r · `project_ball`
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]

_GROWTH_LIMIT = 1e3


class SeriesDiverges(ArithmeticError):
    """The terms of a Neumann series grow, so that its sum is not an inverse-Hessian product."""


def residual(hessian_times_u: Vector, b: Vector) -> Vector:
    """∇l(u) = Hu − b.

    differs from the paper: Eq. (4) prints uᵀHu without its ½; the gradient of that would be 2Hu − b, whose zero is
    half the wanted u. The update below Eq. (4) and ours have the ½.
    """
    difference: Vector = hessian_times_u - b
    return difference


def project_ball(u: Vector, radius: float) -> Vector:
    """P_r: the point of the ball ‖·‖ ≤ radius nearest to `u`."""
    norm = float(np.linalg.norm(u))
    return u if norm <= radius else u * (radius / norm)


def neumann_product(hessian_product: Callable[[Vector, int], Vector], b: Vector, *, terms: int, tau: float) -> Vector:
    """Return τ Σ_{q=0}^{Q} Π_j (I − τH_j) b ≈ H⁻¹ b, Eq. (11).

    `hessian_product(v, j)` multiplies by the Hessian of sample ξ_j; it is called with j = Q, Q−1, …, 1. With one
    Hessian H, τ < 2/‖H‖, the error is (I − τH)^{Q+1} H⁻¹ b.
    """
    if terms < 0 or not tau > 0:
        raise ValueError(f"a Neumann series needs Q >= 0 and tau > 0; got Q={terms}, tau={tau}")
    term = b
    total = b
    limit = _GROWTH_LIMIT * max(float(np.linalg.norm(b)), float(np.finfo(np.float64).tiny))
    for j in range(terms, 0, -1):
        term = term - tau * hessian_product(term, j)
        size = float(np.linalg.norm(term))
        if not size <= limit:
            raise SeriesDiverges(
                f"the terms of the Neumann series grow: choose tau < 2 / (largest Hessian eigenvalue) (it is {tau:g}), "
                "or a convex lower problem"  # how fast they grow is a figure of private rows
            )
        total = total + term
    product: Vector = tau * total
    return product
