"""Noisy counts cost what the ledger says, on a grid that whole rows are on, and never leave in two forms."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from parley.privacy.accounting import RecordCounts
from parley.privacy.count_noise import CountNoise, CountReleases
from parley.privacy.dataset_ledger import BudgetExhausted, DatasetTerms
from parley.privacy.gaussian import DISTANCE, STEPS, rounded_gaussian
from parley.privacy.ledger import LedgerConflict, open_ledger
from parley.privacy.noise import EpsilonOutOfRange, KeyedNoise
from parley.privacy.permanent_noise import number_tags, tag_records

KEY = KeyedNoise(bytes(range(32)))
ROWS = 50
COUNTS = np.random.default_rng(3).integers(0, 30, (4, 2, 8))


@pytest.fixture
def ledger(tmp_path):
    return open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}")


def releases(ledger, run="run", epsilon=1.0, budget=2.0, values=0.0):
    tags = tag_records(KEY, "features/t", [str(row) for row in range(ROWS)], number_tags(np.full((ROWS, 4), values)))
    counted = RecordCounts(np.ones(ROWS, dtype=np.int64))
    terms = DatasetTerms(budget, 1e-6, changed="charge")
    return CountReleases(ledger, KEY, run, ("a", "b"), terms, CountNoise(epsilon, 1e-6, 4), tags, counted)


def spent_of(ledger):
    return ledger.account("features/t", DatasetTerms(2.0, 1e-6)).epsilon


def exact_delta(epsilon, shift):
    """Σ max(0, P − e^ε Q) where one cell has a row more and another one fewer, over all atoms of both cells' noise.

    Atoms of the second cell are sorted by their loss, so that those which matter beside one of the first are a run.
    """
    masses = rounded_gaussian().masses.astype(np.float64) * 2.0**-64
    here, there = np.pad(masses, (0, shift)), np.pad(masses, (shift, 0))
    with np.errstate(divide="ignore"):
        loss = np.log(here) - np.log(there)
    order = np.argsort(-loss)
    first, second = (np.concatenate([[0.0], np.cumsum(one[order])]) for one in (here, there))
    matter = np.searchsorted(loss[order] * -1, loss[::-1] - epsilon)  # the other cell mirrors this one
    return float(np.sum(here[::-1] * first[matter] - math.exp(epsilon) * there[::-1] * second[matter]))


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 4.0])
def test_the_exact_loss_of_a_row_in_another_cell_is_within_epsilon_and_delta(epsilon):
    mechanism = CountNoise(epsilon, 1e-6, 1)
    found = exact_delta(epsilon, mechanism.steps)
    assert 0.75e-6 < found <= 1e-6  # whole steps, so a little less
    assert exact_delta(epsilon, mechanism.steps + 2 + mechanism.steps // 50) > 1e-6  # no wider than it has to be


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("histograms", [1, 5, 60])
def test_many_histograms_cost_a_row_what_their_distance_costs(epsilon, histograms):
    mechanism = CountNoise(epsilon, 1e-6, histograms)
    ratio = math.sqrt(2 * histograms) / mechanism.sigma
    closed = norm.cdf(ratio / 2 - epsilon / ratio) - math.exp(epsilon) * norm.cdf(-ratio / 2 - epsilon / ratio)
    assert closed + (1 + math.exp(epsilon)) * 2 * histograms * DISTANCE <= 1e-6
    assert mechanism.event.ratio == pytest.approx(ratio)


def test_noise_stands_on_the_grid_of_whole_rows_and_has_the_deviation_that_it_says():
    mechanism = CountNoise(1.0, 1e-6, 4)
    counts = np.full((40, 100), 17)
    noised = mechanism.noised(KEY, "run", counts)
    steps = noised * mechanism.steps
    np.testing.assert_allclose(steps, np.rint(steps), atol=1e-6)
    assert (noised - counts).std() == pytest.approx(mechanism.sigma, rel=0.06)  # 4000 draws: a false alarm in 10^6
    assert (noised - counts).mean() == pytest.approx(0, abs=5 * mechanism.sigma / math.sqrt(4000))
    np.testing.assert_array_equal(noised, mechanism.noised(KEY, "run", counts))
    assert not np.array_equal(noised, mechanism.noised(KEY, "another", counts))
    assert mechanism.sigma == STEPS / mechanism.steps


def test_noise_that_drowns_every_count_is_refused():
    with pytest.raises(EpsilonOutOfRange, match="fewer columns"):
        CountNoise(0.01, 1e-6, 400).sigma  # noqa: B018


def test_a_run_is_charged_once_before_its_counts_are_there_and_a_spent_budget_refuses_the_next(ledger):
    first = releases(ledger)
    first.rehearse()
    assert "features/t" not in ledger.datasets()  # nothing is written
    noised = first.release(COUNTS)
    np.testing.assert_array_equal(noised, first.release(COUNTS))
    spent = spent_of(ledger)
    assert 0.9 < spent <= 1.0
    releases(ledger, "second").release(COUNTS)
    before = spent_of(ledger)
    assert spent < before < 2 * spent  # Gaussian noise composes better than ε adds up
    third = releases(ledger, "third", epsilon=1.9)
    for asked in (third.rehearse, lambda: third.release(COUNTS)):
        with pytest.raises(BudgetExhausted):
            asked()
    assert spent_of(ledger) == before


def test_other_counts_under_the_same_noise_never_leave(ledger):
    run = releases(ledger)
    run.release(COUNTS)
    with pytest.raises(LedgerConflict):
        run.release(COUNTS + 1)
