import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.numerics.streams import InvalidStream, batch, directions, stream


def test_a_stream_gives_the_same_words_on_every_machine():
    words = stream(7, "batch", 3, 5).bit_generator.random_raw(4)
    assert words.tolist() == [
        3223765391038473084,
        18078333986832959137,
        182988455198450601,
        7593805000902823829,
    ]


def test_a_batch_gives_the_same_rows_on_every_machine():
    assert batch(7, "lower", 3, 5, 50_000, 8).tolist() == [
        1678,
        6907,
        19294,
        30190,
        36433,
        39784,
        42134,
        42964,
    ]
    assert batch(7, "lower", 3, 5, 10, 7).tolist() == [0, 1, 2, 5, 6, 8, 9]


def test_directions_give_the_same_values_on_every_machine():
    golden = [
        [0.3110458348227611, -1.583710508070914, -0.6285789650196535],
        [-1.6996958377366518, -0.24357471797480976, -0.22738824935381696],
    ]
    np.testing.assert_allclose(directions(7, 2, 2, 3), golden, rtol=1e-12)


def test_another_process_draws_the_same_bits():
    expression = "batch(1, 'a', 2, 3, 999, 5).tolist(), directions(1, 2, 2, 2).tolist()"
    program = f"from parley.numerics.streams import *; print({expression})"
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == f"{batch(1, 'a', 2, 3, 999, 5).tolist()} {directions(1, 2, 2, 2).tolist()}"


@pytest.mark.parametrize("other", [(8, "a", 1, 2), (7, "b", 1, 2), (7, "a", 2, 2), (7, "a", 1, 3), (7, "a", 2, 1)])
def test_each_part_of_the_address_gives_another_stream(other):
    assert not np.array_equal(stream(7, "a", 1, 2).random(4), stream(*other).random(4))


def test_a_seed_and_a_name_cannot_be_confused_with_another_pair():
    assert stream(1, "1a").random() != stream(11, "a").random()
    assert stream(1, "\x001").random() != stream(1, "1").random()


def test_a_negative_iteration_is_refused():
    with pytest.raises(InvalidStream, match="k=-1"):
        stream(1, "a", -1)


@given(rows=st.integers(1, 300), size=st.integers(1, 400), t=st.integers(0, 10_000))
def test_a_batch_holds_distinct_rows_in_order(rows, size, t):
    drawn = batch(3, "lower", 0, t, rows, size)
    assert drawn.dtype == np.int64
    assert len(drawn) == min(rows, size)
    assert np.all(np.diff(drawn) > 0)
    assert drawn[0] >= 0
    assert drawn[-1] < rows


@pytest.mark.parametrize("size", [3, 7])
def test_every_row_is_equally_likely(size):
    # 20000 draws: the largest of 10 counts strays more than 5 standard deviations once in 200000 seeds.
    counts = sum(np.bincount(batch(5, "lower", 0, t, 10, size), minlength=10) for t in range(20_000))
    share = size / 10
    deviation = np.sqrt(20_000 * share * (1 - share))
    assert np.max(np.abs(counts - 20_000 * share)) < 5 * deviation


def test_few_rows_of_many_are_the_first_that_are_drawn():
    words = stream(5, "upper", 3).bit_generator.random_raw(400) % np.uint64(3000)
    first = list(dict.fromkeys(words.tolist()))[:60]
    assert batch(5, "upper", 3, 0, 3000, 60).tolist() == sorted(first)


def test_rows_given_as_an_array_are_drawn_from_by_position():
    rows = np.array([40, 10, 30, 20])
    assert batch(1, "a", 0, 0, rows, 9).tolist() == [40, 10, 30, 20]
    assert set(batch(1, "a", 0, 0, rows, 2).tolist()) <= {10, 20, 30, 40}
    np.testing.assert_array_equal(batch(1, "a", 0, 0, rows, 2), rows[batch(1, "a", 0, 0, 4, 2)])


@pytest.mark.parametrize(("rows", "size"), [(0, 1), (5, 0), (np.empty(0, np.int64), 1), (np.zeros((2, 2)), 1)])
def test_a_batch_that_cannot_be_drawn_is_refused(rows, size):
    with pytest.raises(InvalidStream):
        batch(1, "a", 0, 0, rows, size)


@given(size=st.integers(1, 12), k=st.integers(0, 99))
@settings(max_examples=30)
def test_a_full_set_of_orthogonal_directions_resolves_the_identity(size, k):
    u = directions(2, k, size, size)
    np.testing.assert_allclose(u.T @ u / size, np.eye(size), atol=1e-12)


@given(count=st.integers(1, 20), size=st.integers(1, 7))
@settings(max_examples=30)
def test_directions_are_orthogonal_within_a_block_and_of_length_root_size(count, size):
    u = directions(2, 0, count, size)
    assert u.shape == (count, size)
    for start in range(0, count, size):
        block = u[start : start + size]
        np.testing.assert_allclose(block @ block.T, size * np.eye(len(block)), atol=1e-11)


@pytest.mark.parametrize("kind", ["orthogonal", "gaussian"])
def test_a_direction_has_identity_covariance_and_no_preferred_sign(kind):
    # 4000 draws in 3 dimensions: a false alarm needs a deviation of about 6 standard errors.
    u = np.concatenate([directions(9, k, 1, 3, kind) for k in range(4000)])
    np.testing.assert_allclose(u.T @ u / len(u), np.eye(3), atol=0.14)
    np.testing.assert_allclose(u.mean(axis=0), 0, atol=0.1)


def test_an_unknown_kind_of_direction_is_refused():
    with pytest.raises(InvalidStream, match="orthogonal"):
        directions(1, 0, 1, 3, "sobol")


def test_a_direction_on_a_line_points_both_ways():
    # 40 draws all of one sign: once in 2³⁹ seeds.
    assert {float(directions(4, k, 1, 1)[0, 0]) for k in range(40)} == {-1.0, 1.0}


def test_a_second_block_of_directions_is_not_the_first_again():
    u = directions(4, 0, 6, 3)
    assert not np.allclose(np.abs(u[:3] @ u[3:].T), 3 * np.eye(3))
    np.testing.assert_allclose(u.T @ u / 6, np.eye(3), atol=1e-12)
