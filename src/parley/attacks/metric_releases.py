"""Labels from metrics: one row's accuracy, those of two or three sets together, and the exact loss of a small set."""

from itertools import product

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from parley.attacks.findings import Finding, stopped, unbounded
from parley.attacks.stand_in import StandIn
from parley.privacy.evaluations import (
    Evaluation,
    EvaluationPolicy,
    EvaluationRefused,
    EvaluationRegister,
    EvaluationsSpent,
    Order,
    members_of,
    rounding_unit,
)

SINGLE, DIFFERENCE, LOSS = "accuracy of one row", "difference of two accuracies", "labels from an exact loss"
COMBINED = "combination of three accuracies"


def read_off_metrics(subject: StandIn, policy: EvaluationPolicy | None = None) -> list[Finding]:
    """What a client with the permission to start runs reads off their metrics."""
    if subject.spec.train.layout != "vertical":
        return []  # the labels are the parties' own, and so are the floors
    policy = policy or EvaluationPolicy()
    rows = [str(row) for row in range(subject.rows)]
    half, least = (len(rows) - 1) // 2, policy.minimum_rows
    found = [_refused(SINGLE, policy, rows[:1]), _refused(DIFFERENCE, policy, rows[:-1], rows)]
    if half >= least:
        found.append(_refused(COMBINED, policy, [rows[0], *rows[-half:]], rows[1:-half], rows[1:]))
    return [*found, _from_loss(policy, np.random.default_rng(3))]


def labels_from_loss(loss: float, scores: NDArray[np.float64], tolerance: float) -> list[tuple[int, ...]]:
    """Every labelling of binary rows under which their mean log-loss is the one that was told.

    `scores` are the model's probabilities of class 1. Exponential in the rows: for sets of a dozen.
    """
    costs = -np.log(np.stack([1 - scores, scores]))
    numbers = range(len(scores))
    return [
        labels
        for labels in product((0, 1), repeat=len(scores))
        if abs(float(np.mean([costs[label, row] for row, label in zip(numbers, labels, strict=True)])) - loss)
        <= tolerance
    ]


def _refused(attack: str, policy: EvaluationPolicy, *sets: list[str]) -> Finding:
    register = EvaluationRegister(sa.create_engine("sqlite://", poolclass=sa.StaticPool))
    try:
        for number, rows in enumerate(sets):
            register.reserve(f"run-{number}", Order("labels", "test", members_of(rows), 1), policy)
    except (EvaluationRefused, EvaluationsSpent) as refusal:
        floor = "minimum_evaluation" if isinstance(refusal, EvaluationRefused) else "evaluations_per_row"
        return stopped(attack, "client", "no figure left", f"{floor} of the coordinator's labels")
    finally:
        register.close()
    if policy.epsilon is not None:
        return stopped(attack, "client", "a figure with noise left", f"evaluation_epsilon {policy.epsilon:g}")
    remedy = "raise minimum_evaluation of the coordinator's labels"
    return unbounded(attack, "client", "the true label of the row", 1.0, 0.5, remedy)


def _from_loss(policy: EvaluationPolicy, rng: np.random.Generator) -> Finding:
    """The loss of the smallest set that may be measured, for as many of its rows as can be tried out."""
    rows, unknown = max(policy.minimum_rows, 12), 12
    scores, labels = rng.uniform(0.05, 0.95, rows), rng.integers(0, 2, rows)
    exact = float(np.mean(-np.log(np.where(labels == 1, scores, 1 - scores))))
    released = Evaluation(rows).release(0, {"loss": exact})["loss"] if policy.epsilon is None else None
    if released is None:
        return stopped(LOSS, "client", "no loss left", f"evaluation_epsilon {policy.epsilon}")
    known = float(np.sum(-np.log(np.where(labels == 1, scores, 1 - scores)[unknown:])))
    coarse = rounding_unit(released, rows) / 2 + 1e-12
    fitting = labels_from_loss((released * rows - known) / unknown, scores[:unknown], coarse * rows / unknown)
    told = f"{len(fitting)} of {2**unknown} labellings of {unknown} rows fit the loss over {rows} rows"
    certain = float(len(fitting) == 1)
    return unbounded(LOSS, "client", told, certain, 0.5, "set evaluation_epsilon for the coordinator's labels")
