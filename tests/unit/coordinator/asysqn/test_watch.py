import numpy as np
import pytest

from parley.coordinator.asysqn.watch import (
    ObjectiveNotFinite,
    RoundsWentBack,
    Watch,
    accuracy,
    objective,
    observe,
)
from parley.numerics.linear_losses import Logistic

LABELS = np.array([1.0, -1.0, 1.0])


def test_the_objective_of_zero_weights_is_log_two():
    assert objective(Logistic(), np.zeros(3), LABELS, 1e-4, 0.0) == pytest.approx(np.log(2))


def test_the_objective_adds_the_penalty_of_all_blocks():
    assert objective(Logistic(), np.zeros(3), LABELS, 0.5, 8.0) == pytest.approx(np.log(2) + 2.0)


def test_an_objective_that_is_not_finite_is_an_error_with_the_remedy():
    with pytest.raises(ObjectiveNotFinite, match="standardise"):
        objective(Logistic(), np.array([0.0, np.nan, 0.0]), LABELS, 1e-4, 0.0)


def test_a_row_of_zeros_counts_as_a_prediction_of_minus_one():
    assert accuracy(np.array([0.0, 0.0, 1.0]), LABELS) == pytest.approx(2 / 3)


def test_the_watch_notes_the_first_round_at_which_each_target_was_met():
    watch = Watch(targets=(0.1, 0.01), optimum=1.0)
    for rounds, value in ((40, 1.5), (80, 1.05), (120, 1.08), (160, 1.005), (200, 1.001)):
        watch = observe(watch, rounds=rounds, value=value)
    assert dict(watch.reached) == {0.1: 80, 0.01: 160}
    assert watch.met


def test_a_watch_without_targets_is_never_met_and_keeps_the_best_value():
    watch = Watch()
    for rounds, value in ((1, 3.0), (2, 2.0), (3, 2.0), (4, 2.1)):
        watch = observe(watch, rounds=rounds, value=value)
    assert not watch.met
    assert watch.best == 2.0


def test_a_late_look_is_refused():
    watch = observe(Watch(), rounds=10, value=1.0)
    with pytest.raises(RoundsWentBack, match="drop the late look"):
        observe(watch, rounds=9, value=0.9)
