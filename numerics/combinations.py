"""The best point near an affine span of outputs: how far to go on along moves that were made before.

A model's outputs at several points are known, and with them its moves. Minimising a convex loss over h + Σ_i c_i e_i
takes as many numbers as there are moves. With the last two moves of a linear model this is the method of conjugate
gradients, preconditioned by whatever made the moves (sequential subspace optimisation, Narkiss and Zibulevsky 2005).
"""

from collections.abc import Sequence

import numpy as np

from parley.numerics.arrays import Array, Vector
from parley.numerics.losses import Loss

ITERATIONS = 20
SMALLEST_FALL = 1e-12
SHORTEST_STEP = 2.0**-10
DAMPING = 1e-6
"""Of the trace: two moves may point the same way."""


def best_combination(loss: Loss, h: Array, moves: Sequence[Array], target: Array) -> Vector:
    """The c that minimises the loss at h + Σ_i c_i moves_i, by Newton's method with backtracking."""
    h, stack = h.astype(np.float64), np.stack(moves).astype(np.float64)
    weights = np.zeros(len(stack))
    value = loss.value(h, target)
    for _ in range(ITERATIONS):
        step = _newton_step(loss, h + np.tensordot(weights, stack, 1), stack, target)
        length = 1.0
        while length >= SHORTEST_STEP:
            moved = loss.value(h + np.tensordot(weights + length * step, stack, 1), target)
            if moved < value:
                break
            length /= 2
        else:
            break
        weights, fall, value = weights + length * step, value - moved, moved
        if fall < SMALLEST_FALL:
            break
    return weights


def _newton_step(loss: Loss, h: Array, stack: Array, target: Array) -> Vector:
    gradient = np.tensordot(stack, loss.gradient(h, target), 2)
    hessian = np.stack([np.tensordot(stack, loss.curvature_product(h, move), 2) for move in stack])
    damped = hessian + DAMPING * (np.trace(hessian) + np.finfo(float).tiny) * np.eye(len(stack))
    return np.asarray(-np.linalg.lstsq(damped, gradient, rcond=None)[0])
