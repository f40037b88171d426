"""What BAMBI asks of rows that lie in shards: embeddings and logits row by row, and gradients summed over rows.

A function here may run on another machine of the party's own cluster. It gets a network, weights and the features of
some rows, and gives back what the party would have computed from them.
"""

from functools import partial

import numpy as np
import torch
from torch import Tensor

from parley.numerics.arrays import Array
from parley.party.bambi.models import EmbeddingModel
from parley.tables.rows import ShardedRows


def embed(features: ShardedRows, model: EmbeddingModel, points: Tensor, rows: Array) -> Array:
    """s_m of these rows at each point of a stack, (points, rows, embedding)."""
    by_row = features.map(partial(_embedded, model, points.detach()), rows)
    return np.ascontiguousarray(by_row.swapaxes(0, 1))


def differentiate(features: ShardedRows, model: EmbeddingModel, x: Tensor, rows: Array, factors: Array) -> Tensor:
    """Σ_i ∇_x ⟨s_i, w_i⟩ over these rows, w_i being row i of the factors."""
    total: Array = features.fold(partial(_differentiated, model, x.detach()), rows, factors)
    return torch.from_numpy(total)


def predict(features: ShardedRows, model: EmbeddingModel, x: Tensor, y: Array, rows: Array | slice) -> Array:
    """h_m of these rows."""
    places = np.arange(*rows.indices(len(features))) if isinstance(rows, slice) else rows
    return features.map(partial(_predicted, model, x.detach(), y), places)


def _embedded(model: EmbeddingModel, points: Tensor, features: Array) -> Array:
    with torch.no_grad():
        s = model.apply_stack(points, torch.from_numpy(features))
    return np.ascontiguousarray(s.numpy().swapaxes(0, 1))


def _differentiated(model: EmbeddingModel, x: Tensor, features: Array, factors: Array) -> Array:
    leaf = x.clone().requires_grad_()
    s = model.apply(leaf, torch.from_numpy(features))
    (gradient,) = torch.autograd.grad(s, leaf, torch.tensor(factors))
    return np.asarray(gradient.numpy())


def _predicted(model: EmbeddingModel, x: Tensor, y: Array, features: Array) -> Array:
    with torch.no_grad():
        return np.asarray(model.apply(x, torch.from_numpy(features)).numpy() @ y)
