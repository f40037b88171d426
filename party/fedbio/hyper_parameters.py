"""A shared upper variable over the global lower problem (Eq. 1): the L2 coefficients of one softmax regression.

| paper | code | shape |
|---|---|---|
| x | c_j = lowest + highest · sigmoid(x_j) | columns, classes, or 1 |
| y | weights, then biases | columns × classes + classes |
| f | cross-entropy on validation rows | |
| g | cross-entropy on training rows + ½ Σ_j c_j ‖w_j‖² + ½ lowest ‖biases‖² | |

Small coefficients thus have a log scale, and none grows until a step of y or u would be too long for it.

Only the parties together see enough rows to choose x: it is averaged like y and u, and everyone ends with the same.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from scipy.special import expit
from torch import Tensor
from torch.nn import functional

from parley.numerics.storm import Vector
from parley.party.fedbio.objectives import (
    AutogradObjective,
    Measures,
    Rows,
    judged,
    largest_step,
    paired_tensors,
    predicted_classes,
    regression_scores,
    row_measures,
)


@dataclass(frozen=True)
class HyperParameters(AutogradObjective):
    """Tune coefficients by validation rows; see the module for f and g."""

    features: Vector
    labels: Rows
    validation_features: Vector
    validation_labels: Rows
    classes: int
    coefficients: Literal["columns", "classes", "one"] = "columns"
    lowest: float = 1e-4
    """Keeps g strongly convex."""
    highest: float = 1.0
    """Keeps g smooth."""
    test: tuple[Vector, Rows] | None = None
    """Features and labels of rows to judge the model by."""
    _tensors: tuple[Tensor, Tensor, Tensor, Tensor] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        tensors = paired_tensors(
            self.features, self.labels, self.validation_features, self.validation_labels, self.classes
        )
        object.__setattr__(self, "_tensors", tensors)

    @property
    def widths(self) -> tuple[int, int]:
        """Columns and classes."""
        return int(self.features.shape[1]), self.classes

    @property
    def upper_size(self) -> int:
        """One logarithm for each coefficient."""
        return {"columns": self.widths[0], "classes": self.classes, "one": 1}[self.coefficients]

    @property
    def lower_size(self) -> int:
        """Weights and biases."""
        columns, classes = self.widths
        return (columns + 1) * classes

    @property
    def upper_rows(self) -> int:
        """Number of validation rows."""
        return len(self.validation_labels)

    @property
    def lower_rows(self) -> int:
        """Number of training rows."""
        return len(self.labels)

    @cached_property
    def largest_step(self) -> float:
        """What the rows allow, whatever their units."""
        return min(largest_step(self._tensors[0]), 1 / self.highest)

    def values(self, x: Vector) -> Vector:
        """The coefficients."""
        return np.asarray(self.lowest + self.highest * expit(x), dtype=np.float64)

    def upper_loss(self, x: Tensor, y: Tensor, rows: Tensor) -> Tensor:  # noqa: ARG002
        """Cross-entropy on validation rows; coefficients act only through y."""
        _, _, features, labels = self._tensors
        return functional.cross_entropy(regression_scores(y, features[rows], self.classes), labels[rows])

    def lower_loss(self, x: Tensor, y: Tensor, rows: Tensor) -> Tensor:
        """Cross-entropy on training rows, and what the coefficients cost."""
        features, labels, _, _ = self._tensors
        columns, classes = self.widths
        loss = functional.cross_entropy(regression_scores(y, features[rows], classes), labels[rows])
        squares = y[: columns * classes].view(columns, classes).square()
        of_each = squares.sum(dim=1) if self.coefficients == "columns" else squares.sum(dim=0)
        return loss + 0.5 * self.highest * (torch.sigmoid(x) * of_each).sum() + 0.5 * self.lowest * (y @ y)

    def measure(self, x: Vector, y: Vector) -> Measures:  # noqa: ARG002
        """Cross-entropy and mistakes on all validation rows, mistakes on test rows."""
        _, _, features, labels = self._tensors
        with torch.no_grad():
            measures = row_measures(regression_scores(torch.from_numpy(y), features, self.classes), labels)
        if self.test is None:
            return measures
        mistakes = np.count_nonzero(self.predict(y, self.test[0]) != self.test[1])
        return measures._replace(test_errors=float(mistakes), test_rows=float(len(self.test[1])))

    def judged(self, y: Vector) -> tuple[Vector, Rows]:
        """Probabilities and true classes of the test rows, or of the validation rows where there are none."""
        _, _, features, labels = self._tensors
        return judged(y, (features.numpy(), labels.numpy()) if self.test is None else self.test, self.widths)

    def predict(self, y: Vector, features: Vector) -> Rows:
        """The classes that model y gives to `features`."""
        return predicted_classes(y, features, self.widths)
