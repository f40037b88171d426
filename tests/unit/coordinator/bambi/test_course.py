"""What the coordinator remembers of a run, and when it warns."""

import math

import pytest

from parley.coordinator.bambi.course import SETTLING, SMALLEST_SCALE, Course, above_floor
from parley.numerics.losses import ForwardCorrectedLogistic, Logistic, noise_floor


def after(losses, course=None):
    course, topics = course or Course(), []
    for loss in losses:
        course, warning = course.seen(loss).judged("change it")
        topics += [warning.topic] if warning else []
    return course, topics


def test_x_may_move_less_where_the_lower_level_does_not_follow_and_more_again_where_it_does():
    course = Course().lower_solved(1.0, 0.5)
    assert course.scale == 1.0
    course = course.lower_solved(2.0, 0.6)
    assert course.scale == 0.5
    for _ in range(4):
        course = course.lower_solved(1.0, 0.5)
    assert course.scale == 1.0


def test_x_never_stops_altogether():
    course = Course()
    for k in range(40):
        course = course.lower_solved(2.0**k, 1.0)
    assert course.scale == SMALLEST_SCALE


def test_a_run_that_learns_is_not_warned_of():
    assert after([1 / (1 + k) for k in range(60)])[1] == []


def test_a_run_that_ends_worse_than_it_began_is_warned_of_once():
    assert after([1.0] + [1.4] * 40)[1] == ["worse than its start"]


def test_a_run_that_jumps_is_warned_of_once():
    assert after([2.0] + [0.1, 0.1, 0.1, 1.0] * 20)[1] == ["oscillates"]


def test_what_is_left_of_a_small_loss_may_differ_from_batch_to_batch():
    assert after([2.0] + [0.1, 0.05, 0.05, 0.3] * 20)[1] == []


def test_nothing_is_said_before_a_run_has_settled():
    assert after([1.0] + [9.0] * (SETTLING - 1))[1] == []


def test_a_course_survives_a_checkpoint_to_the_bit():
    for course in (Course(), after([1.0] + [1.4] * 40, Course().lower_solved(0.1, 0.3).lower_solved(0.7, 0.1))[0]):
        assert Course.decoded(course.encoded()) == course


@pytest.mark.parametrize(
    ("loss", "value", "left"), [(Logistic(), 0.4, 0.4), (ForwardCorrectedLogistic(0.25), 0.1, 1e-3)]
)
def test_losses_count_above_what_the_noise_of_labels_costs(loss, value, left):
    assert math.isclose(above_floor(noise_floor(loss), value), left)
