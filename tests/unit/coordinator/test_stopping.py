"""Early stopping: which evaluation is the best, and when to give up."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.coordinator.programs import Report
from parley.coordinator.stopping import EarlyStopping, MetricMissing
from parley.numerics.losses import Softmax
from parley.spec.stopping import StopSpec

LOSS = "validation loss"


def followed(values, **terms):
    stopping = EarlyStopping(StopSpec(**terms))
    for k, value in enumerate(values, 1):
        stopping.note(Report(k, {stopping._terms.metric: value}))
    return stopping


def test_a_run_that_gets_better_goes_on():
    stopping = followed([3.0, 2.0, 1.0], patience=1)
    assert not stopping.is_over
    assert stopping.earlier_best is None
    assert stopping.best.k == 3


def test_a_run_ends_after_as_many_evaluations_as_it_may_wait():
    assert not followed([1.0, 2.0, 2.0], patience=3).is_over
    stopping = followed([1.0, 2.0, 2.0, 0.999], patience=3, minimum_change=0.01)
    assert stopping.is_over
    assert stopping.earlier_best.k == 1


@pytest.mark.parametrize(
    ("metric", "best"),
    [
        ("test accuracy", 2),
        ("validation AUC", 2),
        ("test r2", 2),
        ("validation error", 1),
        ("test calibration error", 1),
    ],
)
def test_what_is_best_follows_from_the_name(metric, best):
    assert followed([0.1, 0.9, 0.5], metric=metric).best.k == best


def test_who_knows_better_says_so():
    assert followed([0.1, 0.9], metric="test error", best="largest").best.k == 2


def test_a_value_that_is_no_number_is_never_the_best():
    assert followed([math.nan, 2.0, math.nan, 3.0]).best.k == 2


def test_a_metric_that_is_not_measured_is_told_with_those_that_are():
    with pytest.raises(MetricMissing, match=r"'test acuracy'.*test accuracy"):
        EarlyStopping(StopSpec(metric="test acuracy")).note(Report(1, {"test accuracy": 1.0}))


@given(st.lists(st.integers(0, 5), min_size=1, max_size=12), st.integers(1, 4), st.integers(0, 12))
def test_an_attempt_that_begins_in_the_middle_knows_what_the_one_before_knew(values, patience, middle):
    reports = [Report(k, {LOSS: float(value)}) for k, value in enumerate(values, 1)]
    whole = EarlyStopping(StopSpec(patience=patience), reports)
    resumed = EarlyStopping(StopSpec(patience=patience), reports[:middle])
    for report in reports[middle:]:
        resumed.note(report)
    assert (resumed.best, resumed.is_over, resumed.earlier_best) == (whole.best, whole.is_over, whole.earlier_best)


def test_the_model_that_is_kept_tells_a_party_the_label_of_a_row_whose_scores_it_moves():
    """Why the account of the labels says so of runs with `stop`: nothing but its own addend is changed."""
    generator = np.random.default_rng(2)
    labels, others = generator.integers(0, 4, 30), generator.standard_normal((30, 4))

    def seen_as(guess: int) -> float:
        h = others.copy()
        h[7, guess] += 9.0
        return float((Softmax(4).predict(h).argmax(axis=1) == labels).mean())

    stopping = followed([seen_as(guess) for guess in range(4)], metric="validation accuracy", patience=4)
    assert stopping.best.k - 1 == labels[7]
