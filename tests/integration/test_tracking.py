"""Runs in MLflow, TensorBoard and OpenTelemetry, read back with the tools themselves, and no private value in any."""

import json
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parley.testing.federations import ForkedFederation
from tests.integration.conftest import spec

PARTIES = ("bank", "shop", "telco")
FEATURE, LABEL = "73123.4567", "secret-class-81"
"""Features are near this number, one class has this name."""
PATIENCE_SECONDS = 240


@pytest.fixture(scope="module")
def tracked(tmp_path_factory):
    """A federation whose values are sentinels, with one finished run; traces of each process are in a file."""
    folder = tmp_path_factory.mktemp("tracked")
    random, rows = np.random.default_rng(0), 240
    sign = random.choice([-1.0, 1.0], rows)
    ids, tables = [f"r{row}" for row in range(rows)], {}
    for name in PARTIES:
        features = float(FEATURE) + 1e-3 * (sign[:, None] + random.normal(size=(rows, 3)))
        pq.write_table(pa.table({"id": ids, **dict(zip("abc", features.T, strict=True))}), folder / f"{name}.parquet")
        tables[name] = {"train": {"path": folder / f"{name}.parquet", "standardise": True}}
    labels = {"id": ids, "label": np.where(sign > 0, LABEL, "other-class").tolist()}
    pq.write_table(pa.table(labels), folder / "labels.parquet")
    tracking = {
        "mlflow": {"uri": f"sqlite:///{folder}/mlflow.db", "artefacts": f"file://{folder}/artefacts"},
        "tensorboard": str(folder / "board"),
    }
    local = ForkedFederation(
        folder / "federation",
        tables,
        {"train": {"path": folder / "labels.parquet"}},
        coordinator_options={"tracking": tracking, "traces": {"file": str(folder / "coordinator.traces")}},
        party_options={"traces": {"file": str(folder / "parties.traces")}},
    )
    with local, local.connect() as client:
        small = spec(table="train", train__upper={"steps": 4, "batch": 32}, train__lower={"steps": 1, "batch": 32})
        run = client.start(small)
        run.result()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (folder / "board" / run.run_id / "card.html").exists() or not ended(folder, run.run_id):
            assert time.monotonic() < deadline, local.log("coordinator") if hasattr(local, "log") else ""
            time.sleep(0.2)
        message = run.refresh().message
    return folder, run.run_id, {metric.name: metric.value for metric in message.metrics}


def mlflow_run(folder, run_id):
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{folder}/mlflow.db")
    experiment = client.get_experiment_by_name("parley")
    found = client.search_runs([experiment.experiment_id], f"tags.`parley.run_id` = '{run_id}'") if experiment else []
    return client, found


def ended(folder, run_id):
    _, found = mlflow_run(folder, run_id)
    return bool(found) and found[0].info.status == "FINISHED"


def test_mlflow_has_settings_metrics_epsilon_bytes_and_the_card(tracked):
    folder, run_id, metrics = tracked
    client, (run,) = mlflow_run(folder, run_id)
    assert run.info.run_name == run_id
    assert run.data.params["train.algorithm"] == "bambi"
    assert run.data.params["train.upper.steps"] == "4"
    assert run.data.params["parties"] == json.dumps(list(PARTIES))
    assert run.data.metrics["test accuracy"] == metrics["test accuracy"]
    assert run.data.metrics["bytes"] > 0
    assert run.data.metrics["epsilon"] == pytest.approx(5)
    assert run.data.tags["parley.started_by"] == "client client"
    steps = [metric.step for metric in client.get_metric_history(run.info.run_id, "test accuracy")]
    assert steps == sorted(set(steps)), "each evaluation once"
    assert {file.path for file in client.list_artifacts(run.info.run_id)} >= {"card.html", "card.json", "spec.yaml"}


def test_tensorboard_reads_the_curves_and_the_settings(tracked):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder, run_id, metrics = tracked
    read = EventAccumulator(str(folder / "board" / run_id)).Reload()
    assert {"test_accuracy", "epsilon", "bytes"} <= set(read.Tags()["scalars"])
    assert read.Scalars("test_accuracy")[-1].value == pytest.approx(metrics["test accuracy"], rel=1e-6)
    text = read.Tensors("settings/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "`train.algorithm` | bambi" in text
    assert json.loads((folder / "board" / run_id / "card.json").read_text())["run"]["run_id"] == run_id


def spans(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_one_trace_for_the_run_and_a_span_for_each_round_at_everyone(tracked):
    folder, run_id, metrics = tracked
    own, parts = spans(folder / "coordinator.traces"), spans(folder / "parties.traces")
    assert len({span["context"]["trace_id"] for span in own + parts}) == 1
    (root,) = (span for span in own if span["name"] == "run")
    assert root["parent_id"] is None
    assert root["attributes"] == {"parley.run": run_id, "parley.state": "COMPLETED", "parley.steps": 4}
    rounds = {span["context"]["span_id"]: span for span in own if span["name"] == "round"}
    assert len(rounds) == metrics["rounds"]
    assert {span["parent_id"] for span in rounds.values()} == {root["context"]["span_id"]}
    for party in PARTIES:
        mine = [span for span in parts if span["attributes"]["parley.party"] == party]
        assert {span["parent_id"] for span in mine} == rounds.keys()
        assert all(
            rounds[s["parent_id"]]["attributes"]["parley.round"] == s["attributes"]["parley.round"] for s in mine
        )
    known = {"parley.run", "parley.round", "parley.party", "parley.bytes", "parley.state", "parley.steps"}
    assert {name for span in own + parts for name in span["attributes"]} <= known


def test_no_feature_is_told_and_classes_by_the_card_alone(tracked):
    folder, _, _ = tracked
    told = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".parquet"]
    told = [path for path in told if "federation" not in path.relative_to(folder).parts]
    assert len(told) >= 8
    for path in told:
        content = path.read_bytes()
        for private in (FEATURE[:7].encode(), np.float64(FEATURE).tobytes()[3:]):
            assert private not in content, path.name
        if not path.name.startswith("card."):  # whose matrix names the classes, as on the page
            assert LABEL.encode() not in content, path.name
