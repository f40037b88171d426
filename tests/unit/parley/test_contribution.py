"""How what a federation reaches is shared out among its parties and columns."""

from itertools import permutations

import numpy as np
import pytest
import yaml

from parley.client import TunedCoefficients
from parley.contribution import (
    NotMeasurable,
    coalition_spec,
    column_rows,
    metric_of,
    shapley,
    shared_out,
    value_of_nothing,
)
from parley.linear_shap import mean_absolute, permutation_importance
from parley.spec.events import with_intervals

PARTIES = ("bank", "shop", "telco")


def subsets(parties):
    return [
        frozenset(p for place, p in enumerate(parties) if number >> place & 1) for number in range(2 ** len(parties))
    ]


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_shapley_values_are_the_mean_over_all_orders_of_joining(count):
    parties, draw = [f"p{m}" for m in range(count)], np.random.default_rng(count)
    values = {members: float(draw.normal()) for members in subsets(parties)}
    expected = dict.fromkeys(parties, 0.0)
    orders = list(permutations(parties))
    for order in orders:
        for place, party in enumerate(order):
            before = frozenset(order[:place])
            expected[party] += (values[before | {party}] - values[before]) / len(orders)
    found = shapley(values, parties)
    assert found == pytest.approx(expected)
    assert sum(found.values()) == pytest.approx(values[frozenset(parties)] - values[frozenset()])


def test_where_a_coalition_was_refused_the_others_still_tell_what_they_can():
    values = {frozenset(PARTIES): 0.9, frozenset({"shop", "telco"}): 0.8, frozenset({"bank"}): 0.6}
    shares = {share.party: share for share in shared_out(values, PARTIES, 0.5)}
    assert shares["bank"].leave_one_out == pytest.approx(0.1)
    assert shares["bank"].gain == pytest.approx(0.3)
    assert shares["bank"].shapley is None
    assert shares["shop"].leave_one_out is None
    assert shares["shop"].alone is None


def test_a_loss_counts_the_other_way_round():
    values = {members: 1.0 - 0.1 * len(members) for members in subsets(PARTIES) if members}
    shares = shared_out(values, PARTIES, 1.0, lower_is_better=True)
    assert [share.shapley for share in shares] == pytest.approx([0.1] * 3)
    assert shares[0].alone == pytest.approx(0.9)
    assert shares[0].gain == pytest.approx(0.2)


def test_the_figure_is_the_best_known_one_or_the_one_that_is_named():
    metrics = {"test accuracy": 0.9, "test auc": 0.8}
    assert metric_of(metrics) == "test auc"
    assert metric_of(metrics, "test accuracy") == "test accuracy"
    assert value_of_nothing("test auc") == 0.5
    assert value_of_nothing("test accuracy") is None
    with pytest.raises(NotMeasurable, match="--metric"):
        metric_of(metrics, "test ks")
    with pytest.raises(NotMeasurable, match="held-out"):
        metric_of({"upper loss": 1.0})


SPEC = """
name: credit
parties: [bank, {name: shop, table: people}, telco]
train: {algorithm: %s}
privacy: {aggregation: {kind: pairwise, minimum_parties: 3}}
"""


def test_a_coalition_s_spec_has_its_members_only_and_hides_what_it_can():
    pair = yaml.safe_load(coalition_spec(SPEC % "glm", {"telco", "shop"}))
    assert pair["parties"] == [{"name": "shop", "table": "people"}, "telco"]
    assert pair["privacy"]["aggregation"] == {"kind": "pairwise", "minimum_parties": 2}
    one = yaml.safe_load(coalition_spec(SPEC % "glm", {"bank"}))
    assert one["privacy"]["aggregation"] == {"kind": "plain", "minimum_parties": 1}


def test_only_a_linear_lower_problem_is_refitted_alone():
    bambi = SPEC % "bambi, problem: hyper_parameters, upper: {steps: 40}"
    train = yaml.safe_load(coalition_spec(bambi, PARTIES, lower_only=True))["train"]
    assert (train["upper"]["steps"], train["lower"]["final_steps"]) == (0, 10)
    with pytest.raises(NotMeasurable, match="linear lower problem"):
        coalition_spec(SPEC % "glm", PARTIES, lower_only=True)


def test_mean_absolute_shap_is_that_of_the_definition():
    """Interventional Shapley values by all orders, with the mean as background: exact for a linear model."""
    draw = np.random.default_rng(0)
    features, weights = draw.normal(size=(20, 3)) + 1.0, np.array([[0.5], [-2.0], [0.1]])
    mean, expected = features.mean(axis=0), np.zeros(3)
    for row in features:
        phi, orders = np.zeros(3), list(permutations(range(3)))
        for order in orders:
            point = mean.copy()
            for column in order:
                before = float(point @ weights[:, 0])
                point[column] = row[column]
                phi[column] += (float(point @ weights[:, 0]) - before) / len(orders)
        expected += np.abs(phi) / len(features)
    assert mean_absolute(features, weights) == pytest.approx(expected)


def test_columns_of_a_penalised_model_are_ranked_by_their_scaled_coefficients():
    shared = {"bank": TunedCoefficients(None, {"(intercept)": 9.0, "age": -0.5}, ""),
              "shop": TunedCoefficients(None, {"spend": 0.2, "visits": 0.7}, "")}  # fmt: skip
    rows = column_rows(shared, penalties=False)
    assert [(row["column"], row["|coefficient|"]) for row in rows] == [("visits", 0.7), ("age", 0.5), ("spend", 0.2)]
    shared["shop"].inference["spend"] = {"standard_error": 0.1}
    assert [row["column"] for row in column_rows(shared, penalties=False)] == ["spend"]


def test_a_column_whose_penalty_tuning_has_raised_has_little_relevance():
    shared = {"bank": TunedCoefficients(None, {"age": 0.01, "noise": 1.0}, ""),
              "shop": TunedCoefficients(None, {"spend": 0.02}, "")}  # fmt: skip
    rows = column_rows(shared, penalties=True)
    assert [row["column"] for row in rows] == ["age", "spend", "noise"]
    assert [row["relevance"] for row in rows] == pytest.approx([100 / 151, 50 / 151, 1 / 151])


def test_a_figure_is_shown_with_the_ends_of_its_interval():
    found = with_intervals({"test auc": 0.81234567, "test auc/low": 0.7, "test auc/high": 0.9, "bytes": 12.0})
    assert found == {"test auc": "0.8123 (0.7 to 0.9)", "bytes": 12.0}


def test_permutation_importance_of_least_squares_needs_nothing_of_others():
    """By all cyclic shifts, in which every row gets every value once, of a model that has other columns too."""
    draw = np.random.default_rng(4)
    features = draw.normal(size=(60, 4)) @ draw.normal(size=(4, 4))
    y = features @ [1.0, -0.5, 0.2, 0.0] + draw.normal(size=60) + 3
    design = np.column_stack([features, np.ones(60)])
    w = np.linalg.lstsq(design, y, rcond=None)[0]
    plain = np.mean((y - design @ w) ** 2)
    for column, told in enumerate(permutation_importance(features[:, :2], w[:2])):
        shifted, errors = design.copy(), []
        for shift in range(60):
            shifted[:, column] = np.roll(design[:, column], shift)
            errors.append(np.mean((y - shifted @ w) ** 2))
        assert told == pytest.approx(np.mean(errors) - plain, rel=1e-9)
