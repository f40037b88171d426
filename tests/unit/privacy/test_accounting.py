import math
from dataclasses import dataclass

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld

from parley.privacy import accounting
from parley.privacy.accounting import (
    LOSS,
    PURE,
    RELEASES,
    RENYI,
    Composed,
    GaussianRelease,
    GaussianSum,
    InvalidEvent,
    LaplaceLabels,
    PureRelease,
    RandomisedResponse,
    RecordCounts,
    Together,
    UnaryEncoding,
    UnknownEvent,
    Unprotected,
    from_json,
    online_epsilon,
    reported_epsilon,
    to_json,
)

RELEASE_EXAMPLES = [
    PureRelease(0.7),
    RandomisedResponse(1.0, 10),
    RandomisedResponse(1.0, 2),
    UnaryEncoding(1.0, 10),
    LaplaceLabels(0.01, 10),
    LaplaceLabels(1.0, 2),
    GaussianRelease(0.5, 1e-12),
    GaussianSum(0.5, 1e-12),
    Unprotected(),
]
PROTECTED = [
    release for release in RELEASE_EXAMPLES if not isinstance(release, Unprotected | GaussianRelease | GaussianSum)
]


def test_every_known_release_is_among_the_examples():
    assert {type(release) for release in RELEASE_EXAMPLES} == set(RELEASES.values())


@pytest.mark.parametrize(
    ("epsilon", "times", "expected"),
    [(0.01, 10**3, 0.94), (0.01, 10**4, 3.30), (0.01, 10**5, 12.6), (1.0, 40, 26.1)],
)
def test_the_known_figures_of_one_hot_labels_at_delta_one_in_a_million(epsilon, times, expected):
    event = Composed(LaplaceLabels(epsilon, 10), times)
    assert LOSS.epsilon(event, 1e-6) == pytest.approx(expected, rel=0.01)


def test_one_hot_labels_cost_two_laplace_mechanisms_as_dp_accounting_prices_them():
    one = pld.from_discrete_laplace_mechanism(0.5 / 16, 16, value_discretization_interval=1e-4, use_connect_dots=True)
    expected = one.self_compose(80).get_epsilon_for_delta(1e-6)
    assert LOSS.epsilon(Composed(LaplaceLabels(1.0, 10), 40), 1e-6) == pytest.approx(expected, rel=1e-3)


def test_two_classes_cost_one_laplace_mechanism():
    one = pld.from_discrete_laplace_mechanism(1 / 16, 16, value_discretization_interval=1e-4, use_connect_dots=True)
    expected = one.self_compose(40).get_epsilon_for_delta(1e-6)
    assert LOSS.epsilon(Composed(LaplaceLabels(1.0, 2), 40), 1e-6) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_randomised_response_agrees_with_dp_accounting(classes):
    event = RandomisedResponse(1.0, classes)
    noise = classes / (math.e + classes - 1)
    theirs = pld.from_randomized_response(noise, classes, value_discretization_interval=1e-4).self_compose(30)
    assert LOSS.epsilon(Composed(event, 30), 1e-6) == pytest.approx(theirs.get_epsilon_for_delta(1e-6), rel=1e-3)


@pytest.mark.parametrize("release", PROTECTED, ids=str)
def test_a_loss_is_a_distribution_bounded_by_the_declared_epsilon(release):
    lattice = release.loss()
    multiples, masses = np.array(lattice.masses).T
    assert masses.sum() == pytest.approx(1, abs=1e-12)
    assert np.abs(multiples * lattice.step).max() == pytest.approx(release.epsilon)


@pytest.mark.parametrize("release", PROTECTED, ids=str)
def test_a_loss_is_that_of_two_real_distributions(release):
    """Q has mass e^−loss times P's, and must sum to 1 as well."""
    lattice = release.loss()
    assert sum(mass * math.exp(-k * lattice.step) for k, mass in lattice.masses) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("release", PROTECTED, ids=str)
@pytest.mark.parametrize("times", [1, 7, 300])
def test_the_accountants_order_is_loss_below_renyi_and_none_above_pure(release, times):
    event = Composed(release, times)
    pure, loss, renyi = (each.epsilon(event, 1e-6) for each in (PURE, LOSS, RENYI))
    assert pure == pytest.approx(times * release.epsilon)
    assert loss <= renyi * (1 + 1e-6)
    assert loss <= pure * (1 + 1e-6)
    assert reported_epsilon(event, 1e-6) <= online_epsilon(event, 1e-6) <= pure


def test_a_mixture_of_mechanisms_costs_no_less_than_each_and_no_more_than_their_sum():
    laplace, response = Composed(LaplaceLabels(0.01, 10), 1000), RandomisedResponse(1.0, 10)
    both = LOSS.epsilon(Together((laplace, response)), 1e-6)
    assert LOSS.epsilon(laplace, 1e-6) < both < PURE.epsilon(Together((laplace, response)))
    assert max(LOSS.epsilon(laplace, 5e-7), 1.0) < both <= LOSS.epsilon(laplace, 1e-6) + 1.0


def test_an_unprotected_release_has_no_finite_epsilon_however_rare():
    event = Together((Composed(LaplaceLabels(0.01, 10), 3), Unprotected()))
    assert PURE.epsilon(event) == math.inf
    assert RENYI.epsilon(event, 1e-6) == LOSS.epsilon(event, 1e-6) == math.inf


@pytest.mark.parametrize("accountant", [PURE, RENYI, LOSS], ids=lambda each: each.name)
def test_nothing_released_costs_nothing(accountant):
    assert accountant.epsilon(Together(()), 1e-6) == 0
    assert accountant.epsilon(Composed(Unprotected(), 0), 1e-6) == 0


def test_without_a_delta_epsilons_add():
    event = Composed(LaplaceLabels(0.01, 10), 1000)
    assert online_epsilon(event) == reported_epsilon(event) == LOSS.epsilon(event) == pytest.approx(10.0)


@dataclass(frozen=True)
class Homemade:
    epsilon: float = 0.0
    kind = "homemade"


@pytest.mark.parametrize("accountant", [PURE, RENYI, LOSS], ids=lambda each: each.name)
@pytest.mark.parametrize("event", [Homemade(), Composed(Homemade(), 2), Together((Homemade(),)), 0.5, None])
def test_an_unknown_event_is_refused(accountant, event):
    with pytest.raises(UnknownEvent):
        accountant.epsilon(event, 1e-6)


@pytest.mark.parametrize("release", RELEASE_EXAMPLES, ids=str)
def test_a_release_survives_being_written_down(release):
    assert from_json(to_json(release)) == release


def test_a_release_of_an_unknown_kind_is_neither_written_nor_read():
    with pytest.raises(UnknownEvent):
        to_json(Composed(PureRelease(1.0), 2))
    with pytest.raises(UnknownEvent):
        from_json('{"kind":"homemade","epsilon":0.0}')


@pytest.mark.parametrize(
    "make",
    [
        lambda: PureRelease(-0.1),
        lambda: PureRelease(math.inf),
        lambda: RandomisedResponse(0.0, 10),
        lambda: UnaryEncoding(math.nan, 10),
        lambda: LaplaceLabels(1.0, 1),
        lambda: Composed(PureRelease(1.0), -1),
        lambda: PURE.epsilon(PureRelease(1.0), -1e-6),
        lambda: LOSS.epsilon(PureRelease(1.0), 1.0),
    ],
)
def test_parameters_that_make_no_sense_are_refused(make):
    with pytest.raises(InvalidEvent):
        make()


def test_the_online_accountant_composes_no_distributions(monkeypatch):
    """Every debit waits for it; convolving distributions takes a hundred times as long."""

    def slow(*_):
        raise AssertionError("the accountant for reports was asked")

    monkeypatch.setattr(type(accounting.LOSS), "epsilon", slow)
    event = Composed(LaplaceLabels(0.037, 10), 1234)
    assert 0 < online_epsilon(event, 1e-6) < 1234 * 0.037
    with pytest.raises(AssertionError, match="for reports"):
        accounting.reported_epsilon(event, 1e-6)


def test_counts_are_over_the_batches_that_hold_a_record():
    lower = [np.array([0, 1]), np.array([1, 2])]
    upper = [np.array([1, 1, 3])]
    counts = RecordCounts.of_batches(5, lower).plus(RecordCounts.of_batches(5, upper))
    np.testing.assert_array_equal(counts.counts, [1, 3, 1, 1, 0])
    assert counts.maximum == 3
    assert counts.percentiles(0, 50, 100) == (0.0, 1.0, 3.0)


def test_no_records_have_no_counts():
    assert RecordCounts.none(0).maximum == 0
    assert RecordCounts.none(0).percentiles(50) == (0.0,)
