"""Distinct numbers are counted like a set counts them."""

from hypothesis import given
from hypothesis import strategies as st

from parley.numerics.number_ranges import NumberRanges


@given(st.lists(st.integers(0, 30)))
def test_numbers_are_counted_as_a_set_counts_them(numbers):
    seen = NumberRanges()
    for number in numbers:
        seen.add(number)
    assert len(seen) == len(set(numbers))
    assert [number for part in seen.ranges for number in part] == sorted(set(numbers))


def test_a_long_sequence_with_repeats_takes_one_range():
    seen = NumberRanges()
    for number in range(10_000):
        seen.add(number)
        seen.add(number // 2)
    assert seen.ranges == [range(10_000)]
