"""Hyper-representation learning: a backbone shared by all parties, a linear head for each few-shot task.

FedBiO paper, Eq. (10) and appendix B.2; Omniglot is B. Lake, R. Salakhutdinov and J. Tenenbaum, 2015.

paper · code
backbone x · `x`, classifier y^(T_{m,n}) · a row of `y`, T_{m,n} · `tasks[n]`
"""

import lzma
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from parley.numerics.few_shot import Task
from parley.numerics.storm import Vector
from parley.party.fedbio.objectives import AutogradObjective, InvalidData, Measures


def load_omniglot(path: Path) -> NDArray[np.uint8]:
    """Read Omniglot at 28×28 from an xz-compressed .npy: (characters, drawers, 28, 28), 255 = ink."""
    with lzma.open(path) as file:
        images = np.load(file, allow_pickle=False)
    if images.ndim != 4 or images.shape[2:] != (28, 28) or images.dtype != np.uint8:
        raise InvalidData(
            f"{path.name} holds {images.dtype} {images.shape}; (characters, drawers, 28, 28) of uint8 is needed"
        )
    return np.asarray(images, dtype=np.uint8)


@dataclass(frozen=True)
class HyperRepresentation(AutogradObjective):
    """Learn a shared backbone x on which each few-shot task's own linear head y is quickly learned (B.2).

    A row is a task. The backbone is 3×3 convolutions of stride 2; each image is normalised on its own, so that a
    representation does not depend on what else is in the batch, and scaled so that its norm is at most 1. The Hessian
    of a head is then at most 1 + ridge whatever the backbone: γ and τ up to 1 are stable. g sums over tasks: they share
    no part of y, so the sum has the same minimiser as the mean, and a condition that their number does not worsen.
    """

    tasks: Sequence[Task]
    ways: int
    filters: int = 64
    layers: int = 4
    ridge: float = 1e-3

    def __post_init__(self) -> None:
        if not self.tasks:
            raise InvalidData("a party needs at least one task")
        if len({(task.support.shape, task.query.shape) for task in self.tasks}) != 1:
            raise InvalidData("all tasks of a party must have the same numbers of images and the same image size")

    @property
    def upper_size(self) -> int:
        """Filters and biases of all layers."""
        return sum(9 * before * self.filters + self.filters for before in self._depths)

    @property
    def lower_size(self) -> int:
        """One head for each task."""
        return len(self.tasks) * self._head

    @property
    def upper_rows(self) -> int:
        """Number of tasks."""
        return len(self.tasks)

    @property
    def lower_rows(self) -> int:
        """Number of tasks."""
        return len(self.tasks)

    @property
    def _depths(self) -> tuple[int, ...]:
        return (1, *(self.filters for _ in range(self.layers - 1)))

    @property
    def _head(self) -> int:
        return (self.features + 1) * self.ways

    @property
    def features(self) -> int:
        """Length of a representation."""
        side = int(self.tasks[0].support.shape[-1])
        for _ in range(self.layers):
            side = (side + 1) // 2
        return self.filters * side * side

    def initial_upper(self, generator: np.random.Generator) -> Vector:
        """A first x: filters of variance 2 / fan-in, no biases."""
        parts = [
            np.concatenate(
                [
                    generator.standard_normal(9 * before * self.filters) * np.sqrt(2 / (9 * before)),
                    np.zeros(self.filters),
                ]
            )
            for before in self._depths
        ]
        return np.concatenate(parts)

    def upper_loss(self, x: Tensor, y: Tensor, rows: Tensor) -> Tensor:
        """Mean query loss of the tasks `rows`."""
        return self._losses(x, y, rows, "query").mean()

    def lower_loss(self, x: Tensor, y: Tensor, rows: Tensor) -> Tensor:
        """Sum of the support losses of the tasks `rows`, and of their heads' ridges."""
        heads = y.view(len(self.tasks), self._head)[rows]
        return self._losses(x, y, rows, "support").sum() + 0.5 * self.ridge * (heads * heads).sum()

    def measure(self, x: Vector, y: Vector) -> Measures:
        """Query loss and mistakes over all tasks."""
        rows = torch.arange(len(self.tasks))
        labels = torch.from_numpy(np.stack([task.query_labels for task in self.tasks]))
        with torch.no_grad():
            scores = self._scores(torch.from_numpy(x), torch.from_numpy(y), rows, "query")
            loss = functional.cross_entropy(scores.flatten(0, 1), labels.flatten(), reduction="sum")
            errors = (scores.argmax(dim=2) != labels).sum()
        return Measures(float(loss), float(errors), float(labels.numel()))

    def _losses(self, x: Tensor, y: Tensor, rows: Tensor, part: str) -> Tensor:
        scores = self._scores(x, y, rows, part)
        labels = torch.from_numpy(np.stack([getattr(self.tasks[i], f"{part}_labels") for i in rows.tolist()]))
        losses = functional.cross_entropy(scores.flatten(0, 1), labels.flatten(), reduction="none")
        return losses.view(labels.shape).mean(dim=1)

    def _scores(self, x: Tensor, y: Tensor, rows: Tensor, part: str) -> Tensor:
        images = torch.from_numpy(np.stack([getattr(self.tasks[i], part) for i in rows.tolist()]))
        represented = self._represent(x, images.flatten(0, 1)[:, None]).view(*images.shape[:2], -1)
        heads = y.view(len(self.tasks), self._head)[rows]
        weights = heads[:, : self.features * self.ways].view(-1, self.features, self.ways)
        biases = heads[:, self.features * self.ways :]
        return torch.baddbmm(biases[:, None], represented, weights)

    def _represent(self, x: Tensor, images: Tensor) -> Tensor:
        at = 0
        for before in self._depths:
            size = 9 * before * self.filters
            kernel = x[at : at + size].view(self.filters, before, 3, 3)
            bias = x[at + size : at + size + self.filters]
            images = functional.conv2d(images, kernel, bias, stride=2, padding=1)
            images = functional.relu(functional.layer_norm(images, images.shape[1:]))
            at += size + self.filters
        return images.flatten(1) / math.sqrt(self.features)
