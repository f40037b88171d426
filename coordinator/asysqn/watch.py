"""AsySQN at the coordinator: the objective, and a convergence watch without a barrier.

Q. Zhang, B. Gu, C. Deng, S. Gu, L. Bo, J. Pei, H. Huang: AsySQN: Faster Vertical Federated Learning
Algorithms with Better Computation Resource Utilization, KDD 2021. Problem (P), Eq. 17.

| paper     | code                | shape | held by             | leaves?                                     |
|-----------|---------------------|-------|---------------------|---------------------------------------------|
| θ         | `theta`             | (n,)  | coordinator (a sum) | no                                          |
| y         | `labels`            | (n,)  | coordinator         | no                                          |
| f(w)      | `objective`         | ()    | coordinator         | as an event; label-dependent                |
| Σ‖w_ℓ‖²   | `squared_norm`      | ()    | coordinator (a sum) | no                                          |

The objective is read from one sum of θ over all rows and one sum of ‖w_ℓ‖². Nobody waits for it: parties go on
stepping while the sum climbs the tree, so the value belongs to a w that mixes nearby moments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from parley.numerics.linear_losses import LinearLoss, predict_sign

Vector = NDArray[np.float64]


class ObjectiveNotFinite(ArithmeticError):
    """The objective is NaN or infinite: some party diverged."""


class RoundsWentBack(ValueError):
    """The watch was shown an older round than it has already seen."""


def objective(
    loss: LinearLoss,
    theta: Vector,
    labels: Vector,
    regularisation: float,
    squared_norm: float,
    weights: Vector | None = None,
) -> float:
    """Return f(w) = (1/n)Σ L(θ_i, y_i) + (λ/2)Σ_ℓ‖w_ℓ‖² (Eq. 17) from sums alone; `weights` are those of −1 and 1."""
    with np.errstate(over="ignore", invalid="ignore"):
        each = 1.0 if weights is None else np.where(labels > 0, weights[1], weights[0])
        value = float(np.mean(each * loss.value(theta, labels))) + 0.5 * regularisation * squared_norm
    if not np.isfinite(value):
        raise ObjectiveNotFinite(
            "the objective is not finite: standardise the features, winsorise heavy tails, or take a smaller step"
        )
    return value


def accuracy(theta: Vector, labels: Vector) -> float:
    """Return the share of rows whose label is predicted; θ = 0 predicts −1."""
    return float(np.mean(predict_sign(theta) == labels))


@dataclass(frozen=True)
class Watch:
    """What the coordinator remembers of the objective."""

    targets: tuple[float, ...] = ()
    """Sub-optimalities f − f* to wait for, or plain objective values where no optimum is known."""
    optimum: float | None = None
    """f*, where it is known; targets count from 0 otherwise."""
    rounds: int = 0
    """Aggregation calls by any party, at the last look."""
    value: float = float("inf")
    """f at the last look."""
    best: float = float("inf")
    """The least f seen."""
    reached: Mapping[float, int] = field(default_factory=lambda: MappingProxyType({}))
    """Rounds at the first look at which a target was met."""

    @property
    def met(self) -> bool:
        """Whether there were targets and every one was reached."""
        return bool(self.targets) and all(target in self.reached for target in self.targets)


def observe(watch: Watch, *, rounds: int, value: float) -> Watch:
    """Take one look at the objective: note targets met and the best value."""
    if rounds < watch.rounds:
        raise RoundsWentBack(f"round {rounds} comes after round {watch.rounds}; drop the late look")
    if not np.isfinite(value):
        raise ObjectiveNotFinite(f"the objective at round {rounds} is not finite; stop the run and lower the step")
    newly = {t: rounds for t in watch.targets if t not in watch.reached and value - (watch.optimum or 0.0) <= t}
    return replace(
        watch,
        rounds=rounds,
        value=value,
        best=min(watch.best, value),
        reached=MappingProxyType({**watch.reached, **newly}),
    )
