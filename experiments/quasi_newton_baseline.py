"""The quasi-Newton framework for vertical logistic regression that the AsySQN paper compares itself with.

K. Yang, T. Fan, T. Chen, Y. Shi, Q. Yang, "A Quasi-Newton Method Based Vertical Federated Learning Framework for
Logistic Regression" (2019), reference [23] of Zhang et al. One place has the whole curvature: each round the parties'
shares of θ on a mini-batch are added up, each party gets the slopes and sends its block of the gradient there, and
gets back its block of the direction; every tenth round a curvature pair is made from a second batch.

A baseline, not a product: all columns are in one array, and what would cross is counted, not sent. It differs from the
original in that nothing is encrypted, the loss is exact where the original takes a Taylor polynomial, and pairs are
damped as AsySQN's are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parley.experiments.asysqn_data import Task, expit
from parley.numerics.lbfgs import Curvature, Damping, Scale, direction, remember
from parley.numerics.streams import batch

Vector = NDArray[np.float64]
NUMBER = 8
"""Bytes of a number that crosses."""


@dataclass(frozen=True)
class QuasiNewton:
    """The settings of a run."""

    step_size: float = 0.35
    step_decay: float = 100.0
    """Rounds to half the step size: the gradient is a mini-batch's."""
    batch_size: int = 1024
    pair_every: int = 10
    rounds: int = 600
    look_every: int = 5
    parties: int = 8
    seed: int = 0


@dataclass(frozen=True)
class Ended:
    """How a run ended."""

    weights: Vector
    reached: Mapping[float, int]
    """Rounds at the first look at which a target was met."""
    numbers_per_round: float
    """Numbers that cross between the parties and the place that has the curvature."""


def run_quasi_newton(task: Task, settings: QuasiNewton, *, optimum: float, targets: tuple[float, ...]) -> Ended:
    """Train until every target is met, or the rounds are over."""
    damping = Damping(scale=Scale.LARGEST)
    memory, reached = Curvature(), dict[float, int]()
    weights = np.zeros(task.features.shape[1])
    previous = weights
    for t in range(settings.rounds):
        gradient = _gradient(task, weights, _rows(task, settings, "rows", t))
        weights = weights - settings.step_size / (1.0 + t / settings.step_decay) * direction(memory, gradient)
        if (t + 1) % settings.pair_every == 0:
            moved = weights - previous
            memory = remember(damping, memory, moved, _curved(task, weights, moved, _rows(task, settings, "pair", t)))
            previous = weights
        if (t + 1) % settings.look_every == 0:
            gap = task.objective(weights) - optimum
            reached |= {target: t + 1 for target in targets if target not in reached and gap <= target}
            if len(reached) == len(targets):
                break
    # shares up and slopes down on a batch, the gradient up and the direction down; a pair takes another batch
    theta = 2.0 * settings.parties * settings.batch_size * (1.0 + 1.0 / settings.pair_every)
    vectors = 2.0 * len(weights) + len(weights) / settings.pair_every
    return Ended(weights, reached, theta + vectors)


def _rows(task: Task, settings: QuasiNewton, kind: str, t: int) -> NDArray[np.int64]:
    return batch(settings.seed, f"quasi-newton.{kind}", 0, t, len(task.labels), settings.batch_size)


def _gradient(task: Task, weights: Vector, rows: NDArray[np.int64]) -> Vector:
    features, labels = task.features[rows], task.labels[rows]
    slopes = -labels * expit(-labels * (features @ weights)) / len(rows)
    return np.asarray(features.T @ slopes).ravel() + task.regularisation * weights


def _curved(task: Task, weights: Vector, moved: Vector, rows: NDArray[np.int64]) -> Vector:
    """The batch's Hessian times the step."""
    features = task.features[rows]
    p = expit(features @ weights)
    return np.asarray(features.T @ (p * (1.0 - p) * (features @ moved))).ravel() / len(rows) + (
        task.regularisation * moved
    )
