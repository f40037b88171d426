"""A run over rows that are mapped from files gives the bits of the run over the same rows in memory."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from parley.party.bambi import role
from parley.simulation.runs import train_tables
from parley.spec.parsing import parse_spec
from parley.tables.loading import Labels, TableRequest, load_table
from parley.tables.places import Place
from parley.tables.read_ahead import ReadAheadRows
from parley.tables.row_files import Workspace, load_mapped
from parley.tables.rows import LocalRows

PARTIES, ROWS, COLUMNS = ("bank", "shop", "telco"), 400, 3
REPRESENTATION = {
    "model": {"kind": "mlp", "hidden": [3], "out": 2},
    "upper": {"steps": 4, "batch": 32},
    "lower": {"solver": "newton", "steps": 2, "batch": 64},
    "implicit": {"rounds": 3, "newton_rounds": 3},
    "regularisation": 0.1,
}
COEFFICIENTS = {
    "problem": "hyper_parameters",
    "hypergradient": "implicit",
    "upper": {"steps": 3, "batch": 32},
    "lower": {"solver": "newton", "steps": 2, "batch": 64},
    "regularisation": 0.1,
    "intercept": True,
}

JOINT = {
    "problem": "joint",
    "model": {"kind": "mlp", "hidden": [3], "out": 2},
    "upper": {"steps": 9, "batch": 32},
    "regularisation": 0.01,
}
DESCENT = {
    "model": {"kind": "mlp", "hidden": [3], "out": 2},
    "hypergradient": "zeroth_order",
    "upper": {"steps": 3, "batch": 32},
    "lower": {"solver": "sgd", "steps": 4, "batch": 16, "warmup_steps": 2},
    "regularisation": 0.1,
}


def written(directory):
    drawn = np.random.default_rng(3).normal(size=(len(PARTIES), ROWS, COLUMNS)).astype(np.float32)
    for party, values in zip(PARTIES, drawn, strict=True):
        (directory / party).mkdir()
        order = np.random.default_rng(7).permutation(ROWS)
        columns = {"id": order} | {f"c{index}": values[order, index] for index in range(COLUMNS)}
        for part, rows in enumerate(np.array_split(np.arange(ROWS), 2)):
            pq.write_table(pa.table(columns).take(rows), directory / party / f"{part}.parquet")
    return (drawn.sum(axis=(0, 2)) > 0).astype(np.int64)


def both(directory, train, dtype):
    """The same run over rows in memory and over mapped rows, with the tables."""
    classes = written(directory)
    content = {
        "name": "mapped", "seed": 5, "dtype": dtype, "parties": list(PARTIES), "evaluate_every": 1,
        "split": {"lower": 0.5, "upper": 0.25, "test": 0.25}, "train": {"algorithm": "bambi", **train},
    }  # fmt: skip
    spec = parse_spec(yaml.safe_dump(content))
    requests = [TableRequest(Place(str(directory / party)), name=party, dtype=np.float64) for party in PARTIES]
    held = [load_table(request) for request in requests]
    mapped = [load_mapped(request, Workspace(directory / "state", 100 << 20)) for request in requests]
    labels = Labels(held[0].ids, classes, ("0", "1"))
    return [(train_tables(spec, tables, labels, noise_key=bytes(32)), tables) for tables in (held, mapped)]


@pytest.mark.parametrize("train", [REPRESENTATION, COEFFICIENTS], ids=["representation", "coefficients"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_run_over_mapped_rows_has_the_same_bits(tmp_path, train, dtype):
    (one, held), (other, mapped) = both(tmp_path, train, dtype)
    assert one.metrics == other.metrics
    assert one.predict(held).tobytes() == other.predict(mapped).tobytes()


@pytest.mark.parametrize(
    ("train", "passes"), [(JOINT, 9), (DESCENT, 9), (COEFFICIENTS, 13)], ids=["joint", "descent", "coefficients"]
)
def test_rows_that_are_read_ahead_have_the_same_bits(tmp_path, monkeypatch, train, passes):
    counted = []
    gathered = ReadAheadRows._gathered
    monkeypatch.setattr(ReadAheadRows, "_gathered", lambda rows, batches: counted.append(0) or gathered(rows, batches))
    monkeypatch.setattr(role, "FITS_SHARE", 0)
    monkeypatch.setattr(role, "ROOM_SHARE", 4 * 32 * COLUMNS * 3.9 / (100 << 20))  # three batches of 32, not four
    (one, held), (other, mapped) = both(tmp_path, train, "float32")
    assert one.metrics == other.metrics
    assert one.predict(held).tobytes() == other.predict(mapped).tobytes()
    assert len(counted) == passes  # of all parties; one has a column more, the intercept


@pytest.mark.parametrize(
    "penalty", [{"strength": 0.05}, {"strength": 0.05, "l1_ratio": 0.5}], ids=["ridge", "elastic net"]
)
def test_a_linear_model_over_mapped_rows_is_that_over_rows_in_memory(tmp_path, monkeypatch, penalty):
    """Its basis is found shard by shard, by another sum: the model agrees to rounding, and not in every bit."""
    monkeypatch.setattr(LocalRows.__init__, "__kwdefaults__", {"ones": False, "shard": 64})
    train = {"algorithm": "glm", "family": "logistic", "penalty": penalty}
    (one, held), (other, mapped) = both(tmp_path, train, "float64")
    assert one.metrics.keys() == other.metrics.keys()
    np.testing.assert_allclose(one.predict(held), other.predict(mapped), rtol=1e-7)
    assert isinstance(mapped[0].features, np.memmap)
