"""Links: read from a few characters, and how long a run takes over them."""

import pytest

from parley.links import Forecast, Link


@pytest.mark.parametrize(
    ("text", "bits", "seconds"),
    [("100mbit,20ms", 1e8, 0.02), ("1.5 Gbit, 0ms", 1.5e9, 0.0), ("64kbit,600.5ms", 64e3, 0.6005)],
)
def test_a_link_is_a_rate_and_a_round_trip(text, bits, seconds):
    assert Link.parse(text) == Link(bits, seconds)


@pytest.mark.parametrize("text", ["", "100mbit", "20ms,100mbit", "0mbit,20ms", "100mb,20ms", "-1mbit,2ms"])
def test_anything_else_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match="100mbit,20ms"):
        Link.parse(text)


def test_bytes_and_round_trips_take_their_time():
    assert Link.parse("8mbit,10ms").seconds(Forecast(100, 1_500_000, 500_000)) == pytest.approx(2.0 + 1.0)
