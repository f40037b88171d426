"""Metrics on true labels: too few rows, too small a difference and too many evaluations are refused, across runs."""

import numpy as np
import pytest
import sqlalchemy as sa

from parley.attacks.metric_releases import labels_from_loss
from parley.numerics.metrics import Measures, intervals
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
from parley.privacy.noise import KeyedNoise

POLICY = EvaluationPolicy()
KEY = bytes(range(32))


@pytest.fixture
def register():
    opened = EvaluationRegister(sa.create_engine("sqlite://", poolclass=sa.StaticPool))
    yield opened
    opened.close()


def order(rows, times=1, name="test", table="labels"):
    return Order(table, name, members_of(str(row) for row in rows), times)


def test_a_figure_over_fewer_rows_than_the_floor_is_refused(register):
    with pytest.raises(EvaluationRefused, match="over 1 rows, and leave over at least 20"):
        register.reserve("one", order(range(7, 8)), POLICY)
    assert register.of_run("one") == []


def test_two_sets_that_differ_by_one_row_are_refused_and_the_same_set_is_not(register):
    register.reserve("first", order(range(40)), POLICY)
    register.reserve("again", order(range(40)), POLICY)
    for other in (range(41), range(39), [*range(39), 90]):
        with pytest.raises(EvaluationRefused, match="differ by"):
            register.reserve("second", order(other), POLICY)
    register.reserve("far", order(range(60)), POLICY)


def test_rows_of_an_aligned_run_are_those_of_the_same_file_by_itself(register):
    """An alignment brings ids to one spelling; a run without one has them as the file spells them."""
    register.reserve("as the file has them", order(f" {row}.0" for row in range(40)), POLICY)
    with pytest.raises(EvaluationRefused, match="differ by 1"):
        register.reserve("aligned", order(range(41)), POLICY)


def test_three_sets_that_add_up_to_one_row_are_not_all_measured(register):
    """No two of them are alike: A ∪ {x} and B less A ∪ B is x."""
    a, b = list(range(40)), list(range(100, 140))
    register.reserve("a and x", order([*a, 77]), POLICY)
    register.reserve("b", order(b), POLICY)
    with pytest.raises(EvaluationRefused, match=r"added to and subtracted from .* fewer than 20 rows"):
        register.reserve("a and b", order(a + b), POLICY)
    register.reserve("again", order([*a, 77]), POLICY)
    register.reserve("none of them", order(range(200, 240)), POLICY)


def test_two_rows_that_further_sets_tell_apart_are_refused_as_one_is(register):
    a, b, c = (list(range(first, first + 40)) for first in (0, 100, 200))
    register.reserve("a, x and y", order([*a, 77, 78]), POLICY)
    register.reserve("c and x", order([*c, 77]), POLICY)
    register.reserve("b", order(b), POLICY)
    with pytest.raises(EvaluationRefused, match="fewer than 20 rows"):
        register.reserve("a and b", order(a + b), POLICY)


def test_sets_that_many_seeds_draw_are_measured(register):
    rng = np.random.default_rng(2)
    for seed in range(10):
        register.reserve(f"run-{seed}", order(rng.permutation(569)[:142]), POLICY)


def test_an_owner_who_lowered_the_floor_before_is_not_refused_for_what_left_then(register):
    lower = EvaluationPolicy(minimum_rows=1)
    register.reserve("a", order(range(40)), lower)
    register.reserve("b", order(range(41)), lower)
    register.reserve("far", order(range(200, 240)), POLICY)


def test_sets_of_another_table_have_nothing_to_do_with_it(register):
    register.reserve("first", order(range(40)), POLICY)
    register.reserve("second", order(range(41), table="other"), POLICY)


def test_a_row_is_in_a_limited_number_of_sets_and_of_evaluations(register):
    policy = EvaluationPolicy(sets_per_row=2, evaluations_per_row=10)
    register.reserve("a", order(range(40), 4), policy)
    register.reserve("b", order(range(20, 60), 4), policy)
    with pytest.raises(EvaluationsSpent, match="test_sets_per_row"):
        register.reserve("c", order(range(80)), policy)
    with pytest.raises(EvaluationsSpent, match="evaluations_per_row"):
        register.reserve("d", order(range(40), 7), policy)
    register.reserve("e", order(range(100, 140), 10), policy)


def test_a_run_that_goes_on_costs_nothing_more_and_keeps_its_rows(register):
    policy = EvaluationPolicy(epsilon=1.0, budget=5.0)
    for _ in range(3):
        register.reserve("run", order(range(40), 5), policy)
        register.check("run", order(range(40), 5), policy)
    [counted] = register.of_run("run")
    assert (counted.rows, counted.evaluations, counted.epsilon) == (40, 5, 1.0)
    with pytest.raises(EvaluationRefused, match="other test rows before"):
        register.reserve("run", order(range(60, 100), 5), policy)
    with pytest.raises(EvaluationsSpent, match="evaluation_budget"):
        register.reserve("next", order(range(40), 1), policy)


def test_a_check_writes_nothing(register):
    register.check("run", order(range(40)), POLICY)
    register.reserve("other", order(range(41)), POLICY)


def test_the_register_outlives_its_process(tmp_path):
    url = f"sqlite:///{tmp_path / 'state.db'}"
    first = EvaluationRegister(sa.create_engine(url))
    first.reserve("first", order(range(40)), POLICY)
    first.close()
    again = EvaluationRegister(sa.create_engine(url))
    with pytest.raises(EvaluationRefused):
        again.reserve("second", order(range(41)), POLICY)
    again.close()


def test_noise_is_the_same_for_the_same_iteration_and_only_accuracy_leaves():
    evaluation = Evaluation(400, KeyedNoise(KEY), 1.0, "run", "test")
    figures = {"accuracy": 0.5, "loss": 0.7}
    assert Evaluation(400).release(3, figures) == {"accuracy": 0.5, "loss": pytest.approx(0.7, rel=2**-50)}
    assert evaluation.release(3, figures) == evaluation.release(3, figures)
    assert evaluation.release(3, figures).keys() == {"accuracy"}
    assert evaluation.release(3, {"r2": 0.5, "loss": 0.7}) == {}
    found = np.array([evaluation.release(k, figures)["accuracy"] for k in range(2000)])
    # Laplace noise of scale 1/ε on the number of right rows: standard deviation √2/400; the mean of 2000 draws misses
    # by five of its standard errors once in two million times
    assert abs(found.mean() - 0.5) < 5 * np.sqrt(2) / 400 / np.sqrt(2000)
    assert found.std() == pytest.approx(np.sqrt(2) / 400, rel=0.15)


def test_an_exact_loss_over_few_rows_would_tell_every_label_and_the_one_that_leaves_does_not():
    rng = np.random.default_rng(5)
    scores, labels = rng.uniform(0.05, 0.95, 10), rng.integers(0, 2, 10)
    exact = float(np.mean(-np.log(np.where(labels == 1, scores, 1 - scores))))
    assert labels_from_loss(exact, scores, 1e-12) == [tuple(labels.tolist())]
    released = Evaluation(20).release(0, {"loss": exact})["loss"]
    assert len(labels_from_loss(released, scores, rounding_unit(released, 20) / 2)) > 50


def test_ends_of_intervals_and_areas_of_classes_leave_as_coarsely_as_a_loss():
    """They follow from all scores and labels: to three digits, those over twenty rows would fit one labelling only."""
    figures = {"auc/low": 0.537, "loss/high": 1.29, "classes/auc/spring": 0.8125, "confusion/a/b": 23.0}
    released = Evaluation(20).release(0, figures)
    assert released["confusion/a/b"] == 23.0
    for name in ("auc/low", "loss/high", "classes/auc/spring"):
        assert released[name] % rounding_unit(released[name], 20) == 0
        assert len({Evaluation(20).release(0, {name: value / 64})[name] for value in range(32, 64)}) <= 5


def test_the_rows_of_bootstrap_resamples_are_the_same_in_every_run():
    drawn = []

    def figures_of(rows):
        drawn.append(rows)
        return {"mae": float(rows.mean())}

    for _ in range(2):
        intervals(figures_of, 30, Measures(resamples=100))
    np.testing.assert_array_equal(drawn[:100], drawn[100:])
