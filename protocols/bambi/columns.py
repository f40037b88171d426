"""Which columns cross: softmax does not see a constant, so its last column stays at home, and C − 1 are sent.

A problem of one's own may see a constant, so all of its columns cross. Up go logits less their last column; down come
gradients and products of curvature, whose columns add up to nothing.
"""

import numpy as np

from parley.numerics.arrays import Array


def crossing_columns(outputs: int) -> int:
    """C − 1, or 1 for one logit."""
    return max(1, outputs - 1)


def reduced(h: Array, columns: int) -> Array:
    """Logits less their last column, which is subtracted from the others, where so many columns cross."""
    return h if h.shape[-1] == columns else h[..., :-1] - h[..., -1:]


def widened(h: Array, outputs: int) -> Array:
    """Logits with their last column back, as zeros."""
    return h if h.shape[-1] == outputs else np.append(h, np.zeros_like(h[..., :1]), axis=-1)


def shortened(gradient: Array, columns: int) -> Array:
    """Gradients with respect to logits without their last column, where so many cross."""
    return gradient if gradient.shape[-1] == columns else np.ascontiguousarray(gradient[..., :-1])


def completed(gradient: Array, outputs: int) -> Array:
    """Gradients with their last column back: they do not move along a constant."""
    return (
        gradient
        if gradient.shape[-1] == outputs
        else np.append(gradient, -gradient.sum(axis=-1, keepdims=True), axis=-1)
    )
