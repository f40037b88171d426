"""When something is due again and again: `day at 02:00`, `monday at 02:00`, `hour`, `30 minutes`; in UTC."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_CLOCK = re.compile(r"(day|" + "|".join(_DAYS) + r") at ([01]\d|2[0-3]):([0-5]\d)")
_SPAN = re.compile(r"(\d{1,4}) (minute|hour)s?")
_EPOCH = datetime(1970, 1, 5, tzinfo=UTC)
"""A Monday."""


@dataclass(frozen=True)
class Rhythm:
    """Moments that are a period apart."""

    period: timedelta
    offset: timedelta
    """Of any one of the moments from a Monday at midnight."""

    def last_before(self, moment: datetime) -> datetime:
        """The newest moment that is not after this one."""
        since = moment - _EPOCH - self.offset
        return _EPOCH + self.offset + self.period * (since // self.period)

    def next_after(self, moment: datetime) -> datetime:
        """The first moment after this one."""
        return self.last_before(moment) + self.period


def parse_every(text: str) -> Rhythm:
    """The rhythm that a configuration asks for.

    Raises:
        ValueError: if it is none.
    """
    words = " ".join(text.lower().split())
    if found := _CLOCK.fullmatch(words):
        clock = timedelta(hours=int(found[2]), minutes=int(found[3]))
        if found[1] == "day":
            return Rhythm(timedelta(days=1), clock)
        return Rhythm(timedelta(weeks=1), timedelta(days=_DAYS.index(found[1])) + clock)
    if found := _SPAN.fullmatch("1 hour" if words == "hour" else words):
        minutes = int(found[1]) * (60 if found[2] == "hour" else 1)
        if minutes:
            return Rhythm(timedelta(minutes=minutes), timedelta())
    raise ValueError(
        f"{text!r:.60} says no time: write day at 02:00, monday at 02:00, hour or 30 minutes; times are in UTC"
    )
