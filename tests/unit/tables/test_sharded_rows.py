"""Rows in shards: the same results as in one piece, in bits that follow from the number of shards."""

from functools import partial

import numpy as np
import pytest

from parley.tables.rows import LocalRows, ShardedRows

VALUES = np.random.default_rng(0).normal(size=(1000, 5)).astype(np.float32)
BATCH = np.random.default_rng(1).permutation(1000)[:300]
column_sums = partial(np.sum, axis=0)


def weighed(batch, weights):
    return batch.T @ weights


@pytest.mark.parametrize("shards", [1, 3, 16, 1000, 1500])
def test_sums_over_shards_are_those_over_all_rows(shards):
    weights = np.random.default_rng(2).normal(size=(300, 2))
    whole, cut = LocalRows(VALUES, "float64"), ShardedRows(VALUES, "float64", shards=shards)
    np.testing.assert_allclose(cut.fold(column_sums), whole.fold(column_sums), rtol=1e-6)
    np.testing.assert_allclose(
        cut.fold(weighed, BATCH, weights), whole.fold(weighed, BATCH, weights), rtol=1e-6, atol=1e-9
    )


@pytest.mark.parametrize("shards", [1, 3, 16, 1500])
def test_row_wise_work_comes_back_in_the_order_of_the_batch(shards):
    beside = np.arange(300.0)[:, None]
    cut = ShardedRows(VALUES, shards=shards)
    assert np.array_equal(cut.map(np.negative, BATCH), -VALUES[BATCH])
    assert np.array_equal(cut.map(np.add, BATCH, beside), VALUES[BATCH] + beside)
    assert np.array_equal(cut.map(np.negative), -VALUES)


def test_sums_are_added_in_the_order_of_shards_wherever_their_rows_stand_in_the_batch():
    cut = ShardedRows(VALUES, shards=4)
    parts = [VALUES[BATCH[shard == BATCH // 250]].sum(axis=0) for shard in range(4)]
    by_hand = parts[0] + parts[1] + parts[2] + parts[3]
    assert cut.fold(column_sums, BATCH).tobytes() == by_hand.tobytes()


def test_rows_that_are_not_there_are_refused():
    cut = ShardedRows(VALUES, shards=4)
    with pytest.raises(ValueError, match="no rows"):
        cut.fold(column_sums, np.empty(0, dtype=np.int64))
    with pytest.raises(IndexError, match="from 0 to 999"):
        cut.map(np.negative, np.array([3, 1000]))
    with pytest.raises(IndexError, match="from 0 to 999"):
        cut.map(np.negative, np.array([-1]))
