"""Bins: every answer within e^ε of every other, targets whose mean is the label, and nothing learnt from data."""

import numpy as np
import pytest

from parley.numerics.losses import Squared
from parley.privacy.accounting import RandomisedResponse
from parley.privacy.noise import KeyedNoise
from parley.privacy.target_bins import BinnedTargets, Bins, _variance

NOISE = KeyedNoise(bytes(32))
LABELS = np.linspace(-3, 13, 97)
"""Some beyond the range."""
MECHANISMS = [BinnedTargets(epsilon, Bins(0.0, 10.0, points)) for epsilon in (0.3, 1.0, 4.0) for points in (None, 2, 7)]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_no_answer_is_more_than_e_to_the_epsilon_likelier_for_one_label_than_for_another(mechanism):
    table = mechanism.probabilities(LABELS)
    np.testing.assert_allclose(table.sum(axis=1), 1)
    worst = np.log(table.max(axis=0) / table.min(axis=0)).max()
    assert worst <= mechanism.epsilon * (1 + 1e-12)
    assert worst > 0.999 * mechanism.epsilon  # and none of it is wasted


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_mean_of_a_target_is_the_label_exactly(mechanism):
    expected = mechanism.probabilities(LABELS) @ mechanism.targets
    np.testing.assert_allclose(expected, np.clip(LABELS, 0, 10), atol=1e-9)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_sampler_draws_what_the_table_says(mechanism):
    # A fixed key: deterministic. Five standard errors of a count, in 7 · 9 cells: false-alarm rate 4e-5.
    draws = 20_000
    for label in (-1.0, 2.4, 10.0):
        points = mechanism.noisy_points(np.full(draws, label), NOISE, "run", 0, np.arange(draws))
        shares = np.bincount(points, minlength=mechanism.classes) / draws
        (expected,) = mechanism.probabilities([label])
        assert np.all(np.abs(shares - expected) < 5 * np.sqrt(expected * (1 - expected) / draws))


def test_the_variance_is_that_of_the_table_and_the_number_of_points_has_the_smallest():
    labels = (np.arange(20_000) + 0.5) / 2000  # even on [0, 10]
    for mechanism in MECHANISMS:
        table = mechanism.probabilities(labels)
        variances = table @ mechanism.targets**2 - (table @ mechanism.targets) ** 2
        assert mechanism.mean_variance() == pytest.approx(variances.mean(), rel=1e-6)
    for epsilon in (0.1, 1.0, 3.0, 8.0):
        chosen = BinnedTargets(epsilon, Bins(0.0, 10.0)).classes
        assert _variance(epsilon, chosen) == min(_variance(epsilon, points) for points in range(2, 300))


def test_gradients_are_those_of_the_labels_in_the_mean():
    mechanism, loss = BinnedTargets(2.0, Bins(0.0, 10.0)), Squared()
    labels, h = np.array([1.0, 9.9]), np.array([[4.0], [-2.0]])
    table = mechanism.probabilities(labels)
    mean = sum(
        table[0, i] * table[1, j] * loss.gradient(h, mechanism.targets[[i, j]][:, None])
        for i in range(mechanism.classes)
        for j in range(mechanism.classes)
    )
    np.testing.assert_allclose(mean, loss.gradient(h, labels[:, None]), atol=1e-9)


def test_a_target_depends_on_the_point_alone_and_costs_a_randomised_response():
    mechanism = BinnedTargets(1.0, Bins(0.0, 10.0, 4))
    targets = mechanism.noisy(LABELS, NOISE, "run", 0, np.arange(len(LABELS)))
    assert targets.shape == (len(LABELS), 1)
    assert set(targets[:, 0]) <= set(mechanism.targets.astype(np.float32))
    assert mechanism.event == RandomisedResponse(1.0, 4)
    assert mechanism.training_loss(Squared()) == Squared()
