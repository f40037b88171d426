import numpy as np
import pytest
from scipy import stats

from parley.privacy.laplace_noise import (
    ScaleOutOfRange,
    ValueOutOfRange,
    add_laplace,
    grid_step,
    laplace_steps,
    rounding_loss,
    sampler_delta,
)
from parley.privacy.noise import KeyedNoise

NOISE = KeyedNoise(bytes(range(32)))


@pytest.mark.parametrize("scale", [1.0, 0.7071, 1e-4, 300.0])
def test_the_noise_is_laplace_of_the_declared_scale(scale):
    drawn = laplace_steps(NOISE, "run", 0, "x", 100_000, scale) * grid_step(scale)
    # The key is fixed, so this cannot flicker; over random keys a p-value falls below 1e-3 once in a thousand.
    assert stats.kstest(drawn, stats.laplace(scale=scale).cdf).pvalue > 1e-3
    assert stats.kstest(np.abs(drawn), stats.expon(scale=scale).cdf).pvalue > 1e-3


def test_coordinates_fields_and_releases_get_independent_noise():
    draws = [
        laplace_steps(NOISE, run, release, field, 20_000, 1.0)
        for run, release, field in (("a", 0, "x"), ("a", 0, "y"), ("a", 1, "x"), ("b", 0, "x"))
    ]
    correlation = np.corrcoef(draws) - np.eye(4)
    assert np.abs(correlation).max() < 0.035  # five standard errors
    assert np.abs(np.corrcoef(draws[0][:-1], draws[0][1:])[0, 1]) < 0.035


def test_a_retry_replays_the_same_bytes():
    values = np.linspace(-1, 1, 50)
    first = add_laplace(values, 0.3, NOISE, "run", 7, "y")
    assert first.tobytes() == add_laplace(values, 0.3, NOISE, "run", 7, "y").tobytes()
    assert first.tobytes() != add_laplace(values, 0.3, KeyedNoise(b"k" * 32), "run", 7, "y").tobytes()


def test_what_leaves_lies_on_the_grid_whatever_the_value_below():
    step = grid_step(0.3)
    values = np.array([0.1, 1 / 3, np.pi, 2.0**-60])
    released = add_laplace(values, 0.3, NOISE, "run", 0, "x")
    assert np.array_equal(np.rint(released / step) * step, released)


def test_rounding_and_sampler_cost_next_to_nothing_and_are_stated():
    assert 0 < rounding_loss(1000, 0.3) < 1e-8
    assert 0 < sampler_delta(60_000) < 1e-12


def test_values_that_cannot_be_hidden_are_refused():
    with pytest.raises(ScaleOutOfRange):
        add_laplace(np.zeros(2), 0.0, NOISE, "run", 0, "x")
    with pytest.raises(ValueOutOfRange, match="'x'"):
        add_laplace(np.array([np.inf]), 1.0, NOISE, "run", 0, "x")
    with pytest.raises(ValueOutOfRange, match="box"):
        add_laplace(np.array([1e9]), 1.0, NOISE, "run", 0, "x")
