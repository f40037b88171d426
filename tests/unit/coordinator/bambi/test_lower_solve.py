"""Newton steps at the coordinator: warm starts, lengths and repeats, on sums that a test makes up."""

import numpy as np
import pytest

from parley.coordinator.bambi.lower_solve import AVERAGING, Lower
from parley.coordinator.bambi.problem import Plan, Problem
from parley.numerics.limbs import to_limbs
from parley.numerics.losses import Softmax
from parley.protocols.bambi.columns import completed, reduced
from parley.protocols.bambi.messages import CurvatureForward, Gradient, LowerForward
from parley.protocols.bambi.settings import NEWTON_REPEATS, BambiSpec
from parley.spec.rows import RowSets

CLASSES, ROWS = 3, 12
TARGET = np.eye(CLASSES)[np.arange(ROWS) % CLASSES]


class Known:
    """Exact targets."""

    def target(self, release, rows):
        return TARGET[rows]


def lower(k=1, batch=None, before=np.inf, **settings):
    spec = BambiSpec.model_validate(
        {
            "algorithm": "bambi",
            "lower": {"batch": batch, "warmup_steps": 0, **settings},
            "implicit": {"newton_rounds": 1, "rounds": 1},
        }
    )
    every = np.arange(ROWS, dtype=np.int64)
    plan = Plan(spec, RowSets(every, every, every[:0]), seed=3)
    return Lower(Problem(plan, Softmax(CLASSES), Known(), CLASSES, "float64", 0, 0), k, before)


def solved(problem, ends, penalty=0.0):
    """Drive a solve: each Newton step ends at the next of `ends`; the outcomes, and how many steps there were."""
    rounds, ends, outcomes = problem.solve(1, None), iter(ends), []
    current = next(rounds)
    while True:
        if isinstance(current.ask, LowerForward):
            sums = np.append(reduced(next(ends), CLASSES - 1).reshape(-1), [penalty, 0.0])
        else:
            assert isinstance(current.ask, CurvatureForward)
            size = len(problem.problem.plan.lower_rows(problem.k, 0)) * (CLASSES - 1)
            sums = np.concatenate([np.ones(size), *to_limbs(np.array([1.0, 1.0]))])
        try:
            current = rounds.send(sums)
        except StopIteration as over:
            outcomes.append(over.value.outcome)
            return [outcome for outcome in outcomes if isinstance(outcome, Gradient)]
        outcomes.append(current.outcome)


def test_a_warm_start_that_fits_is_kept_whole():
    first, _ = solved(lower(), [0.5 * TARGET, TARGET])
    assert first.step_length == 1.0


def test_a_warm_start_that_is_worse_than_none_is_forgotten():
    first, _ = solved(lower(), [-30 * TARGET, TARGET])
    assert first.step_length == 0.0
    assert np.allclose(completed(first.theta[0], CLASSES) * ROWS, 1 / CLASSES - TARGET)


def test_a_warm_start_that_is_too_sure_of_itself_is_shrunk_to_what_fits():
    sure = 40 * np.where(np.arange(ROWS)[:, None] < 8, TARGET, np.roll(TARGET, 1, axis=1))
    first, _ = solved(lower(), [sure, TARGET])
    assert 0 < first.step_length < 0.2


def test_a_step_on_all_rows_is_taken_whole_and_one_on_a_batch_in_part():
    assert solved(lower(k=30), [0 * TARGET, TARGET])[1].step_length == 1.0
    for k, averaging, length in ((30, True, 4 / ROWS), (4, True, 5**-AVERAGING), (30, False, 1.0)):
        problem = lower(k, batch=4, averaging=averaging)
        rows = problem.problem.plan.lower_rows(k, 0)
        assert solved(problem, [0 * TARGET[rows], TARGET[rows]])[1].step_length == pytest.approx(length)


def test_a_step_that_raises_the_loss_is_shortened_until_it_does_not():
    _, second = solved(lower(), [0 * TARGET, -64 * TARGET])
    assert second.step_length < 1e-3


def test_newton_is_repeated_while_it_leaves_y_worse_off_than_before():
    ends = [0 * TARGET, *[0.01 * n * TARGET for n in range(1, 9)]]
    assert len(solved(lower(before=np.inf), ends)) == 2
    assert len(solved(lower(before=0.1), ends)) == 2 + NEWTON_REPEATS
    assert len(solved(lower(before=1.0), ends)) == 2
