import numpy as np
import pytest

from parley.coordinator.asysqn.watch import (
    ComputeTime,
    ObjectiveNotFinite,
    RoundsWentBack,
    UtilisationNotComparable,
    Watch,
    accuracy,
    batch_derivative,
    expected_improvement,
    objective,
    observe,
    utilisation_table,
)
from parley.numerics.linear_losses import Logistic

LABELS = np.array([1.0, -1.0, 1.0])


def timing(synchronous, seconds, *, iterations=1000, communication=0.0, estimator="SVRG"):
    return ComputeTime(estimator, "a9a", synchronous, iterations, seconds, communication)


def test_the_objective_of_zero_weights_is_log_two():
    assert objective(Logistic(), np.zeros(3), LABELS, 1e-4, 0.0) == pytest.approx(np.log(2))


def test_the_objective_adds_the_penalty_of_all_blocks():
    assert objective(Logistic(), np.zeros(3), LABELS, 0.5, 8.0) == pytest.approx(np.log(2) + 2.0)


def test_an_objective_that_is_not_finite_is_an_error_with_the_remedy():
    with pytest.raises(ObjectiveNotFinite, match="standardise"):
        objective(Logistic(), np.array([0.0, np.nan, 0.0]), LABELS, 1e-4, 0.0)


def test_slopes_are_taken_from_the_labels_of_the_asked_rows():
    found = batch_derivative(Logistic(), LABELS, np.array([1, 2]), np.zeros(2))
    assert found.tolist() == [0.5, -0.5]


def test_a_row_of_zeros_counts_as_a_prediction_of_minus_one():
    assert accuracy(np.array([0.0, 0.0, 1.0]), LABELS) == pytest.approx(2 / 3)


def test_the_watch_notes_the_first_round_at_which_each_target_was_met():
    watch = Watch(targets=(0.1, 0.01), optimum=1.0)
    for rounds, value in ((40, 1.5), (80, 1.05), (120, 1.08), (160, 1.005), (200, 1.001)):
        watch = observe(watch, rounds=rounds, value=value)
    assert dict(watch.reached) == {0.1: 80, 0.01: 160}
    assert watch.met
    assert watch.looks == 5


def test_a_watch_without_targets_is_never_met_and_counts_looks_without_progress():
    watch = Watch()
    for rounds, value in ((1, 3.0), (2, 2.0), (3, 2.0), (4, 2.1)):
        watch = observe(watch, rounds=rounds, value=value)
    assert not watch.met
    assert watch.best == 2.0
    assert watch.looks_since_best == 2


def test_a_late_look_is_refused():
    watch = observe(Watch(), rounds=10, value=1.0)
    with pytest.raises(RoundsWentBack, match="drop the late look"):
        observe(watch, rounds=9, value=0.9)


@pytest.mark.parametrize(("straggler", "expected"), [(0.3, 3.04), (0.4, 2.31), (0.6, 1.58), (1.0, 1.0)])
def test_the_expected_improvement_matches_the_closed_form_at_eight_parties(straggler, expected):
    assert expected_improvement(8, straggler) == pytest.approx(expected, abs=0.005)


def test_the_table_divides_synchronous_by_asynchronous_computation_time():
    (cell,) = utilisation_table([timing(True, 12.0, communication=2.0), timing(False, 5.0, communication=1.0)])
    assert (cell.estimator, cell.data) == ("SVRG", "a9a")
    assert cell.improvement == pytest.approx(2.5)


def test_each_estimator_gets_its_own_cell_in_order_of_appearance():
    timings = [timing(kind, 2.0, estimator=name) for name in ("SGD", "SAGA") for kind in (True, False)]
    assert [cell.estimator for cell in utilisation_table(timings)] == ["SGD", "SAGA"]


@pytest.mark.parametrize(
    "timings",
    [
        [timing(True, 2.0)],
        [timing(True, 2.0), timing(True, 3.0)],
        [timing(True, 2.0), timing(False, 1.0, iterations=999)],
        [timing(True, 2.0), timing(False, 1.0, communication=1.0)],
    ],
    ids=["one kind only", "twice", "other iterations", "no computation left"],
)
def test_timings_that_cannot_be_compared_are_refused(timings):
    with pytest.raises(UtilisationNotComparable):
        utilisation_table(timings)
