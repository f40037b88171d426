import numpy as np
import pytest

from parley.coordinator.fedbio.rounds import (
    Averages,
    Diverged,
    InvalidSettings,
    Metrics,
    Settings,
    evaluation,
    finish,
    iteration,
)
from parley.privacy.aggregation import SurvivorsSum
from parley.protocols.rounds import MEASURE_UNIT

PARTIES = 4
EVERYONE = (0, 1, 2, 3)


def driven(round_, answers):
    """Drive a round with the given sums; return the instructions and the report."""
    asked = [next(round_)]
    for answer in answers[:-1]:
        asked.append(round_.send(np.asarray(answer, dtype=float)))
    with pytest.raises(StopIteration) as end:
        round_.send(np.asarray(answers[-1], dtype=float))
    return asked, end.value.value


def test_fedbio_takes_one_phase_and_divides_by_the_number_of_parties():
    asked, report = driven(iteration(Settings(PARTIES), 0, Averages()), [[4.0, 8.0]])
    assert [a.phase for a in asked] == ["variables"]
    assert asked[0].mean is None
    np.testing.assert_array_equal(report.averages.variables, [1.0, 2.0])


def test_fedbioacc_averages_variables_first_and_momenta_at_that_average():
    asked, report = driven(iteration(Settings(PARTIES, accelerated=True), 0, Averages()), [[4.0], [12.0]])
    assert [a.phase for a in asked] == ["variables", "momenta"]
    np.testing.assert_array_equal(asked[1].mean, [1.0])
    np.testing.assert_array_equal(report.averages.momenta, [3.0])


def test_the_average_of_one_round_opens_the_next():
    before = Averages(np.array([1.0, 2.0]))
    asked, report = driven(iteration(Settings(PARTIES), 1, before), [[4.0, 20.0]])
    np.testing.assert_array_equal(asked[0].mean, [1.0, 2.0])
    assert report.movement == pytest.approx(3.0)


def test_parties_that_may_have_sat_out_get_variables_and_momenta():
    before = Averages(np.array([1.0]), np.array([5.0]))
    everyone, _ = driven(iteration(Settings(PARTIES, accelerated=True), 1, before), [[0.0], [0.0]])
    some, report = driven(iteration(Settings(PARTIES, accelerated=True, sampled=2), 1, before), [[6.0], [0.0]])
    np.testing.assert_array_equal(everyone[0].mean, [5.0])
    np.testing.assert_array_equal(some[0].mean, [1.0, 5.0])
    np.testing.assert_array_equal(report.averages.variables, [3.0])


def test_both_phases_of_a_round_ask_the_same_parties():
    settings = Settings(PARTIES, accelerated=True, sampled=2)
    asked, _ = driven(iteration(settings, 3, Averages(np.zeros(1), np.zeros(1))), [[0.0], [0.0]])
    assert asked[0].participants == asked[1].participants == settings.drawn(3)


def test_who_takes_part_depends_on_the_seed_and_the_round_alone():
    settings = Settings(PARTIES, sampled=2, seed=1)
    drawn = [settings.drawn(k) for k in range(40)]
    assert drawn == [settings.drawn(k) for k in range(40)]
    assert {party for chosen in drawn for party in chosen} == set(EVERYONE)
    assert all(len(set(chosen)) == 2 for chosen in drawn)


def test_evaluation_pools_by_rows():
    asking = evaluation(Settings(PARTIES), 2, Averages(np.ones(3)))
    assert next(asking).phase == "evaluate"
    with pytest.raises(StopIteration) as end:
        asking.send(np.array([10.0, 5.0, 20.0, 0.0, 0.0, 0.0, 0.0]) / MEASURE_UNIT)
    assert end.value.value == Metrics(0.5, 0.25, 20)


def test_evaluation_tells_test_error_and_auc_where_parties_know_the_truth():
    asking = evaluation(Settings(PARTIES), 2, Averages(np.ones(3)))
    next(asking)
    with pytest.raises(StopIteration) as end:
        asking.send(np.array([*(np.array([10.0, 5.0, 20.0, 3.0, 30.0]) / MEASURE_UNIT), 1.8, 2.0]))
    assert (end.value.value.test_error, end.value.value.auc) == (pytest.approx(0.1), pytest.approx(0.9))


def test_the_end_carries_the_last_average_to_everyone():
    last = finish(Settings(PARTIES, sampled=2), 9, Averages(np.ones(2)))
    assert (last.phase, last.participants) == ("finish", EVERYONE)
    np.testing.assert_array_equal(last.mean, [1.0, 1.0])


@pytest.mark.parametrize("total", [[np.nan, 0.0], [0.0], [1e5, 0.0]])
def test_a_sum_that_is_not_finite_or_too_large_or_changes_its_length_ends_the_run_by_name(total):
    round_ = iteration(Settings(PARTIES), 1, Averages(np.zeros(2)))
    next(round_)
    with pytest.raises(Diverged):
        round_.send(np.array(total))


@pytest.mark.parametrize("wrong", [{"parties": 0}, {"sampled": 5}, {"sampled": 0}])
def test_settings_without_enough_parties_are_refused(wrong):
    with pytest.raises(InvalidSettings):
        Settings(**{"parties": PARTIES, **wrong})


def test_the_mean_is_over_those_whose_vectors_are_in_the_sum():
    round_ = iteration(Settings(PARTIES), 0, Averages())
    next(round_)
    with pytest.raises(StopIteration) as end:
        round_.send(SurvivorsSum(np.array([6.0, 9.0]), 3))
    np.testing.assert_array_equal(end.value.value.averages.variables, [2.0, 3.0])


def test_a_party_that_comes_back_gets_variables_and_momenta():
    before = Averages(np.array([1.0]), np.array([5.0]))
    asked, _ = driven(iteration(Settings(PARTIES, accelerated=True, newcomers=True), 1, before), [[0.0], [0.0]])
    np.testing.assert_array_equal(asked[0].mean, [1.0, 5.0])
