"""Points add up to the logit, in the units that were asked for."""

from math import exp, log

import pytest

from parley.numerics.scorecards import Scale


def test_a_score_is_as_it_was_asked_for_at_the_odds_and_rises_where_they_double():
    scale = Scale(points=600, odds=50, double=20)
    assert scale.of_intercept(-log(50)) == pytest.approx(600)
    assert scale.of_intercept(-log(100)) == pytest.approx(620)


def test_bins_add_what_their_logit_is_worth():
    scale = Scale(points=500, odds=10, double=40)
    logit = -1.2 + 0.8 * -0.5 + -1.1 * 0.3
    score = scale.of_intercept(-1.2) + scale.of_bin(0.8, -0.5) + scale.of_bin(-1.1, 0.3)
    assert score == pytest.approx(500 + 40 * (-logit - log(10)) / log(2))
    assert exp(-logit) == pytest.approx(10 * 2 ** ((score - 500) / 40))


def test_a_column_without_a_part_has_no_points_and_no_sign():
    assert str(Scale(600, 50, 20).of_bin(0.0, 1.5)) == "0.0"
