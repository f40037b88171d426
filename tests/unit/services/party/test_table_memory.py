"""What a party keeps of the tables it has read."""

import gc
import weakref
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parley.services.party.config import TableConfig
from parley.services.party.tables import TableStore, must_hold_rows
from parley.tables.errors import TableTooLarge
from parley.tables.row_files import Workspace


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "rows.npz"
    features = np.random.default_rng(0).standard_normal((50, 8))
    ids, columns = np.array([f"{row}" for row in range(50)]), np.array([f"c{column}" for column in range(8)])
    np.savez(path, x=features, ids=ids, columns=columns)
    return TableStore({"rows": TableConfig(path=path)})


def test_choices_of_columns_that_nobody_works_on_are_given_back(store):
    seen = [weakref.ref(store.load("rows", (f"c{column}", "c7"))) for column in range(7)]
    gc.collect()
    assert [each() is not None for each in seen] == [False] * 6 + [True]
    assert len(store._loaded) <= 2


def test_a_table_that_somebody_works_on_is_read_once(store):
    held = store.load("rows", ("c0",))
    store.load("rows", ("c1",))
    assert store.load("rows", ("c0",)) is held


def test_the_last_choice_is_kept_for_the_next_run(store):
    first = id(store.load("rows", ("c0",)).features)
    gc.collect()
    assert id(store.load("rows", ("c0",)).features) == first


@pytest.mark.parametrize(
    ("maps_rows", "features", "predicts", "held"),
    [
        ("always", "none", False, False),
        ("always", "none", True, False),
        ("always", "once", False, True),
        ("always", "per_sum", False, True),
        ("predicting", "none", False, True),
        ("predicting", "none", True, False),
        ("never", "none", True, True),
    ],
)
def test_rows_are_held_where_the_algorithm_or_its_noise_reads_them_at_once(maps_rows, features, predicts, held):
    assert must_hold_rows(maps_rows, features, predicts=predicts) is held


def test_a_mapped_table_that_memory_has_no_room_for_is_refused_where_it_must_be_held(tmp_path):
    pq.write_table(pa.table({"id": range(1000), "a": np.zeros(1000)}), tmp_path / "rows.parquet")
    store = TableStore({"rows": TableConfig(path=tmp_path / "rows.parquet")}, Workspace(tmp_path / "state", 100 << 20))
    table = store.load("rows")
    store.require_room(table, "fedbio")
    crowded = replace(table, files=replace(table.files, memory=15_000))
    with pytest.raises(TableTooLarge, match=r"fedbio holds its 1000 rows in memory here.*Raise `memory`"):
        store.require_room(crowded, "fedbio")
