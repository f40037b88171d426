"""The closed form against dp-accounting, and the table of noise against a Gaussian with 40 digits."""

import math

import mpmath
import numpy as np
import pytest
from dp_accounting.pld.privacy_loss_mechanism import GaussianPrivacyLoss

from parley.privacy.accounting import Composed, GaussianRelease, PureRelease, Together, online_epsilon, reported_epsilon
from parley.privacy.filters import filtered_epsilon
from parley.privacy.gaussian import (
    DISTANCE,
    STEPS,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_ratio,
    rounded_gaussian,
)
from parley.privacy.noise import WORD_RANGE, EpsilonOutOfRange

SETTINGS = [(0.1, 1e-5), (1.0, 1e-6), (3.0, 1e-9), (8.0, 1e-6), (16.0, 1e-3)]


@pytest.mark.parametrize(("epsilon", "delta"), SETTINGS)
def test_the_noise_is_calibrated_to_the_exact_bound_of_a_trusted_library(epsilon, delta):
    ratio = gaussian_ratio(epsilon, delta)
    at = GaussianPrivacyLoss(1 / ratio, sensitivity=1.0).get_delta_for_epsilon(epsilon)
    less_noise = GaussianPrivacyLoss(1 / (ratio * 1.0001), sensitivity=1.0).get_delta_for_epsilon(epsilon)
    assert at <= delta < less_noise
    assert at == pytest.approx(gaussian_delta(epsilon, ratio), rel=1e-6)
    assert gaussian_epsilon(ratio, delta) == pytest.approx(epsilon, rel=1e-6)


def test_the_delta_is_the_hockey_stick_between_two_gaussians():
    mpmath.mp.dps = 30
    epsilon, ratio = 1.5, 0.8

    def excess(x):
        return max(mpmath.npdf(x, ratio) - mpmath.exp(epsilon) * mpmath.npdf(x), mpmath.mpf(0))

    crossing = ratio / 2 + epsilon / ratio
    expected = mpmath.quad(excess, [crossing, crossing + 2, crossing + 5, crossing + 15])
    assert gaussian_delta(epsilon, ratio) == pytest.approx(float(expected), rel=1e-8)


def test_the_table_is_as_close_to_a_rounded_gaussian_as_it_says():
    mpmath.mp.dps = 40
    noise = rounded_gaussian()
    assert sum(noise.masses.tolist()) == WORD_RANGE
    edges = [mpmath.ncdf(-(mpmath.mpf(k) - mpmath.mpf(1) / 2) / STEPS) for k in range(noise.reach + 1)]
    expected = [edges[k] - edges[k + 1] for k in range(noise.reach)] + [edges[noise.reach]]
    found = noise.masses[noise.reach :].tolist()
    apart = [abs(mpmath.mpf(mass) / WORD_RANGE - mass_) for mass, mass_ in zip(found, expected, strict=True)]
    beyond = edges[noise.reach]  # all that the last entry stands for lies further out in a Gaussian
    assert float((apart[0] + 2 * sum(apart[1:])) / 2 + 2 * beyond) < DISTANCE


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 1e-6), (4.0, 1e-6)])
def test_what_the_table_draws_keeps_to_the_bound_for_neighbours_on_the_grid(epsilon, delta):
    """Every output of two neighbours, by the table's own masses: no sampling, no theorem."""
    noise, shift = rounded_gaussian(), int(gaussian_ratio(epsilon, delta, DISTANCE) * STEPS)
    masses = noise.masses.astype(np.longdouble) / WORD_RANGE
    one, other = np.append(masses, np.zeros(shift)), np.append(np.zeros(shift), masses)
    found = np.maximum(one - np.exp(np.longdouble(epsilon)) * other, 0).sum()
    assert 0.9 * delta < found <= delta


def test_words_become_steps_by_the_distribution_function():
    noise = rounded_gaussian()
    words = np.random.default_rng(5).integers(0, 2**64, 200_000, dtype=np.uint64)
    steps = noise.draw(words) / STEPS
    assert abs(steps.mean()) < 4 / math.sqrt(len(words))
    assert steps.std() == pytest.approx(1.0, abs=0.01)
    assert noise.draw(np.array([0, 2**64 - 1], dtype=np.uint64)).tolist() == [-noise.reach, noise.reach]


def test_gaussian_releases_compose_to_the_root_of_their_squares():
    one = GaussianRelease(gaussian_ratio(1.0, 1e-6))
    four = Composed(one, 4)
    assert online_epsilon(four, 1e-6) == gaussian_epsilon(2 * one.ratio, 1e-6)
    assert filtered_epsilon(four, 10.0, 1e-6) == reported_epsilon(four, 1e-6) == online_epsilon(four, 1e-6)
    assert 1.0 < online_epsilon(four, 1e-6) < 4.0
    both = Together((one, GaussianRelease(0.5)))
    assert online_epsilon(both, 1e-6) == gaussian_epsilon(math.hypot(one.ratio, 0.5), 1e-6)


def test_beside_other_noise_gaussian_releases_compose_by_renyi():
    mixed = Together((GaussianRelease(0.2), PureRelease(1.0)))
    alone = online_epsilon(GaussianRelease(0.2), 1e-6)
    assert alone < online_epsilon(mixed, 1e-6) < alone + 1.0 + 0.5
    assert filtered_epsilon(mixed, 10.0, 1e-6) < math.inf


def test_the_distance_of_the_table_is_paid_out_of_delta():
    distance = 1e-9
    ratio = gaussian_ratio(3.0, 1e-6, distance)
    assert ratio < gaussian_ratio(3.0, 1e-6)
    assert gaussian_delta(3.0, ratio) + (1 + math.exp(3.0)) * distance <= 1e-6
    assert gaussian_epsilon(ratio, 1e-6, distance) == pytest.approx(3.0, rel=1e-6)
    with pytest.raises(EpsilonOutOfRange, match="lower epsilon"):
        gaussian_ratio(20.0, 1e-6, distance)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 1e-6), (1.0, 0.0), (math.inf, 1e-6)])
def test_figures_that_no_noise_can_keep_to_are_refused(epsilon, delta):
    with pytest.raises(EpsilonOutOfRange):
        gaussian_ratio(epsilon, delta)
