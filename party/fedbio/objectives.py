"""The bilevel objectives that a party of the FedBiO family can hold: f(x, y) above, g(x, y) below.

FedBiO paper, Eq. (1) and appendix B.1 (data cleaning); B.2 is `hyper_representation`. Second derivatives appear only
as products with a vector, by two passes of autograd; no Hessian is ever formed.

paper · code
∇_x f, ∇_y f · `upper_gradients`; ∇_y g, ∇_{y²}g·v, ∇_{xy}g·v · `lower_terms`
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from math import sqrt
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from parley.numerics.storm import Vector
from parley.protocols.rounds import MEASURE_UNIT

Rows = NDArray[np.int64]

LEAST_TRUST = 0.02
USUAL_ROWS = 4500
"""Rows of a party for which the default η and L2 coefficient of data cleaning are meant."""
STEP_LIMIT, NETWORK_STEP_LIMIT = 4.0, 1.0
"""Largest step in units of 1/λ: where descent on a softmax regression could diverge, and less for hidden layers."""
POWER_STEPS = 30


class InvalidData(ValueError):
    """The rows given to an objective do not fit together."""


NOBODY = np.empty((0, 2)), np.empty(0, dtype=np.int64)
"""Probabilities and classes of no rows."""


class UpperGradients(NamedTuple):
    """∇_x f and ∇_y f."""

    x: Vector
    y: Vector


class LowerTerms(NamedTuple):
    """∇_y g, ∇_{y²}g·v and ∇_{xy}g·v."""

    gradient: Vector
    hessian: Vector
    cross: Vector


class Measures(NamedTuple):
    """Loss and mistakes, summed over rows, so that parties' measures add up."""

    loss: float
    errors: float
    rows: float
    """Validation rows that `loss` and `errors` are summed over."""
    test_errors: float = 0.0
    test_rows: float = 0.0
    auc: float = 0.0
    """With which small weights point at wrong labels, where this party knows them."""
    judges: float = 0.0
    """1 where it knows them."""

    def vector(self) -> Vector:
        """As an addend of a secure sum, in units of 1024 rows so that many fit the ring."""
        counts = np.array(self[:5], dtype=np.float64) / MEASURE_UNIT
        return np.concatenate([counts, [self.auc, self.judges]])


class BilevelObjective(Protocol):
    """f^(m) and g^(m) of one party; `rows` choose a batch of validation (f) or training (g) rows."""

    @property
    def upper_size(self) -> int:
        """Length of x."""

    @property
    def lower_size(self) -> int:
        """Length of y."""

    @property
    def upper_rows(self) -> int:
        """Number of validation rows."""

    @property
    def lower_rows(self) -> int:
        """Number of training rows."""

    def upper_gradients(self, x: Vector, y: Vector, rows: Rows) -> UpperGradients:
        """∇_x f and ∇_y f."""

    def lower_terms(self, x: Vector, y: Vector, v: Vector, rows: Rows) -> LowerTerms:
        """∇_y g, ∇_{y²}g·v and ∇_{xy}g·v."""

    def hessian_product(self, x: Vector, y: Vector, v: Vector, rows: Rows) -> Vector:
        """∇_{y²}g·v alone."""

    def measure(self, x: Vector, y: Vector) -> Measures:
        """Loss and mistakes on all validation rows."""

    def judged(self, y: Vector) -> tuple[Vector, Rows]:
        """Probabilities and true classes of the test rows, or of the validation rows where there are none."""


class AutogradObjective(ABC):
    """An objective of which only the two losses are written down; autograd does the rest, in float64."""

    @abstractmethod
    def upper_loss(self, x: Tensor, y: Tensor, rows: Tensor) -> Tensor:
        """f on the validation rows `rows`."""

    @abstractmethod
    def lower_loss(self, x: Tensor, y: Tensor, rows: Tensor) -> Tensor:
        """g on the training rows `rows`."""

    def upper_gradients(self, x: Vector, y: Vector, rows: Rows) -> UpperGradients:
        """∇_x f and ∇_y f."""
        leaves = (_leaf(x), _leaf(y))
        return UpperGradients(*_gradient(self.upper_loss(*leaves, torch.from_numpy(rows)), leaves))

    def lower_terms(self, x: Vector, y: Vector, v: Vector, rows: Rows) -> LowerTerms:
        """∇_y g, and both products with v from one backward pass through v·∇_y g."""
        leaves = (_leaf(x), _leaf(y))
        loss = self.lower_loss(*leaves, torch.from_numpy(rows))
        (gradient,) = torch.autograd.grad(loss, leaves[1], create_graph=True)
        cross, hessian = _gradient(gradient @ torch.from_numpy(v), leaves)
        return LowerTerms(gradient.detach().numpy(), hessian, cross)

    def hessian_product(self, x: Vector, y: Vector, v: Vector, rows: Rows) -> Vector:
        """∇_{y²}g·v; x carries no gradient, which spares the pass through a representation."""
        leaf = _leaf(y)
        loss = self.lower_loss(torch.from_numpy(x), leaf, torch.from_numpy(rows))
        (gradient,) = torch.autograd.grad(loss, leaf, create_graph=True)
        return _gradient(gradient @ torch.from_numpy(v), (leaf,))[0]

    def judged(self, y: Vector) -> tuple[Vector, Rows]:  # noqa: ARG002
        """No rows, where the classes are not those of all parties."""
        return NOBODY


@dataclass(frozen=True)
class Quadratic:
    """f = ½‖y − a‖² + (λ/2)‖x − s‖², g = ½yᵀHy − yᵀ(Bx + c_i): everything has a closed form."""

    H: Vector
    B: Vector
    c: Vector
    """One row per sample: (samples, lower size)."""
    a: Vector
    s: Vector
    ridge: float
    """λ."""

    @property
    def upper_size(self) -> int:
        """Length of x."""
        return int(self.B.shape[1])

    @property
    def lower_size(self) -> int:
        """Length of y."""
        return int(self.B.shape[0])

    @property
    def upper_rows(self) -> int:
        """f has no samples."""
        return 1

    @property
    def lower_rows(self) -> int:
        """Number of linear terms c_i."""
        return len(self.c)

    def upper_gradients(self, x: Vector, y: Vector, rows: Rows) -> UpperGradients:  # noqa: ARG002
        """∇_x f and ∇_y f."""
        return UpperGradients(self.ridge * (x - self.s), y - self.a)

    def lower_terms(self, x: Vector, y: Vector, v: Vector, rows: Rows) -> LowerTerms:
        """Hy − Bx − c, Hv and −Bᵀv."""
        c = self.c[0] if len(self.c) == 1 else self.c[rows].mean(axis=0)
        return LowerTerms(self.H @ y - self.B @ x - c, self.H @ v, -(self.B.T @ v))

    def hessian_product(self, x: Vector, y: Vector, v: Vector, rows: Rows) -> Vector:  # noqa: ARG002
        """Hv."""
        product: Vector = self.H @ v
        return product

    def measure(self, x: Vector, y: Vector) -> Measures:
        """f itself; there are no mistakes to count."""
        loss = 0.5 * np.sum((y - self.a) ** 2) + 0.5 * self.ridge * np.sum((x - self.s) ** 2)
        return Measures(float(loss), 0.0, 1.0)

    def judged(self, y: Vector) -> tuple[Vector, Rows]:  # noqa: ARG002
        """There are no classes."""
        return NOBODY


@dataclass(frozen=True)
class DataCleaning(AutogradObjective):
    """Weigh one's own training rows, of which some labels are wrong, by a clean validation set (B.1).

    x holds one logit per training row, whose weight is sigmoid(x): in (0, 1), smooth, and never negative.
    y is a softmax regression, or a small perceptron where `hidden` names layers.
    """

    features: Vector
    labels: Rows
    validation_features: Vector
    validation_labels: Rows
    classes: int
    ridge: float = 1e-3
    """The lower problem's L2 coefficient, which makes it strongly convex for a softmax regression."""
    hidden: tuple[int, ...] = ()
    """Widths of hidden layers, narrow first or wide first; empty for softmax regression."""
    test: tuple[Vector, Rows] | None = None
    """Features and right labels of rows to judge the model by."""
    wrong: NDArray[np.bool_] | None = None
    """Which training labels are wrong, where the party knows it; used to judge the weights, never to train."""
    _tensors: tuple[Tensor, Tensor, Tensor, Tensor] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        tensors = paired_tensors(
            self.features, self.labels, self.validation_features, self.validation_labels, self.classes
        )
        object.__setattr__(self, "_tensors", tensors)

    @property
    def widths(self) -> tuple[int, ...]:
        """Columns, hidden layers, classes."""
        return (int(self.features.shape[1]), *self.hidden, self.classes)

    @property
    def upper_size(self) -> int:
        """One logit for each training row."""
        return len(self.labels)

    @property
    def lower_size(self) -> int:
        """Weights and biases of all layers."""
        return _network_size(self.widths)

    @property
    def upper_rows(self) -> int:
        """Number of validation rows."""
        return len(self.validation_labels)

    @property
    def lower_rows(self) -> int:
        """Number of training rows."""
        return len(self.labels)

    def upper_loss(self, x: Tensor, y: Tensor, rows: Tensor) -> Tensor:  # noqa: ARG002
        """Cross-entropy of the model on clean rows; the weights act only through y."""
        _, _, features, labels = self._tensors
        return functional.cross_entropy(_network(y, features[rows], self.widths), labels[rows])

    def lower_loss(self, x: Tensor, y: Tensor, rows: Tensor) -> Tensor:
        """Weighted cross-entropy on one's own rows, and the ridge."""
        features, labels, _, _ = self._tensors
        losses = functional.cross_entropy(_network(y, features[rows], self.widths), labels[rows], reduction="none")
        return (torch.sigmoid(x[rows]) * losses).mean() + 0.5 * self.ridge * (y @ y)

    def trust(self, y: Vector) -> float:
        """Share of this party's labels that are right, if model y is: the rest is drawn from all classes alike.

        How often the model agrees with a label, without what agrees by chance. A model's own probabilities would
        overstate the share, since a model that is held back by L2 is less sure than it should be.
        """
        agreement = float(np.mean(self.predict(y, self.features) == self.labels))
        share = (agreement * self.classes - 1) / (self.classes - 1)
        return min(max(share, LEAST_TRUST), 1 - LEAST_TRUST)

    def warm_gradient(self, y: Vector, trust: float | None, rows: Rows, checked: Rows) -> Vector:
        """∇_y of the likelihood of labels of which a share `trust` is right, and of the checked rows; None: only those.

        A checked row counts as much as a training row whose label is believed. The fewer labels are in doubt, the less
        the L2 coefficient is needed: it is multiplied by their share. Of fewer rows than usual more is needed.
        """
        leaf = _leaf(y)
        features, labels, checked_features, checked_labels = self._tensors
        loss = functional.cross_entropy(_network(leaf, checked_features[checked], self.widths), checked_labels[checked])
        if trust is not None:
            scores = functional.log_softmax(_network(leaf, features[rows], self.widths), dim=1)
            given = scores.gather(1, labels[rows][:, None])[:, 0].exp()
            likelihood = torch.log(trust * given + (1 - trust) / self.classes).mean()
            loss = (len(checked_labels) / len(labels) * loss - likelihood) / trust
        ridge = self.ridge * max(1.0, sqrt(USUAL_ROWS / len(labels)))
        ridge = ridge if trust is None else ridge * (1 - trust)
        (gradient,) = torch.autograd.grad(loss + 0.5 * ridge * (leaf @ leaf), leaf)
        found: Vector = gradient.numpy()
        return found

    def warm_weights(self, y: Vector) -> Vector:
        """Logits of how likely each training label is right, as model y and its trust have it."""
        trust = self.trust(y)
        return np.asarray(self._own_scores(y) + np.log(trust * self.classes / (1 - trust)), dtype=np.float64)

    @cached_property
    def largest_step(self) -> float:
        """A step that can be taken on these rows, by the largest eigenvalue λ of their second moment.

        A softmax regression's loss has curvature λ/2 at most; rows in other units then need no other settings.
        """
        return largest_step(self._tensors[0], NETWORK_STEP_LIMIT if self.hidden else STEP_LIMIT)

    def largest_warm_step(self, trust: float | None) -> float:
        """With momentum, and steps that shrink: longer for more classes, each of which has less curvature.

        Only as far as labels are right: where few are, the noise of a gradient that is divided by `trust` forbids it.
        """
        longer = 1.0 if self.hidden or trust is None else 1 + trust * (sqrt(self.classes / 2) - 1)
        return self.largest_step * longer

    def _own_scores(self, y: Vector) -> Vector:
        """Log-likelihood of each training label."""
        features, labels, _, _ = self._tensors
        with torch.no_grad():
            losses = functional.cross_entropy(
                _network(torch.from_numpy(y), features, self.widths), labels, reduction="none"
            )
        return -losses.numpy()

    def record_terms(self, x: Vector, y: Vector, v: Vector, rows: Rows) -> tuple[Vector, Vector]:
        """Of each training row by itself: its weighted gradient, and that one's derivative times v; no ridge."""
        features, labels, _, _ = self._tensors
        weights, points = torch.sigmoid(torch.from_numpy(x)[rows]), _copies(y, len(rows))
        gradients = self._row_gradients(points, features[rows], labels[rows], weights)
        (products,) = torch.autograd.grad((gradients @ torch.from_numpy(v)).sum(), points)
        return gradients.detach().numpy(), products.numpy()

    def checked_gradients(self, y: Vector, rows: Rows) -> Vector:
        """The gradient of each checked row by itself."""
        _, _, features, labels = self._tensors
        weights = torch.ones(len(rows), dtype=torch.float64)
        found: Vector = (
            self._row_gradients(_copies(y, len(rows)), features[rows], labels[rows], weights).detach().numpy()
        )
        return found

    def _row_gradients(self, points: Tensor, features: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        """Every row at a point of its own, so that one pass keeps the rows' gradients apart."""
        losses = functional.cross_entropy(_networks(points, features, self.widths), labels, reduction="none")
        (found,) = torch.autograd.grad((weights * losses).sum(), points, create_graph=True)
        return found

    def checked_losses(self, y: Vector) -> tuple[Vector, Vector]:
        """Loss and mistake (0 or 1) of each checked row."""
        _, _, features, labels = self._tensors
        with torch.no_grad():
            scores = _network(torch.from_numpy(y), features, self.widths)
            losses = functional.cross_entropy(scores, labels, reduction="none")
            return losses.numpy(), (scores.argmax(dim=1) != labels).double().numpy()

    def measure(self, x: Vector, y: Vector) -> Measures:
        """Cross-entropy and mistakes on the clean rows; mistakes on test rows and AUC of the weights where known."""
        _, _, features, labels = self._tensors
        with torch.no_grad():
            measures = row_measures(_network(torch.from_numpy(y), features, self.widths), labels)
        if self.test is not None:
            mistakes = np.count_nonzero(self.predict(y, self.test[0]) != self.test[1])
            measures = measures._replace(test_errors=float(mistakes), test_rows=float(len(self.test[1])))
        if self.wrong is not None and 0 < np.count_nonzero(self.wrong) < len(self.wrong):
            measures = measures._replace(auc=_detection_auc(self.wrong, x), judges=1.0)
        return measures

    def judged(self, y: Vector) -> tuple[Vector, Rows]:
        """Probabilities and true classes of the test rows, or of the clean rows where there are none."""
        _, _, features, labels = self._tensors
        return judged(y, (features.numpy(), labels.numpy()) if self.test is None else self.test, self.widths)

    def predict(self, y: Vector, features: Vector) -> Rows:
        """The classes that model y gives to `features`."""
        return predicted_classes(y, features, self.widths)


def paired_tensors(
    features: Vector, labels: Rows, validation_features: Vector, validation_labels: Rows, classes: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training and validation rows as tensors, if they fit together."""
    for rows, given in ((features, labels), (validation_features, validation_labels)):
        if rows.ndim != 2 or given.shape != (len(rows),) or not len(rows):
            raise InvalidData(f"features {rows.shape} and labels {given.shape} do not pair up")
        if given.min() < 0 or given.max() >= classes:
            raise InvalidData(f"labels must lie in 0 … {classes - 1}")
    if features.shape[1] != validation_features.shape[1]:
        raise InvalidData("training and validation rows have different columns")
    return (
        torch.from_numpy(np.asarray(features, dtype=np.float64)),
        torch.from_numpy(np.asarray(labels, dtype=np.int64)),
        torch.from_numpy(np.asarray(validation_features, dtype=np.float64)),
        torch.from_numpy(np.asarray(validation_labels, dtype=np.int64)),
    )


def largest_step(features: Tensor, limit: float = STEP_LIMIT) -> float:
    """`limit`/λ, λ the largest eigenvalue of the rows' second moment, by power iteration."""
    direction, largest = torch.ones(features.shape[1] + 1, dtype=torch.float64), 0.0
    for _ in range(POWER_STEPS):
        direction = direction / direction.norm()
        along = features @ direction[:-1] + direction[-1]
        direction = torch.cat([features.T @ along, along.sum()[None]]) / len(features)
        largest = float(direction.norm())
    return limit / largest


def regression_scores(y: Tensor, features: Tensor, classes: int) -> Tensor:
    """What softmax regression y gives to `features`."""
    return _network(y, features, (features.shape[1], classes))


def row_measures(scores: Tensor, labels: Tensor) -> Measures:
    """Loss and mistakes, summed over rows."""
    loss = functional.cross_entropy(scores, labels, reduction="sum")
    errors = (scores.argmax(dim=1) != labels).sum()
    return Measures(float(loss), float(errors), float(len(labels)))


def judged(y: Vector, rows: tuple[Vector, Rows], widths: Sequence[int]) -> tuple[Vector, Rows]:
    """The probabilities that network y gives to rows, and their true classes."""
    features, classes = rows
    with torch.no_grad():
        scores = _network(torch.from_numpy(y), torch.from_numpy(np.asarray(features, dtype=np.float64)), widths)
    return scores.softmax(dim=1).numpy(), np.asarray(classes, dtype=np.int64)


def predicted_classes(y: Vector, features: Vector, widths: Sequence[int]) -> Rows:
    """The classes that network y gives to `features`."""
    with torch.no_grad():
        scores = _network(torch.from_numpy(y), torch.from_numpy(features), widths)
    return scores.argmax(dim=1).numpy()


def _detection_auc(wrong: NDArray[np.bool_], x: Vector) -> float:
    from sklearn.metrics import roc_auc_score  # slow to import, and few parties know the truth

    return float(roc_auc_score(wrong, -x))


def suspects(x: Vector) -> Rows:
    """A party's training rows, most suspicious (smallest weight) first; it stays at the party."""
    return np.argsort(x, kind="stable").astype(np.int64)


def initial_network(widths: Sequence[int], generator: np.random.Generator) -> Vector:
    """A first y: zeros for softmax regression, else weights of variance 2 / fan-in; same generator, same y."""
    if len(widths) == 2:
        return np.zeros(_network_size(widths))
    parts = [
        np.concatenate([generator.standard_normal(a * b) * np.sqrt(2.0 / a), np.zeros(b)]) for a, b in pairwise(widths)
    ]
    return np.concatenate(parts)


def _network_size(widths: Sequence[int]) -> int:
    return sum(a * b + b for a, b in pairwise(widths))


def _network(y: Tensor, features: Tensor, widths: Sequence[int]) -> Tensor:
    at = 0
    for layer, (a, b) in enumerate(pairwise(widths)):
        if layer:
            features = functional.relu(features)
        weights = y[at : at + a * b].view(a, b)
        features = torch.addmm(y[at + a * b : at + a * b + b], features, weights)
        at += a * b + b
    return features


def _networks(points: Tensor, features: Tensor, widths: Sequence[int]) -> Tensor:
    """The same with a network of its own for each row."""
    at, rows = 0, features[:, None, :]
    for layer, (a, b) in enumerate(pairwise(widths)):
        if layer:
            rows = functional.relu(rows)
        weights = points[:, at : at + a * b].reshape(-1, a, b)
        rows = torch.baddbmm(points[:, None, at + a * b : at + a * b + b], rows, weights)
        at += a * b + b
    return rows[:, 0, :]


def _copies(vector: Vector, count: int) -> Tensor:
    return torch.from_numpy(vector).repeat(count, 1).requires_grad_()


def _leaf(vector: Vector) -> Tensor:
    return torch.from_numpy(vector).requires_grad_()


def _gradient(value: Tensor, leaves: tuple[Tensor, ...]) -> list[Vector]:
    """Gradients by leaf; a loss that does not touch a leaf has gradient zero there."""
    if not value.requires_grad:
        return [np.zeros(leaf.shape) for leaf in leaves]
    found = torch.autograd.grad(value, leaves, allow_unused=True)
    return [
        np.zeros(leaf.shape) if gradient is None else gradient.numpy()
        for leaf, gradient in zip(leaves, found, strict=True)
    ]
