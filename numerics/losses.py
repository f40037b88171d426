"""Losses on the summed embedding h = Σ_m h_m, with label-free curvature products.

BAMBI (the paper): vertical federated bilevel learning, losses of Eq. 1 and 2. Only these functions meet a
label, and they meet it as a `target` row: true (for the label holder's own scores) or noisy (for everything
that leaves).

    paper      code      shape                held by       leaves?
    h          h         (…, B, C)            coordinator   no
    ỹ          target    (B, C)               coordinator   no (post-processing of it does)
    θ, ϑ       gradient  (…, B, C)            coordinator   yes, computed from a noisy target
    L''(h) a   curvature_product (…, B, C)    coordinator   yes, has no label in it
    P(ỹ|k)     transition (C noisy, C true)   public

A leading axis of `h` holds the Q+1 trajectories, which share one target. Gradients and products are those of
the mean over the batch, so they are already divided by B. The dtype of `h` is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class LossShapeMismatch(ValueError):
    """The embedding and the target do not fit the loss."""


class ClassOutOfRange(ValueError):
    """A class label is not one of 0 … C−1."""


class TransitionNotStochastic(ValueError):
    """The columns of a transition matrix are not strictly positive distributions."""


class Loss(Protocol):
    """What a coordinator needs of a loss; every method is vectorised over leading axes of `h`."""

    accuracy_name: ClassVar[str]
    """What `accuracy` reports: "accuracy", or "r2" for a regression."""

    def encode(self, labels: Array, dtype: Any = np.float32) -> Array:
        """Turn raw labels into true target rows (B×C)."""
        ...

    def sample_losses(self, h: Array, target: Array) -> Array:
        """Return the loss of each sample (…, B)."""
        ...

    def value(self, h: Array, target: Array) -> float:
        """Return the mean loss over all samples (and trajectories)."""
        ...

    def gradient(self, h: Array, target: Array) -> Array:
        """Return the gradient of the batch's mean loss with respect to `h`."""
        ...

    def curvature_product(self, h: Array, a: Array) -> Array:
        """Return L''(h)·a / B, from which nothing about a label can be learnt beyond `h`."""
        ...

    def predict(self, h: Array) -> Array:
        """Return class probabilities, or the regression's value."""
        ...

    def accuracy(self, h: Array, target: Array) -> float:
        """Return the share of right predictions (R² for a regression)."""
        ...


@dataclass(frozen=True)
class Softmax:
    """Cross-entropy on C logits. Target rows may be one-hot, soft, or noisy (any real numbers)."""

    classes: int
    """C, at least 2."""

    accuracy_name: ClassVar[str] = "accuracy"

    @property
    def curvature_scale(self) -> float:
        """Mean eigenvalue of diag(p) − ppᵀ at uniform p: (C−1)/C²."""
        return (self.classes - 1) / self.classes**2

    def encode(self, labels: Array, dtype: Any = np.float32) -> Array:
        """One-hot rows of integer labels."""
        return one_hot(labels, self.classes, dtype)

    def sample_losses(self, h: Array, target: Array) -> Array:
        """−Σ_k ỹ_k log p_k."""
        target = _fitted(h, target, self.classes)
        return np.asarray(-(target * _log_softmax(h)).sum(axis=-1))

    def value(self, h: Array, target: Array) -> float:
        """Mean of `sample_losses`."""
        return float(self.sample_losses(h, target).mean())

    def gradient(self, h: Array, target: Array) -> Array:
        """(p·Σ_k ỹ_k − ỹ)/B, which is Σ_k ỹ_k θ_k with θ_k = p − e_k.

        The order of operations is the same whatever the label: label and noise meet in ỹ, before any float
        operation on p, so a bit-exact replay learns what ỹ says and no more.
        """
        # differs from the paper: Algorithm 3 adds one scalar times Σ_k θ_k to θ_b, which is not private.
        target = _fitted(h, target, self.classes)
        gradient = _softmax(h)
        gradient *= target @ np.ones((self.classes, 1), h.dtype)  # a sum along a short axis takes twice as long
        gradient -= target
        gradient /= _batch(h)
        return gradient

    def curvature_product(self, h: Array, a: Array) -> Array:
        """(diag(p) − ppᵀ) a / B."""
        _fitted(h, a, self.classes)
        return _softmax_jacobian(_softmax(h), a) / _batch(h)

    def predict(self, h: Array) -> Array:
        """Class probabilities p."""
        return _softmax(h)

    def accuracy(self, h: Array, target: Array) -> float:
        """Share of rows whose largest logit is the target's largest entry."""
        target = _fitted(h, target, self.classes)
        return float((h.argmax(axis=-1) == target.argmax(axis=-1)).mean())


@dataclass(frozen=True)
class Logistic:
    """Cross-entropy on one logit; the target column holds P(class 1), in {0, 1} or any noisy real number."""

    accuracy_name: ClassVar[str] = "accuracy"

    @property
    def curvature_scale(self) -> float:
        """p(1−p) at p = ½."""
        return 0.25

    def encode(self, labels: Array, dtype: Any = np.float32) -> Array:
        """A column of 0 and 1."""
        return _binary_column(labels, dtype)

    def sample_losses(self, h: Array, target: Array) -> Array:
        """log(1 + e^h) − ỹ h."""
        target = _fitted(h, target, 1)
        return np.asarray((np.logaddexp(h, h.dtype.type(0)) - target * h).sum(axis=-1))

    def value(self, h: Array, target: Array) -> float:
        """Mean of `sample_losses`."""
        return float(self.sample_losses(h, target).mean())

    def gradient(self, h: Array, target: Array) -> Array:
        """(p − ỹ)/B: the two-class case of p·Σ_k ỹ_k − ỹ with ỹ_0 + ỹ_1 = 1."""
        target = _fitted(h, target, 1)
        return (_sigmoid(h) - target) / _batch(h)

    def curvature_product(self, h: Array, a: Array) -> Array:
        """p(1−p) a / B."""
        _fitted(h, a, 1)
        return _sigmoid(h) * _sigmoid(-h) * a / _batch(h)

    def predict(self, h: Array) -> Array:
        """P(class 1)."""
        return _sigmoid(h)

    def accuracy(self, h: Array, target: Array) -> float:
        """Share of right signs; a tie (h = 0) is class 0, as scikit-learn has it."""
        target = _fitted(h, target, 1)
        return float(((h > 0) == (target > 0.5)).mean())


@dataclass(frozen=True)
class Squared:
    """Regression: ½‖h − y‖² for each sample, any number of columns."""

    accuracy_name: ClassVar[str] = "r2"

    @property
    def curvature_scale(self) -> float:
        """The Hessian is the identity."""
        return 1.0

    def encode(self, labels: Array, dtype: Any = np.float32) -> Array:
        """Labels as rows; a vector becomes one column."""
        labels = np.asarray(labels, dtype=dtype)
        return labels[:, None] if labels.ndim == 1 else labels

    def sample_losses(self, h: Array, target: Array) -> Array:
        """½‖h − y‖²."""
        target = _fitted(h, target, h.shape[-1])
        return np.asarray(0.5 * np.square(h - target).sum(axis=-1))

    def value(self, h: Array, target: Array) -> float:
        """Mean of `sample_losses`."""
        return float(self.sample_losses(h, target).mean())

    def gradient(self, h: Array, target: Array) -> Array:
        """(h − y)/B."""
        return (h - _fitted(h, target, h.shape[-1])) / _batch(h)

    def curvature_product(self, h: Array, a: Array) -> Array:
        """a/B."""
        _fitted(h, a, h.shape[-1])
        return np.broadcast_to(a, h.shape) / _batch(h)

    def predict(self, h: Array) -> Array:
        """The value itself."""
        return h

    def accuracy(self, h: Array, target: Array) -> float:
        """R², the share of the target's variance that is explained; nan for a constant target."""
        target = _fitted(h, target, h.shape[-1])
        spread = np.square(target - target.mean(axis=-2, keepdims=True)).sum(axis=-2).mean()
        residual = np.square(h - target).sum(axis=-2).mean()
        return float(1 - residual / spread) if spread > 0 else float("nan")


CleanLoss = Softmax | Logistic | Squared


def clean_loss(name: str, outputs: int) -> CleanLoss:
    """The loss of exact labels that a spec names; `outputs` are the columns of h."""
    match name:
        case "softmax":
            return Softmax(outputs)
        case "logistic":
            return Logistic()
    return Squared()


@dataclass(frozen=True, eq=False)
class ForwardCorrectedSoftmax:
    """−log Σ_k P(ỹ|k) p_k: the likelihood of a randomised label, minimised by the clean class probabilities.

    The target is the noisy one-hot row. `predict` and `accuracy` speak of the clean classes. The Hessian
    depends on the label and is not PSD, so `curvature_product` is the Fisher (Gauss–Newton) one.
    """

    transition: NDArray[np.float64]
    """P[ỹ, k], C×C: entry (noisy, true); columns are strictly positive and sum to 1."""

    accuracy_name: ClassVar[str] = "accuracy"

    def __post_init__(self) -> None:
        table = np.asarray(self.transition, dtype=np.float64)
        square = table.ndim == 2 and table.shape[0] == table.shape[1] >= 2
        if not square or not np.allclose(table.sum(axis=0), 1, atol=1e-9) or table.min() < 1e-30:
            raise TransitionNotStochastic(
                "The transition must be C×C with strictly positive columns that sum to 1; "
                "take it from the label mechanism (without noise, use Softmax)."
            )
        object.__setattr__(self, "transition", table)

    @property
    def classes(self) -> int:
        """C."""
        return int(self.transition.shape[0])

    def encode(self, labels: Array, dtype: Any = np.float32) -> Array:
        """One-hot rows of integer labels (clean or noisy)."""
        return one_hot(labels, self.classes, dtype)

    def sample_losses(self, h: Array, target: Array) -> Array:
        """−Σ_j ỹ_j log p̃_j with p̃ = P p."""
        target = _fitted(h, target, self.classes)
        return np.asarray(-(target * np.log(self._noisy_probabilities(_softmax(h)))).sum(axis=-1))

    def value(self, h: Array, target: Array) -> float:
        """Mean of `sample_losses`."""
        return float(self.sample_losses(h, target).mean())

    def gradient(self, h: Array, target: Array) -> Array:
        """(p·Σ_j ỹ_j − p ∘ Pᵀ(ỹ/p̃))/B: the label's posterior takes the label's place."""
        target = _fitted(h, target, self.classes)
        p = _softmax(h)
        posterior = p * ((target / self._noisy_probabilities(p)) @ self._table(h))
        return np.asarray((p * target.sum(axis=-1, keepdims=True) - posterior) / _batch(h))

    def curvature_product(self, h: Array, a: Array) -> Array:
        """Jᵀ diag(1/p̃) J a / B with J = ∂p̃/∂h: PSD, and free of the label."""
        _fitted(h, a, self.classes)
        p = _softmax(h)
        table = self._table(h)
        pushed = _softmax_jacobian(p, a) @ table.T
        pulled = (pushed / self._noisy_probabilities(p)) @ table
        return _softmax_jacobian(p, pulled) / _batch(h)

    def predict(self, h: Array) -> Array:
        """Clean class probabilities p."""
        return _softmax(h)

    def accuracy(self, h: Array, target: Array) -> float:
        """Share of rows whose largest logit is the target's largest entry."""
        return Softmax(self.classes).accuracy(h, target)

    def _table(self, h: Array) -> Array:
        return self.transition.astype(h.dtype, copy=False)

    def _noisy_probabilities(self, p: Array) -> Array:
        return np.asarray(p @ self._table(p).T)


@dataclass(frozen=True)
class ForwardCorrectedLogistic:
    """`ForwardCorrectedSoftmax` for one logit and a label that was flipped with a known probability."""

    flip: float
    """P(ỹ ≠ y), strictly between 0 and ½."""

    accuracy_name: ClassVar[str] = "accuracy"

    def __post_init__(self) -> None:
        if not 0 < self.flip < 0.5:
            raise TransitionNotStochastic(
                f"The flip probability must lie strictly between 0 and 1/2, not {self.flip}; "
                "take it from the label mechanism (without noise, use Logistic)."
            )

    def encode(self, labels: Array, dtype: Any = np.float32) -> Array:
        """A column of 0 and 1 (clean or noisy)."""
        return _binary_column(labels, dtype)

    def sample_losses(self, h: Array, target: Array) -> Array:
        """−ỹ log p̃ − (1−ỹ) log(1−p̃) with p̃ = flip + (1 − 2·flip) p."""
        target = _fitted(h, target, 1)
        losses = -target * np.log(self._mixed(h)) - (1 - target) * np.log(self._mixed(-h))
        return np.asarray(losses.sum(axis=-1))

    def value(self, h: Array, target: Array) -> float:
        """Mean of `sample_losses`."""
        return float(self.sample_losses(h, target).mean())

    def gradient(self, h: Array, target: Array) -> Array:
        """(p̃ − ỹ) / (p̃(1−p̃)) · (1 − 2·flip) p(1−p) / B."""
        target = _fitted(h, target, 1)
        one, zero = self._mixed(h), self._mixed(-h)
        return np.asarray(((1 - target) / zero - target / one) * self._slope(h) / _batch(h))

    def curvature_product(self, h: Array, a: Array) -> Array:
        """Fisher: ((1 − 2·flip) p(1−p))² / (p̃(1−p̃)) · a / B."""
        _fitted(h, a, 1)
        return np.asarray(np.square(self._slope(h)) / (self._mixed(h) * self._mixed(-h)) * a / _batch(h))

    def predict(self, h: Array) -> Array:
        """Clean P(class 1)."""
        return _sigmoid(h)

    def accuracy(self, h: Array, target: Array) -> float:
        """Share of right signs; a tie is class 0."""
        return Logistic().accuracy(h, target)

    def _mixed(self, h: Array) -> Array:
        return self.flip + (1 - 2 * self.flip) * _sigmoid(h)

    def _slope(self, h: Array) -> Array:
        return (1 - 2 * self.flip) * _sigmoid(h) * _sigmoid(-h)


@dataclass(frozen=True)
class ForwardCorrectedBits:
    """Cross-entropy of unary-encoded labels: a noisy bit for each class, P(bit_k = 1) = q + (s − q) p_k.

    The sum over classes of the bits' own likelihoods, −Σ_k [v_k log m_k + (1 − v_k) log(1 − m_k)]: minimised by the
    clean class probabilities, bounded below, and with a PSD Gauss–Newton product in closed form. Minimising the plain
    cross-entropy of de-biased bits is none of these, and fails where the noise is large.
    """

    classes: int
    """C, at least 2."""
    own: float
    """s, the probability that the true class's bit is set."""
    other: float
    """q < s, the probability that any other bit is set."""

    accuracy_name: ClassVar[str] = "accuracy"

    def __post_init__(self) -> None:
        if not 0 < self.other < self.own < 1:
            raise TransitionNotStochastic(
                f"The bits need 0 < other < own < 1, not {self.other} and {self.own}; take them from the mechanism."
            )

    def encode(self, labels: Array, dtype: Any = np.float32) -> Array:
        """One-hot rows of integer labels."""
        return one_hot(labels, self.classes, dtype)

    def sample_losses(self, h: Array, target: Array) -> Array:
        """−Σ_k [v_k log m_k + (1 − v_k) log(1 − m_k)] with m = q + (s − q) p."""
        bits = _fitted(h, target, self.classes)
        mixed = self._mixed(_softmax(h))
        return np.asarray(-(bits * np.log(mixed) + (1 - bits) * np.log1p(-mixed)).sum(axis=-1))

    def value(self, h: Array, target: Array) -> float:
        """Mean of `sample_losses`."""
        return float(self.sample_losses(h, target).mean())

    def gradient(self, h: Array, target: Array) -> Array:
        """(diag(p) − ppᵀ) (s − q)(m − v)/(m(1 − m)) / B."""
        bits = _fitted(h, target, self.classes)
        p = _softmax(h)
        mixed = self._mixed(p)
        slope = (self.own - self.other) * (mixed - bits) / (mixed * (1 - mixed))
        return _softmax_jacobian(p, slope) / _batch(h)

    def curvature_product(self, h: Array, a: Array) -> Array:
        """Jᵀ diag(1/(m(1 − m))) J a / B with J = ∂m/∂h: PSD, and free of the label."""
        _fitted(h, a, self.classes)
        p = _softmax(h)
        mixed = self._mixed(p)
        weight = (self.own - self.other) ** 2 / (mixed * (1 - mixed))
        return _softmax_jacobian(p, weight * _softmax_jacobian(p, a)) / _batch(h)

    def predict(self, h: Array) -> Array:
        """Clean class probabilities p."""
        return _softmax(h)

    def accuracy(self, h: Array, target: Array) -> float:
        """Share of rows whose largest logit is the largest entry of a clean one-hot row."""
        return Softmax(self.classes).accuracy(h, target)

    def _mixed(self, p: Array) -> Array:
        return self.other + (self.own - self.other) * p


def unbiased_target(loss: Loss, target: Array) -> Array:
    """Target rows whose mean over the noise is the true row; as they are where they have that already."""
    match loss:
        case ForwardCorrectedSoftmax(transition=table):
            return np.asarray(target @ np.linalg.inv(table).T)
        case ForwardCorrectedLogistic(flip=flip):
            return np.asarray((target - flip) / (1 - 2 * flip))
        case ForwardCorrectedBits(own=own, other=other):
            return np.asarray((target - other) / (own - other))
    return target


def noise_floor(loss: Loss) -> float:
    """The mean loss of a model that knows the truth: what the noise of the labels alone costs; 0 for exact labels."""
    match loss:
        case ForwardCorrectedSoftmax(transition=table):
            return float(-(table * np.log(table)).sum(axis=0).mean())
        case ForwardCorrectedLogistic(flip=flip):
            return _entropy(flip)
        case ForwardCorrectedBits(classes=classes, own=own, other=other):
            return _entropy(own) + (classes - 1) * _entropy(other)
    return 0.0


def noise_share(loss: Loss) -> float:
    """How much of the loss of a model that knows nothing is noise of the labels: 0 for exact ones, near 1 for coins."""
    match loss:
        case ForwardCorrectedSoftmax(classes=classes) | ForwardCorrectedBits(classes=classes):
            columns, ignorant = classes, np.zeros((classes, classes))
        case ForwardCorrectedLogistic():
            return noise_floor(loss) / float(np.log(2))
        case _:
            return 0.0
    if isinstance(loss, ForwardCorrectedSoftmax):
        return noise_floor(loss) / loss.value(ignorant, np.eye(columns))
    bits = np.full((1, columns), loss.other + (loss.own - loss.other) / columns)
    return noise_floor(loss) / loss.value(np.zeros((1, columns)), bits)


def _entropy(probability: float) -> float:
    """Of a bit, in nats."""
    return float(-probability * np.log(probability) - (1 - probability) * np.log1p(-probability))


def one_hot(labels: Array, classes: int, dtype: Any = np.float32) -> Array:
    """Return rows e_b for integer labels b in 0 … classes−1."""
    labels = _whole(labels)
    if labels.size and (labels.min() < 0 or labels.max() >= classes):
        raise ClassOutOfRange(f"Labels must lie in 0 … {classes - 1}; re-index them or raise the number of classes.")
    rows = np.zeros((labels.size, classes), dtype=dtype)
    rows[np.arange(labels.size), labels] = 1
    return rows


def _binary_column(labels: Array, dtype: Any) -> Array:
    labels = _whole(labels)
    if labels.size and (labels.min() < 0 or labels.max() > 1):
        raise ClassOutOfRange("A single logit takes labels 0 and 1; map −1 to 0 when loading, or use Softmax.")
    return labels[:, None].astype(dtype)


def _whole(labels: Array) -> NDArray[np.int64]:
    flat = np.asarray(labels).reshape(-1)
    whole = flat.astype(np.int64)
    if not np.array_equal(whole, flat):
        raise ClassOutOfRange("Class labels must be whole numbers; for a regression use Squared.")
    return whole


def _fitted(h: Array, target: Array, columns: int) -> Array:
    """Check that `target` rows match `h` and bring them to its dtype."""
    if h.ndim < 2 or h.shape[-1] != columns or target.shape not in (h.shape, h.shape[-2:]):
        raise LossShapeMismatch(
            f"Embedding {h.shape} and rows {target.shape} do not fit a loss with {columns} columns; "
            "give h as (…, B, C) and the rows as (B, C) or in the shape of h."
        )
    return target.astype(h.dtype, copy=False)


def _batch(h: Array) -> int:
    return int(h.shape[-2])


def _softmax(h: Array) -> Array:
    # Classes come first meanwhile: numpy reduces along a short last axis several times more slowly.
    powers = h.transpose(-1, *range(h.ndim - 1)).copy()
    powers -= powers.max(axis=0)
    np.exp(powers, out=powers)
    powers /= powers.sum(axis=0)
    return powers.transpose(*range(1, h.ndim), 0).copy()


def _log_softmax(h: Array) -> Array:
    shifted = h - h.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def _softmax_jacobian(p: Array, a: Array) -> Array:
    """(diag(p) − ppᵀ) a, the derivative of softmax along a."""
    weighted = p * a
    return np.asarray(weighted - p * weighted.sum(axis=-1, keepdims=True))


def _sigmoid(h: Array) -> Array:
    # exp of a non-positive number cannot overflow
    small = np.exp(-np.abs(h))
    return np.asarray(np.where(h >= 0, 1, small) / (1 + small))
