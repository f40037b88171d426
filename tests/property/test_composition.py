"""compose(e, n) == n × compose(e), over all events and all accountants."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.privacy.accounting import (
    LOSS,
    PURE,
    RELEASES,
    RENYI,
    Composed,
    GaussianRelease,
    GaussianSum,
    LaplaceLabels,
    PureRelease,
    RandomisedResponse,
    Together,
    UnaryEncoding,
    Unprotected,
    cost,
)

epsilons = st.floats(0.01, 5.0)
classes = st.integers(2, 20)
releases = {
    PureRelease: st.builds(PureRelease, epsilons),
    RandomisedResponse: st.builds(RandomisedResponse, epsilons, classes),
    UnaryEncoding: st.builds(UnaryEncoding, epsilons, classes),
    LaplaceLabels: st.builds(LaplaceLabels, epsilons, classes),
    GaussianRelease: st.builds(GaussianRelease, st.floats(0.01, 2.0), st.sampled_from([0.0, 1e-12])),
    GaussianSum: st.builds(GaussianSum, st.floats(0.01, 2.0), st.sampled_from([0.0, 1e-12])),
    Unprotected: st.builds(Unprotected),
}
events = st.recursive(
    st.one_of(*releases.values()),
    lambda inner: st.one_of(
        st.builds(Composed, inner, st.integers(0, 4)),
        st.builds(Together, st.lists(inner, max_size=3).map(tuple)),
    ),
    max_leaves=5,
)
counts = st.integers(1, 50)


def test_the_strategies_cover_every_release():
    assert set(releases) == set(RELEASES.values())


@given(event=events, count=counts)
def test_pure_epsilon_is_multiplied_by_the_count(event, count):
    once = PURE.epsilon(event)
    assert PURE.epsilon(Composed(event, count)) == pytest.approx(count * once)


@given(event=events, count=counts)
def test_renyi_divergences_are_multiplied_by_the_count(event, count):
    np.testing.assert_allclose(cost(Composed(event, count), RENYI), count * cost(event, RENYI))


@given(event=events, count=counts)
def test_every_release_is_counted_the_right_number_of_times(event, count):
    once = dict(cost(event, LOSS).counts)
    assert dict(cost(Composed(event, count), LOSS).counts) == {each: count * times for each, times in once.items()}


@settings(max_examples=25, deadline=None)
@given(release=st.one_of(*releases.values()), count=st.integers(1, 12), delta=st.sampled_from([1e-3, 1e-6]))
def test_a_count_costs_the_same_as_writing_the_event_out(release, count, delta):
    for accountant in (PURE, RENYI, LOSS):
        counted = accountant.epsilon(Composed(release, count), delta)
        written = accountant.epsilon(Together((release,) * count), delta)
        assert counted == pytest.approx(written) or counted == written == math.inf


@settings(max_examples=25, deadline=None)
@given(release=st.one_of(*releases.values()), count=st.integers(1, 12))
def test_more_releases_never_cost_less(release, count):
    for accountant in (PURE, RENYI, LOSS):
        fewer = accountant.epsilon(Composed(release, count), 1e-6)
        assert accountant.epsilon(Composed(release, count + 1), 1e-6) >= fewer - 1e-9


@given(event=events, one=st.integers(0, 6), other=st.integers(0, 6))
def test_nested_counts_multiply(event, one, other):
    nested = cost(Composed(Composed(event, one), other), LOSS)
    flat = cost(Composed(event, one * other), LOSS)
    assert {k: v for k, v in nested.counts if v} == {k: v for k, v in flat.counts if v}
