"""Label inference from released gradients: what a party can guess, against what ε allows.

Whoever sees an ε-DP release of a label that is uniform on C classes guesses it with probability at most
e^ε/(e^ε + C − 1), the cap. The adversary knows everything but the labels and the noise key: the logits, the mechanism
with its parameters, and some of the true labels.

    norm        the class whose own gradient has the released length
    sign        the class with the most negative entry
    clustering  k-means on the released rows, clusters named by the known labels
    residual    the class whose line θ_k + u·Σ_j θ_j passes closest
    replay      recover ỹ to the last bit from the released floats, then take its likeliest class
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans

from parley.numerics.losses import ForwardCorrectedBits, Loss, Softmax
from parley.privacy.label_mechanisms import LabelMechanism, LaplaceRows, RandomisedLabels, UnaryLabels
from parley.privacy.noise import GRID

Array = NDArray[Any]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class View:
    """What the adversary sees of N records over T releases."""

    gradients: Array
    """T×N×C, θ̃ of each sample (times the batch size)."""
    logits: Array
    """T×N×C, h."""
    mechanism: LabelMechanism | None
    """The noise and its parameters; none where it is not one of ours."""
    loss: Loss
    """The loss whose gradients these are."""
    known: Labels
    """True classes of the first tenth of the records."""

    @property
    def probabilities(self) -> Array:
        """p, T×N×C."""
        return Softmax(self.logits.shape[-1]).predict(self.logits)


Attack = Callable[[View, np.random.Generator], Labels]


def norm_attack(view: View, rng: np.random.Generator) -> Labels:  # noqa: ARG001
    """Guess the class whose own gradient p − e_k is as long as the released one."""
    p = view.probabilities
    squared = np.square(p).sum(axis=-1, keepdims=True) - 2 * p + 1
    released = np.linalg.norm(view.gradients, axis=-1, keepdims=True)
    return np.asarray(np.abs(np.sqrt(squared) - released).sum(axis=0).argmin(axis=-1))


def sign_attack(view: View, rng: np.random.Generator) -> Labels:  # noqa: ARG001
    """Guess the class whose entry is the most negative: without noise only the label's is below zero."""
    return np.asarray(view.gradients.sum(axis=0).argmin(axis=-1))


def clustering_attack(view: View, rng: np.random.Generator) -> Labels:
    """Cluster the released rows, less what the logits explain; name each cluster by the labels it is known to hold."""
    classes = view.gradients.shape[-1]
    rows = (view.gradients - view.probabilities).mean(axis=0)
    clusters = KMeans(classes, n_init=4, random_state=int(rng.integers(2**31))).fit_predict(rows)
    votes = np.zeros((classes, classes))
    np.add.at(votes, (clusters[: view.known.size], view.known), 1)
    return np.asarray(votes.argmax(axis=1)[clusters])


def residual_attack(view: View, rng: np.random.Generator) -> Labels:  # noqa: ARG001
    """Guess the class whose line θ_k + u·Σ_j θ_j, u any number, the released row is closest to."""
    p = view.probabilities.astype(np.float64)
    classes = p.shape[-1]
    along = classes * p - 1  # Σ_j θ_j
    length = np.linalg.norm(along, axis=-1, keepdims=True)
    along = np.divide(along, length, out=np.zeros_like(along), where=length > 1e-9)
    distances = []
    for k in range(classes):
        offset = view.gradients - p + np.eye(classes)[k]
        across = offset - along * (offset * along).sum(axis=-1, keepdims=True)
        distances.append(np.linalg.norm(across, axis=-1).sum(axis=0))
    return np.asarray(np.argmin(distances, axis=0))


def replay_attack(view: View, rng: np.random.Generator) -> Labels:
    """Recover each release's ỹ exactly from the released floats, and take the class of the largest likelihood."""
    if view.mechanism is None:
        return residual_attack(view, rng)
    scores = np.zeros(view.gradients.shape[1:])
    seen: list[Array] = []
    for gradients, logits in zip(view.gradients, view.logits, strict=True):
        rows = recovered_rows(view, gradients, logits)
        if any(np.array_equal(rows, earlier) for earlier in seen):
            continue  # the same draw again says nothing new
        seen.append(rows)
        scores += log_likelihoods(view.mechanism, rows)
    best = scores >= scores.max(axis=1, keepdims=True) - 1e-9
    return np.asarray((best * rng.random(best.shape)).argmax(axis=1))  # ties are broken by lot


ATTACKS: dict[str, Attack] = {
    "norm": norm_attack,
    "sign": sign_attack,
    "clustering": clustering_attack,
    "residual": residual_attack,
    "replay": replay_attack,
}


def recovered_rows(view: View, gradients: Array, logits: Array) -> Array:
    """Invert one release: the noisy rows ỹ from which its gradients were computed."""
    classes = logits.shape[-1]
    p = Softmax(classes).predict(logits).astype(np.float64)
    match view.mechanism:
        case LaplaceRows() if classes > 2:
            return _rows_on_the_grid(p, gradients, 8 * math.sqrt(classes * view.mechanism.mean_variance()))
        case LaplaceRows():
            return np.asarray(np.rint((p - gradients) * GRID) / GRID)  # ỹ_0 + ỹ_1 = 1
        case UnaryLabels():
            return _bits(view.loss, p, gradients)
        case _:
            candidates = [view.loss.gradient(logits, _tiled(k, logits)) * len(logits) for k in range(classes)]
            matches = [(candidate == gradients).all(axis=-1) for candidate in candidates]
            return np.asarray(np.eye(classes)[np.argmax(matches, axis=0)])


def log_likelihoods(mechanism: LabelMechanism, rows: Array) -> Array:
    """log P(ỹ | k) for each class k, up to a constant of the row."""
    match mechanism:
        case LaplaceRows():
            unit = mechanism.event.unit_epsilon
            if mechanism.classes == 2:
                return np.stack([-unit * np.abs(rows[:, 1] - k) for k in (0, 1)], axis=1)
            return np.asarray(-unit * (np.abs(rows - 1) - np.abs(rows)))
        case RandomisedLabels():
            return np.asarray(np.log(rows @ mechanism.transition))
        case UnaryLabels():
            q = mechanism.other_probability
            return np.where(rows > 0.5, math.log(0.5 / q), math.log(0.5 / (1 - q)))
        case _:
            return np.asarray(rows)


def cap(epsilon: float, classes: int) -> float:
    """The best guess that ε-DP leaves of a uniform label."""
    return 1 / (1 + (classes - 1) * math.exp(-epsilon))


def margin(level: float, records: int) -> float:
    """Four standard errors of a share: passed by chance once in 30 000 times."""
    return 4 * math.sqrt(max(level * (1 - level), 1 / records) / records)


def _rows_on_the_grid(p: Array, gradients: Array, reach: float) -> Array:
    """Find Σ_k ỹ_k on the grid such that p·Σ − θ̃ is on the grid in every column; generic p admit one."""
    rows = np.empty(p.shape)
    masses = np.arange(-math.ceil(reach * GRID), math.ceil(reach * GRID) + 1) / GRID
    for start in range(0, len(p), 64):
        part = slice(start, start + 64)
        # four columns are enough to tell the right sum from thousands of wrong ones
        steps = (masses[:, None, None] * p[part, :4] - gradients[part, :4]) * GRID
        best = masses[np.abs(steps - np.rint(steps)).sum(axis=-1).argmin(axis=0)]
        rows[part] = np.rint((best[:, None] * p[part] - gradients[part]) * GRID) / GRID
    return rows


def _bits(loss: Loss, p: Array, gradients: Array) -> Array:
    """Solve θ̃_k/p_k = s_k(v_k) − Σ_j p_j s_j(v_j) for the bits: guess the first bit, read off the constant, decode."""
    if not isinstance(loss, ForwardCorrectedBits):
        raise TypeError("Unary labels are trained with the bits' likelihood.")
    gain = loss.own - loss.other
    mixed = loss.other + gain * p
    slopes = np.stack([gain / (1 - mixed), -gain / mixed])  # s_k for v_k = 0, 1
    seen = gradients / p
    found, misses = [], []
    for first in (0, 1):
        level = slopes[first][:, :1] - seen[:, :1]
        gaps = np.abs(slopes - seen - level)
        found.append(gaps.argmin(axis=0))
        misses.append((gaps.min(axis=0) * p).sum(axis=-1))
    return np.asarray(np.where((misses[0] <= misses[1])[:, None], found[0], found[1]), dtype=np.float64)


def _tiled(k: int, logits: Array) -> Array:
    return np.tile(np.eye(logits.shape[-1], dtype=logits.dtype)[k], (len(logits), 1))
