"""More rows than any message can name: predicted by the client, the command line and plain gRPC calls."""

import csv
import time
from collections import deque

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from typer.testing import CliRunner

from parley.cli import app
from parley.client import RequestRefused
from parley.contracts.run.v1 import run_service_pb2
from parley.protocols.tensor.codec import decode_tensor
from parley.services.wire.transport import LARGEST_MESSAGE_BYTES
from parley.testing.federations import ForkedFederation


@pytest.fixture(scope="module")
def names(data):
    return pq.read_table(data / "long" / "labels.parquet")["id"].to_pylist()


@pytest.fixture(scope="module")
def run_id(federation):
    spec = {
        "name": "long",
        "table": "long",
        "parties": ["bank", "shop", "telco"],
        "train": {
            "algorithm": "asysqn",
            "schedule": "synchronous",
            "labels_at": "coordinator",
            "steps": 3,
            "batch": 500,
        },
        "privacy": {"labels": {"mechanism": "once", "epsilon": 5}},
        "evaluate_every": 0,
    }
    with federation.connect() as client:
        run = client.start(yaml.safe_dump(spec))
        run.result()
        return run.run_id


@pytest.fixture(scope="module")
def everything(federation, run_id):
    with federation.connect() as client:
        return client.run(run_id).predict()


def test_a_whole_table_is_predicted_whatever_its_ids(everything, names):
    assert sum(len(name) for name in names) > LARGEST_MESSAGE_BYTES
    assert everything.ids == names


def test_rows_that_no_message_can_name_are_predicted_in_the_order_asked_for(client, run_id, everything, names):
    wanted = names[::-1]
    found = client.run(run_id).predict(ids=wanted)
    assert found.ids == wanted
    assert found.classes == everything.classes
    np.testing.assert_allclose(found.scores, everything.scores[::-1], rtol=0, atol=1e-6)


def test_the_command_predicts_a_file_of_them(federation, run_id, names, tmp_path):
    (tmp_path / "ids.txt").write_text("\n".join(names))
    options = ["--address", federation.addresses["coordinator"], "--identity", str(federation.identity("client"))]
    chosen = ["--ids-file", str(tmp_path / "ids.txt"), "--out", str(tmp_path / "found.csv")]
    result = CliRunner().invoke(app, ["predict", run_id, *options, *chosen])
    assert result.exit_code == 0, result.output
    with (tmp_path / "found.csv").open() as file:
        assert [row["id"] for row in csv.DictReader(file)] == names


def test_a_single_call_takes_as_many_as_fit_its_message(client, run_id, names):
    fits = names[: (LARGEST_MESSAGE_BYTES - 1000) // (len(names[0]) + 4)]
    request = run_service_pb2.PredictRequest(run_id=run_id, ids=fits)
    found, classes = [], []
    for page in client.stream("Predict", request):
        assert page.ByteSize() < LARGEST_MESSAGE_BYTES
        assert len(decode_tensor(page.scores, deque(), name="scores", ndim=2)) == len(page.ids)
        found += page.ids
        classes += page.classes
    assert found == fits
    assert classes == ["0", "1"]


def test_rows_beyond_the_owners_limit_are_refused_by_its_name(client, run_id, names):
    with pytest.raises(RequestRefused, match="rows_per_day"):
        client.run(run_id).predict(ids=names * 4)


ROWS = 2_000_000


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A federation of two parties, each with a column of two million rows."""
    folder = tmp_path_factory.mktemp("large")
    drawn = np.random.default_rng(7).normal(size=(ROWS, 2)).astype(np.float32)
    ids = pa.array(np.arange(ROWS)).cast(pa.string())
    for party, column in zip(("bank", "shop"), drawn.T, strict=True):
        pq.write_table(pa.table({"id": ids, "value": column}), folder / f"{party}.parquet")
    pq.write_table(pa.table({"id": ids, "label": (drawn.sum(axis=1) > 0).astype(int)}), folder / "labels.parquet")
    tables = {party: {"train": {"path": folder / f"{party}.parquet"}} for party in ("bank", "shop")}
    labels = {"train": {"path": folder / "labels.parquet", "budget": {"epsilon": 100}}}
    policy = {"predictions": {"rows_per_day": 2 * ROWS}}
    with ForkedFederation(folder / "federation", tables, labels, policy=policy) as local:
        yield local


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_two_million_rows_are_loaded_trained_on_and_predicted(large):
    train = {"algorithm": "asysqn", "schedule": "synchronous", "labels_at": "coordinator", "steps": 3, "batch": 5000}
    text = yaml.safe_dump(
        {
            "name": "large",
            "table": "train",
            "parties": ["bank", "shop"],
            "train": train,
            "privacy": {"labels": {"mechanism": "once", "epsilon": 5}},
            "evaluate_every": 0,
            "round_seconds": 300,
        }
    )
    with large.connect() as client:
        deadline = time.monotonic() + 600
        while any(offer.loaded_percent < 100 for party in client.parties() for offer in party.offers):
            assert time.monotonic() < deadline
            time.sleep(1)  # what a person does who reads "loading, 40 %"
        run = client.start(text)
        run.result()
        found = run.predict()
        assert found.ids == [str(row) for row in range(ROWS)]
        some = [str(row) for row in range(ROWS - 1, 0, -1_000)]
        assert run.predict(ids=some).ids == some
