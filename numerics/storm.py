"""STORM: momentum that corrects itself with one more gradient of the same sample.

Cutkosky and Orabona, "Momentum-based variance reduction in non-convex SGD", 2019; used by J. Li, F. Huang and
H. Huang, "Communication-efficient federated bilevel optimization with global and local lower level problems"
(FedBiO), Eq. (7), for all three of its problems.

paper · code
d_t · `estimate`, ∇f(x_{t+1}; B) · `gradient`, ∇f(x_t; B) · `previous_gradient`, c·α_t² · `decay`,
α_t · `Schedule.step(t)`
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


class InvalidDecay(ValueError):
    """The forgetting rate c·α² is outside [0, 1], where the recursion amplifies its own error."""


class InvalidSchedule(ValueError):
    """The step schedule would give a step that is zero, negative or infinite."""


def storm(gradient: Vector, estimate: Vector, previous_gradient: Vector, decay: float) -> Vector:
    """Return ∇f(x_{t+1}; B) + (1 − c·α²)(d_t − ∇f(x_t; B)).

    Both gradients must come from the *same* batch B: with different ones the difference no longer shrinks with the
    step, the noise adds up, and the recursion diverges. `decay` = 1 is plain SGD, 0 is pure gradient tracking.
    """
    if not 0.0 <= decay <= 1.0:
        raise InvalidDecay(
            f"c·α² = {decay:.4g} is outside [0, 1]; lower the momentum constant c, or the step schedule's δ"
        )
    corrected: Vector = gradient + (1.0 - decay) * (estimate - previous_gradient)
    return corrected


@dataclass(frozen=True, slots=True)
class Schedule:
    """The step α_t = δ / (u₀ + t)^{1/3} of Theorem 3.6, or a constant one."""

    delta: float
    """δ > 0: the numerator, or the step itself when `offset` is None."""

    offset: float | None = None
    """u₀ > 0: how many steps the decay looks back before t = 0; None keeps the step at δ."""

    def __post_init__(self) -> None:
        if not (np.isfinite(self.delta) and self.delta > 0):
            raise InvalidSchedule(f"δ = {self.delta} must be positive and finite")
        if self.offset is not None and not (np.isfinite(self.offset) and self.offset > 0):
            raise InvalidSchedule(f"u₀ = {self.offset} must be positive and finite, or None for a constant step")

    def step(self, t: int) -> float:
        """α_t, for t = 0, 1, 2, …"""
        if self.offset is None:
            return self.delta
        return self.delta / float(np.cbrt(self.offset + t))
