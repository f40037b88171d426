"""AsySQN at the coordinator: slopes from labels, a convergence watch without a barrier, the utilisation table.

Q. Zhang, B. Gu, C. Deng, S. Gu, L. Bo, J. Pei, H. Huang: AsySQN: Faster Vertical Federated Learning
Algorithms with Better Computation Resource Utilization, KDD 2021. Problem (P), Eq. 17, Section 6.3, Table 5.

| paper     | code                | shape | held by             | leaves?                                     |
|-----------|---------------------|-------|---------------------|---------------------------------------------|
| θ         | `theta`             | (n,)  | coordinator (a sum) | no                                          |
| y         | `labels`            | (n,)  | coordinator         | no                                          |
| ∂L/∂θ     | `batch_derivative`  | (b,)  | coordinator         | to the requester: it determines the labels  |
| f(w)      | `objective`         | ()    | coordinator         | as an event; label-dependent                |
| Σ‖w_ℓ‖²   | `squared_norm`      | ()    | coordinator (a sum) | no                                          |
| CT₂, CRUI | `ComputeTime`, `utilisation_table` | – | coordinator | as a report                               |

The objective is read from one sum of θ over all rows and one sum of ‖w_ℓ‖². Nobody waits for it: parties go on
stepping while the sum climbs the tree, so the value belongs to a w that mixes nearby moments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from parley.numerics.linear_losses import LinearLoss, predict_sign

Vector = NDArray[np.float64]
Rows = NDArray[np.int64]


class ObjectiveNotFinite(ArithmeticError):
    """The objective is NaN or infinite: some party diverged."""


class RoundsWentBack(ValueError):
    """The watch was shown an older round than it has already seen."""


class UtilisationNotComparable(ValueError):
    """Two timings cannot be divided by each other."""


def batch_derivative(loss: LinearLoss, labels: Vector, rows: Rows, theta: Vector) -> Vector:
    """Return ∂L/∂θ on the rows of one request, where only the coordinator has labels.

    It is a label release: for a logistic loss its sign is the label. The gate decides whether it may leave.
    """
    return loss.derivative(theta, labels[rows])


def objective(loss: LinearLoss, theta: Vector, labels: Vector, regularisation: float, squared_norm: float) -> float:
    """Return f(w) = (1/n)Σ L(θ_i, y_i) + (λ/2)Σ_ℓ‖w_ℓ‖² (Eq. 17) from sums alone."""
    with np.errstate(over="ignore", invalid="ignore"):
        value = float(np.mean(loss.value(theta, labels))) + 0.5 * regularisation * squared_norm
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
    looks: int = 0
    """How often the objective was read."""
    looks_since_best: int = 0
    """Looks since `best` last fell by more than the tolerance."""

    @property
    def met(self) -> bool:
        """Whether there were targets and every one was reached."""
        return bool(self.targets) and all(target in self.reached for target in self.targets)


def observe(watch: Watch, *, rounds: int, value: float, tolerance: float = 0.0) -> Watch:
    """Take one look at the objective: note targets met, the best value, and whether it still falls."""
    if rounds < watch.rounds:
        raise RoundsWentBack(f"round {rounds} comes after round {watch.rounds}; drop the late look")
    if not np.isfinite(value):
        raise ObjectiveNotFinite(f"the objective at round {rounds} is not finite; stop the run and lower the step")
    fell = value < watch.best - tolerance
    newly = {t: rounds for t in watch.targets if t not in watch.reached and value - (watch.optimum or 0.0) <= t}
    return replace(
        watch,
        rounds=rounds,
        value=value,
        best=min(watch.best, value),
        reached=MappingProxyType({**watch.reached, **newly}),
        looks=watch.looks + 1,
        looks_since_best=0 if fell else watch.looks_since_best + 1,
    )


@dataclass(frozen=True)
class ComputeTime:
    """One timed run, synchronous or asynchronous."""

    estimator: str
    """SGD, SVRG or SAGA: a row of Table 5."""
    data: str
    """The data set: a column of Table 5."""
    synchronous: bool
    """SynSQN if true, AsySQN if false."""
    iterations: int
    """Own updates, summed over parties; both runs of a cell must make the same number."""
    training_seconds: float
    """Wall time of the run."""
    communication_seconds: float
    """The part of it spent on messages; CT₂ leaves it out."""

    @property
    def compute_seconds(self) -> float:
        """CT₂: the overall training time less the communication time (Section 6.3)."""
        return self.training_seconds - self.communication_seconds


@dataclass(frozen=True)
class Utilisation:
    """One cell of Table 5."""

    estimator: str
    data: str
    synchronous_seconds: float
    asynchronous_seconds: float

    @property
    def improvement(self) -> float:
        """CRUI = CT₂ of SynSQN / CT₂ of AsySQN; below 1 the synchronous run makes the better use."""
        return self.synchronous_seconds / self.asynchronous_seconds


def utilisation_table(timings: Iterable[ComputeTime]) -> tuple[Utilisation, ...]:
    """Return the cells of Table 5 in order of appearance, from one timing of each kind per cell."""
    cells: dict[tuple[str, str], dict[bool, ComputeTime]] = {}
    for timing in timings:
        cell = cells.setdefault((timing.estimator, timing.data), {})
        if timing.synchronous in cell:
            raise UtilisationNotComparable(
                f"{timing.estimator} on {timing.data} was timed twice; take the median first"
            )
        if not 0.0 < timing.compute_seconds < np.inf:
            raise UtilisationNotComparable(
                f"{timing.estimator} on {timing.data} has no computation time left; measure a longer run"
            )
        cell[timing.synchronous] = timing
    return tuple(_cell(estimator, data, cell) for (estimator, data), cell in cells.items())


def expected_improvement(parties: int, straggler: float) -> float:
    """Return CRUI = (q − 1 + s)/(q·s): one party's own loop runs at speed s, its answers at full speed.

    A synchronous round lasts 1/s and makes q updates; in that time asynchronous parties make (q − 1)/s + 1.
    """
    if parties < 1 or not 0.0 < straggler <= 1.0:
        raise UtilisationNotComparable(f"{parties} parties at speed {straggler}: give parties ≥ 1 and 0 < s ≤ 1")
    return (parties - 1 + straggler) / (parties * straggler)


def _cell(estimator: str, data: str, cell: Mapping[bool, ComputeTime]) -> Utilisation:
    if len(cell) != 2:
        raise UtilisationNotComparable(f"{estimator} on {data} needs a synchronous and an asynchronous timing")
    if cell[True].iterations != cell[False].iterations:
        raise UtilisationNotComparable(
            f"{estimator} on {data} made {cell[True].iterations} and {cell[False].iterations} iterations; "
            "CRUI compares equal numbers"
        )
    return Utilisation(estimator, data, cell[True].compute_seconds, cell[False].compute_seconds)
