"""A coordinator that keeps its runs and its ledger in PostgreSQL."""

import sqlalchemy as sa

from parley.services.coordinator.registry import Registry
from parley.services.coordinator.registry_tables import RunRecord
from parley.testing.federations import ForkedFederation
from tests.integration.conftest import spec


def test_runs_and_ledger_live_in_postgresql(postgres_database, data, tmp_path):
    """A run of another version, whose spec cannot be read, fails by itself and keeps nobody down."""
    old = RunRecord("old-1", "request-1", "old", "bambi", ("bank", "shop"), "name: old", 10)
    engine = sa.create_engine(postgres_database)
    Registry(engine).create(old)
    engine.dispose()
    tables = {name: {"digits": {"path": data / "digits" / f"{name}.parquet"}} for name in ("bank", "shop", "telco")}
    labels = {"digits": {"path": data / "digits" / "labels.parquet"}}
    local = ForkedFederation(tmp_path, tables, labels, coordinator_options={"database": postgres_database})
    with local, local.connect() as client:
        old = client.run("old-1")
        assert (old.state, "cannot read" in old.reason) == ("FAILED", True)
        run = client.start(spec())
        run.result()
        assert run.ledger().report.largest_count == 1
        assert client.runs()[0].run_id == run.run_id
        assert not (tmp_path / "state" / "coordinator" / "coordinator.db").exists()
