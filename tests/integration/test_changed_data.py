"""Values that change between a stop and the resume: told, never trained on as if nothing had happened."""

import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parley.client import RequestRefused
from parley.services.party.config import TableConfig
from parley.services.party.tables import TableStore
from parley.splitting import split_dataset
from parley.tables.digests import table_digest
from parley.testing.federations import ForkedFederation
from tests.integration.conftest import spec

PARTIES = ("bank", "shop", "telco")
TEXT = spec(name="changed", table="train", train__upper__steps=5000, checkpoint_every=2, evaluate_every=0)


@pytest.fixture
def data(tmp_path):
    split_dataset("digits", PARTIES, tmp_path / "data", limit=300)
    return tmp_path / "data"


def federation(data, **policy):
    tables = {name: {"train": {"path": str(data / f"{name}.parquet")}} for name in PARTIES}
    labels = {"train": {"path": str(data / "labels.parquet")}}
    return ForkedFederation(data.parent / "federation", tables, labels, policy=policy)


def events_until(run, step):
    found = []
    for event in run.watch():
        found.append(event)
        if event.step >= step:
            return found
    return found


def change_first_value(path):
    """Give the first row the value of another one in its last column."""
    table = pq.read_table(path)
    name = next(name for name in reversed(table.column_names) if len(table[name].unique()) > 1 and name != "id")
    values = table[name].to_pylist()
    values[0] = next(value for value in values if value != values[0])
    at = table.column_names.index(name)
    pq.write_table(table.set_column(at, name, pa.array(values, table[name].type)), path)


def test_changed_features_are_refused_and_the_old_ones_go_on(tmp_path, data):
    with federation(data) as local, local.connect() as client:
        run = client.start(TEXT)
        events_until(run, 4)
        run.cancel()
        shutil.copy(data / "shop.parquet", tmp_path / "kept.parquet")
        change_first_value(data / "shop.parquet")
        with pytest.raises(RequestRefused, match="shop: table train changed since the run began"):
            run.resume()
        shutil.copy(tmp_path / "kept.parquet", data / "shop.parquet")
        run.resume()
        assert events_until(run, 8)[-1].step >= 8
        run.cancel()


def test_an_owner_may_let_a_run_on_changed_features_begin_anew(data):
    with federation(data, changed_data="restart") as local, local.connect() as client:
        run = client.start(TEXT)
        events_until(run, 4)
        run.cancel()
        change_first_value(data / "shop.parquet")
        run.resume()
        begun = (event.state_change for event in run.watch() if event.kind == "state" and event.state_change.attempt)
        assert [(change.attempt, change.from_step) for change in (next(begun), next(begun))] == [(1, 0), (2, 0)]
        run.cancel()


def test_changed_labels_are_refused_since_their_noise_would_be_the_same(data):
    with federation(data) as local, local.connect() as client:
        run = client.start(TEXT)
        events_until(run, 4)
        run.cancel()
        before = len(run.ledger().entries)
        change_first_value(data / "labels.parquet")
        run.resume()
        assert list(run.watch())[-1].state_change.reason.startswith("The labels of run")
        assert run.refresh().state == "FAILED"
        assert len(run.ledger().entries) == before


def test_a_digest_is_about_values_and_not_about_their_order_in_the_file(data):
    path = data / "shop.parquet"

    def digest():
        return table_digest(TableStore({"train": TableConfig(path=path)}).load("train"))

    first, table = digest(), pq.read_table(path)
    pq.write_table(table.take(list(range(len(table)))[::-1]), path)
    assert digest() == first
    change_first_value(path)
    assert digest() != first
