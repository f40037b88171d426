"""Waiting for lost parties, without a clock."""

import pytest

from parley.services.coordinator.waiting import Going, Paused

START = 1000.0


def delays(paused: Paused, now: float) -> list[float]:
    """Every delay until the run gives up, if no attempt succeeds."""
    found = []
    while not paused.is_over(now):
        found.append(paused.delay_seconds)
        now += paused.delay_seconds
        paused = paused.tried()
    return found


@pytest.mark.parametrize(
    ("patience", "tries"),
    [
        (0.4, []),
        (0.5, [0.5]),
        (8.0, [0.5, 1.0, 2.0, 4.0]),
        (60.0, [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0, 10.0]),
    ],
)
def test_attempts_come_at_doubled_delays_until_the_next_would_be_too_late(patience, tries):
    assert delays(Going(patience, START).lost(START + 3, checkpoint=0), START + 3) == tries


def test_a_failed_attempt_moves_no_deadline():
    paused = Going(60.0, START).lost(START, checkpoint=0)
    assert paused.tried().tried().deadline == paused.deadline == START + 60


@pytest.mark.parametrize(
    ("lasted", "checkpoint", "deadline"),
    [
        (1.0, 5, START + 60),  # at once, and nothing was gained: the same loss
        (60.0, 5, START + 60),
        (61.0, 5, START + 7 + 61 + 60),  # it went on for longer than a party is waited for
        (1.0, 6, START + 7 + 1 + 60),  # it made a checkpoint
    ],
)
def test_a_link_that_breaks_again_gets_a_new_deadline_only_if_the_run_got_somewhere(lasted, checkpoint, deadline):
    first = Going(60.0, START).lost(START, checkpoint=5).tried()
    again = first.resumed(START + 7).lost(START + 7 + lasted, checkpoint)
    assert (again.deadline, again.checkpoint, again.delay_seconds) == (deadline, checkpoint, 0.5)


def test_a_link_that_breaks_again_and_again_is_given_up_at_the_first_deadline():
    waiting, now, attempts = Going(10.0, START).lost(START, checkpoint=0), START, 0
    while not waiting.is_over(now):
        now += waiting.delay_seconds
        waiting = waiting.tried().resumed(now).lost(now + 0.1, checkpoint=0)
        now, attempts = now + 0.1, attempts + 1
    assert attempts == 16  # 0.6 s each
    assert now < START + 10


def test_a_run_that_began_without_a_pause_waits_in_full():
    assert Going(60.0, START).resumed(START + 500).lost(START + 501, checkpoint=0).deadline == START + 561
