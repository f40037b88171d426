"""A disk that takes no writes is told by name, and what was there stays."""

import numpy as np
import pytest
import sqlalchemy as sa

from parley.privacy.accounting import RandomisedResponse, RecordCounts
from parley.privacy.ledger import Budget, Charge, Ledger, LedgerUnusable
from parley.services.coordinator.registry import Registry
from parley.services.coordinator.registry_tables import RunRecord
from parley.storage.failures import StorageFailed


@pytest.fixture
def engine(tmp_path):
    """A database whose pages are used up as soon as `PRAGMA max_page_count` says so."""
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'small.db'}", poolclass=sa.pool.StaticPool)
    yield engine
    engine.dispose()


def fill(engine):
    with engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count = 1")  # SQLite takes the present size where this is less


def make_room(engine):
    with engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count = 1000000")


def record(number):
    return RunRecord(f"run-{number}", f"request-{number}", "x", "bambi", ("a",), "name: x\n" * 2000, steps=1)


def test_a_run_that_cannot_be_written_down_is_refused_by_name_and_is_not_there(engine):
    registry = Registry(engine)
    registry.create(record(0))
    fill(engine)
    with pytest.raises(StorageFailed, match="make room"):
        registry.create(record(1))
    make_room(engine)
    assert [run.run_id for _, run in registry.page(10)] == ["run-0"]
    registry.create(record(1))


def test_a_charge_that_cannot_be_written_down_is_refused_by_name_and_costs_nothing(engine):
    ledger = Ledger(engine)
    ledger.open_run("run", 50_000, Budget(100.0))
    counts = RecordCounts(np.random.default_rng(0).integers(0, 2, 50_000))
    charge = Charge(RandomisedResponse(1.0, 10), ("bank",), counts)
    fill(engine)
    with pytest.raises(LedgerUnusable, match="nothing was released"):
        ledger.reserve("run", 0, 1, charge)
    assert not ledger.covers("run", 0)
    make_room(engine)
    ledger.reserve("run", 0, 1, charge)
    assert ledger.verify("run").length == 1
