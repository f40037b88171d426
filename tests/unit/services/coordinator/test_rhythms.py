"""When a schedule is due."""

from datetime import UTC, datetime

import pytest

from parley.services.coordinator.rhythms import parse_every

NOON = datetime(2026, 3, 4, 12, 0, tzinfo=UTC)  # a Wednesday


@pytest.mark.parametrize(
    ("every", "last", "following"),
    [
        ("day at 02:00", datetime(2026, 3, 4, 2), datetime(2026, 3, 5, 2)),
        ("day at 12:00", datetime(2026, 3, 4, 12), datetime(2026, 3, 5, 12)),
        ("Day  at 23:59", datetime(2026, 3, 3, 23, 59), datetime(2026, 3, 4, 23, 59)),
        ("monday at 02:30", datetime(2026, 3, 2, 2, 30), datetime(2026, 3, 9, 2, 30)),
        ("sunday at 00:00", datetime(2026, 3, 1), datetime(2026, 3, 8)),
        ("hour", datetime(2026, 3, 4, 12), datetime(2026, 3, 4, 13)),
        ("6 hours", datetime(2026, 3, 4, 12), datetime(2026, 3, 4, 18)),
        ("45 minutes", datetime(2026, 3, 4, 12), datetime(2026, 3, 4, 12, 45)),
    ],
)
def test_a_rhythm_has_a_last_and_a_next_moment(every, last, following):
    rhythm = parse_every(every)
    assert rhythm.last_before(NOON) == last.replace(tzinfo=UTC)
    assert rhythm.next_after(NOON) == following.replace(tzinfo=UTC)


@pytest.mark.parametrize("every", ["", "day", "day at 24:00", "day at 2", "someday at 02:00", "0 minutes", "-1 hours"])
def test_what_says_no_time_is_refused(every):
    with pytest.raises(ValueError, match="day at 02:00"):
        parse_every(every)
