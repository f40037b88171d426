"""Which columns of h cross in a local round: softmax does not see a constant, so its last column stays at home."""

import numpy as np

from parley.numerics.arrays import Array


def crossing_columns(outputs: int) -> int:
    """C − 1, or 1 for one logit."""
    return max(1, outputs - 1)


def reduced(h: Array) -> Array:
    """h less its last column, which is subtracted from the others; one column is kept."""
    return h if h.shape[1] == 1 else h[:, :-1] - h[:, -1:]


def widened(h: Array, outputs: int) -> Array:
    """h with its last column back, as zeros."""
    return h if outputs == 1 else np.append(h, np.zeros_like(h[:, :1]), axis=1)
