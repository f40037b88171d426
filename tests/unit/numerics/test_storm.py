import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.numerics.storm import InvalidDecay, InvalidSchedule, Schedule, storm


def noisy_gradients(decay: float, steps: int, *, same_batch: bool) -> float:
    """Mean squared error of the estimate of ∇ ½‖x‖² = x along a slow walk, from gradients x·(1 + noise)."""
    generator = np.random.default_rng(7)
    x = np.ones(50)
    estimate = x * (1 + generator.standard_normal(50))
    errors = []
    for _ in range(steps):
        previous, x = x, x * 0.999
        noise = generator.standard_normal(50)
        other = noise if same_batch else generator.standard_normal(50)
        estimate = storm(x * (1 + noise), estimate, previous * (1 + other), decay)
        errors.append(float(np.mean((estimate - x) ** 2)))
    return float(np.mean(errors[-100:]) / np.mean(x**2))


def test_the_estimate_is_much_better_than_one_sample_when_both_gradients_share_a_batch():
    assert noisy_gradients(0.05, 400, same_batch=True) < 0.1


def test_different_batches_make_the_estimate_worse_than_one_sample():
    assert noisy_gradients(0.05, 400, same_batch=False) > 5.0


@given(st.floats(-1e3, 1e3), st.floats(-1e3, 1e3), st.floats(-1e3, 1e3))
def test_a_decay_of_one_forgets_everything_and_zero_keeps_the_whole_error(gradient, estimate, previous):
    new, old, kept = np.array([gradient]), np.array([previous]), np.array([estimate])
    assert storm(new, kept, old, 1.0) == new
    assert storm(new, kept, old, 0.0) == pytest.approx(new - old + kept, abs=1e-9)


@pytest.mark.parametrize("decay", [-0.1, 1.01, float("nan")])
def test_a_decay_that_amplifies_errors_is_refused(decay):
    with pytest.raises(InvalidDecay, match="lower the momentum constant"):
        storm(np.ones(1), np.ones(1), np.ones(1), decay)


def test_the_schedule_falls_with_the_cube_root_of_time():
    schedule = Schedule(delta=2.0, offset=8.0)
    assert schedule.step(0) == pytest.approx(1.0)
    assert schedule.step(8**3 * 8 - 8) == pytest.approx(1.0 / 8.0)
    assert Schedule(0.3).step(10**6) == 0.3


@pytest.mark.parametrize(("delta", "offset"), [(0.0, None), (-1.0, 8.0), (1.0, 0.0), (float("inf"), None)])
def test_a_schedule_without_positive_steps_is_refused(delta, offset):
    with pytest.raises(InvalidSchedule):
        Schedule(delta, offset)
