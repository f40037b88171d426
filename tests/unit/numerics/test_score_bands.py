"""Cuts lie where enough rows are on each side, whatever is asked for; counts there are those of scikit-learn."""

import numpy as np
import pytest
from sklearn import metrics as reference

from parley.numerics.metrics import Measures, class_details, intervals, regression_figures
from parley.numerics.score_bands import GRID, bands, cut_near, cuts

RNG = np.random.default_rng(5)
EVEN = RNG.random(2000)
RARE = np.clip(RNG.beta(0.6, 7, 3000), 0, 1)
FEW = RNG.random(45)
CERTAIN = np.concatenate([np.full(300, 0.001), np.full(5, 0.999)])


@pytest.mark.parametrize("scores", [EVEN, RARE, FEW, CERTAIN], ids=["even", "rare", "few", "certain"])
def test_whatever_thresholds_are_asked_for_no_two_matrices_differ_by_fewer_rows_than_a_cell(scores):
    """The attack: ask for every threshold there is, in a run each, and subtract neighbouring matrices."""
    truth = (RNG.random(len(scores)) < scores).astype(int)
    seen = {}
    for asked in GRID:
        found = class_details(scores[:, None], truth, ["no", "yes"], Measures(threshold=float(asked)))
        if found:
            taken = found["confusion/no/yes"] + found["confusion/yes/yes"]
            seen[found["threshold"]] = taken
    counts = [float(len(scores)), *sorted(seen.values(), reverse=True), 0.0]
    assert min(np.abs(np.diff(counts))) >= 20 if seen else True
    assert bool(seen) == (scores is not CERTAIN)


def test_the_matrix_is_at_the_asked_threshold_where_there_are_enough_rows():
    truth = (RNG.random(2000) < EVEN).astype(int)
    found = class_details(EVEN[:, None], truth, ["no", "yes"], Measures(threshold=0.5))
    wanted = reference.confusion_matrix(truth, EVEN > 0.5)
    names = ("no", "yes")
    assert [[found[f"confusion/{t}/{p}"] for p in names] for t in names] == wanted.tolist()
    assert found["threshold"] == 0.5
    assert found["precision"] == reference.precision_score(truth, EVEN > 0.5)
    assert found["recall"] == reference.recall_score(truth, EVEN > 0.5)
    assert found["f1"] == pytest.approx(reference.f1_score(truth, EVEN > 0.5))


def test_where_few_rows_lie_above_the_threshold_the_nearest_cut_with_enough_is_taken():
    above = int((RARE > 0.5).sum())
    assert 0 < above < 20
    cut = cut_near(RARE, 0.5, 20)
    assert cut < 0.5
    assert (cut < RARE).sum() >= 20


def test_where_cuts_lie_follows_from_scores_alone_and_bands_hold_every_row_once():
    truth = RNG.random(3000) < RARE
    found = bands(RARE, truth, 20)
    assert [band.up_to for band in found] == [band.up_to for band in bands(RARE, ~truth, 20)]
    assert {band.up_to for band in found} <= {*GRID[cuts(RARE, 20)], 1.0}
    assert sum(band.rows for band in found) == 3000
    assert sum(band.positives for band in found) == truth.sum()
    assert len(found) <= 20
    assert min(band.rows for band in found) >= 20


def test_a_class_that_few_rows_are_taken_for_is_no_column_of_its_own():
    """The attack: three rows are taken for `c`; their labels are in no cell, and not in what cells add up to."""
    truth = RNG.integers(0, 3, 300)
    taken = RNG.integers(0, 2, 300)
    taken[:3] = 2
    found = class_details(np.eye(3)[taken], truth, ["a", "b", "c"], Measures())
    columns = {name.split("/")[2] for name in found if name.startswith("confusion/")}
    assert "c" not in columns
    for column in columns:
        assert sum(value for name, value in found.items() if name.endswith(f"/{column}") and "confusion" in name) >= 20
    assert "classes/recall/c" not in found
    assert sum(value for name, value in found.items() if name.startswith("confusion/")) == 300


def test_figures_of_classes_are_those_of_the_reference():
    truth = RNG.integers(0, 4, 800)
    p = np.exp(RNG.normal(size=(800, 4)) + 1.5 * np.eye(4)[truth])
    p /= p.sum(axis=1, keepdims=True)
    found = class_details(p, truth, list("abcd"), Measures())
    precision, recall, f1, _ = reference.precision_recall_fscore_support(truth, p.argmax(axis=1))
    for c, name in enumerate("abcd"):
        assert found[f"classes/precision/{name}"] == pytest.approx(precision[c])
        assert found[f"classes/recall/{name}"] == pytest.approx(recall[c])
        assert found[f"classes/f1/{name}"] == pytest.approx(f1[c])
        assert found[f"classes/auc/{name}"] == pytest.approx(reference.roc_auc_score(truth == c, p[:, c]), rel=1e-3)
    wanted = reference.confusion_matrix(truth, p.argmax(axis=1))
    assert [[found[f"confusion/{t}/{q}"] for q in "abcd"] for t in "abcd"] == wanted.tolist()


def test_an_interval_covers_the_truth_about_as_often_as_it_says():
    covered = 0
    for seed in range(100):
        draws = np.random.default_rng(seed).normal(size=80)
        found = intervals(
            lambda rows, draws=draws: regression_figures(draws[rows], np.zeros(len(rows))), 80, Measures(resamples=200)
        )
        covered += found["rmse/low"] <= 1.0 <= found["rmse/high"]
    assert 85 <= covered <= 100


def test_without_resamples_there_are_no_intervals():
    assert intervals(lambda rows: {"mae": 1.0}, 80, Measures()) == {}
