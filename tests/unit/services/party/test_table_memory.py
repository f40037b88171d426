"""What a party keeps of the tables it has read."""

import gc
import weakref

import numpy as np
import pytest

from parley.services.party.config import TableConfig
from parley.services.party.tables import TableStore


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
