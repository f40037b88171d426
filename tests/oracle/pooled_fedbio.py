"""Slow, obvious data cleaning on pooled rows: FedBiO's recursion with dense derivatives, by torch autograd alone."""

from dataclasses import dataclass

import numpy as np
import torch
from torch.autograd.functional import jacobian


@dataclass
class PooledCleaning:
    """Everyone's rows in one place: softmax regression y, a weight sigmoid(x) for each training row."""

    features: np.ndarray
    labels: np.ndarray
    checked_features: np.ndarray
    checked_labels: np.ndarray
    classes: int
    ridge: float

    def training(self, x, y):
        each = self._losses(self.features, self.labels, y)
        return (torch.sigmoid(x) * each).mean() + 0.5 * self.ridge * (y @ y)

    def checked(self, x, y):
        return self._losses(self.checked_features, self.checked_labels, y).mean() + 0.0 * x.sum()

    def steps(self, count, eta, gamma, tau, parties):
        """x, y and u after full steps.

        A party steps its own weights by η; in the pooled mean over the parties they weigh 1/M, hence the M.
        """
        return self._descend(np.zeros(len(self.labels)), count, eta * parties, gamma, tau)

    def _descend(self, x, count, eta, gamma, tau):
        size = (self.features.shape[1] + 1) * self.classes
        y, u = np.zeros(size), np.zeros(size)
        for _ in range(count):
            point = torch.from_numpy(x), torch.from_numpy(y)
            cross, square = jacobian(self._lower_gradient, point)
            lower, (upper_x, upper_y) = _gradients(self.training, *point)[1], _gradients(self.checked, *point)
            hyper = upper_x - cross.numpy().T @ u
            x, y, u = x - eta * hyper, y - gamma * lower, u - tau * (square.numpy() @ u - upper_y)
        return x, y, u

    def _lower_gradient(self, x, y):
        y = y if y.requires_grad else y.requires_grad_()
        return torch.autograd.grad(self.training(x, y), y, create_graph=True)[0]

    def _losses(self, features, labels, y):
        weights = y[: features.shape[1] * self.classes].reshape(features.shape[1], self.classes)
        scores = torch.from_numpy(features) @ weights + y[features.shape[1] * self.classes :]
        return -torch.log_softmax(scores, 1)[torch.arange(len(labels)), torch.from_numpy(labels)]


def _gradients(loss, x, y):
    x, y = (leaf.clone().requires_grad_() for leaf in (x, y))
    return [gradient.numpy() for gradient in torch.autograd.grad(loss(x, y), (x, y))]


@dataclass
class PooledTuning(PooledCleaning):
    """Everyone's rows in one place: softmax regression y, an L2 coefficient sigmoid(x) + ridge for each column."""

    def training(self, x, y):
        columns = self.features.shape[1]
        each = (y[: columns * self.classes].reshape(columns, self.classes) ** 2).sum(dim=1)
        return (
            self._losses(self.features, self.labels, y).mean()
            + 0.5 * (torch.sigmoid(x) * each).sum()
            + 0.5 * self.ridge * (y @ y)
        )

    def steps_from(self, x, count, eta, gamma, tau):
        """x, y and u after full steps; x is shared, so the pooled mean's gradient is what everyone steps along."""
        return self._descend(x, count, eta, gamma, tau)
