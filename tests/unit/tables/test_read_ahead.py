"""Batches that are read ahead are those that were asked for, whatever was expected."""

import numpy as np
import pytest

from parley.tables.read_ahead import ReadAheadRows

ROWS, COLUMNS = 500, 4


@pytest.fixture
def values(tmp_path):
    drawn = np.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype("<f4")
    drawn.tofile(tmp_path / "features")
    return np.memmap(tmp_path / "features", dtype="<f4", mode="r", shape=drawn.shape)


def drawn(number):
    return np.sort(np.random.default_rng(number).choice(ROWS, 20, replace=False))


def after(number, last=10):
    return lambda: map(drawn, range(number + 1, last))


def test_batches_in_the_expected_order_are_read_by_few_passes(values, monkeypatch):
    passes = []
    whole = ReadAheadRows._gathered
    monkeypatch.setattr(ReadAheadRows, "_gathered", lambda rows, batches: passes.append(0) or whole(rows, batches))
    rows = ReadAheadRows(values, np.float32, room=4 * COLUMNS * 20 * 4)
    for number in range(10):
        for _ in range(2):  # a batch may be asked for again
            np.testing.assert_array_equal(rows.batch("upper", drawn(number), after(number)), values[drawn(number)])
    assert len(passes) == 3


def test_a_batch_that_nobody_expected_is_read_all_the_same(values):
    rows = ReadAheadRows(values, np.float64, room=10_000, ones=True)
    for number in (0, 7, 3, 3, 9):
        got = rows.batch("lower", drawn(number), after(number))
        assert got.dtype == np.float64
        np.testing.assert_array_equal(got, np.c_[values[drawn(number)], np.ones(20)])


def test_a_batch_that_is_larger_than_the_room_is_read_alone(values):
    rows = ReadAheadRows(values, np.float32, room=1)
    np.testing.assert_array_equal(rows.batch("upper", np.arange(ROWS), after(0)), values)
