"""Which columns cross: softmax does not see a constant, so its last column stays at home, and C − 1 are sent.

Up go logits less their last column; down come gradients and products of curvature, whose columns add up to nothing.
"""

import numpy as np

from parley.numerics.arrays import Array


def crossing_columns(outputs: int) -> int:
    """C − 1, or 1 for one logit."""
    return max(1, outputs - 1)


def reduced(h: Array) -> Array:
    """Logits less their last column, which is subtracted from the others; one column is kept."""
    return h if h.shape[-1] == 1 else h[..., :-1] - h[..., -1:]


def widened(h: Array, outputs: int) -> Array:
    """Logits with their last column back, as zeros."""
    return h if outputs == 1 else np.append(h, np.zeros_like(h[..., :1]), axis=-1)


def shortened(gradient: Array) -> Array:
    """Gradients with respect to logits without their last column, which follows from the others."""
    return gradient if gradient.shape[-1] == 1 else np.ascontiguousarray(gradient[..., :-1])


def completed(gradient: Array, outputs: int) -> Array:
    """Gradients with their last column back: they do not move along a constant."""
    return gradient if outputs == 1 else np.append(gradient, -gradient.sum(axis=-1, keepdims=True), axis=-1)
