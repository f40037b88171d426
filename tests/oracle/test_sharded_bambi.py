"""A run of BAMBI over rows in shards is the run over rows in one piece, to rounding, and itself bit for bit."""

from dataclasses import dataclass

import numpy as np
import pytest
import yaml

from parley.simulation.runs import train_tables
from parley.spec.parsing import parse_spec
from parley.tables.loading import Labels, Table
from parley.tables.rows import ShardedRows

PARTIES, ROWS, COLUMNS = ("bank", "shop", "telco"), 300, 3
NETWORK = {"model": {"kind": "mlp", "hidden": [4], "out": 2}, "regularisation": 0.1}
MODES = {
    "newton": {
        "upper": {"steps": 4, "batch": 40},
        "lower": {"solver": "newton", "steps": 2, "batch": 64},
        "implicit": {"rounds": 3, "newton_rounds": 3},
    },
    "zeroth_order": {
        "hypergradient": "zeroth_order",
        "zeroth_order": {"directions": 4},
        "upper": {"steps": 4, "batch": 40},
        "lower": {"solver": "sgd", "steps": 3, "batch": 64},
    },
}


@dataclass(frozen=True)
class LocalShards:
    """Shards of this process."""

    shards: int

    def rows(self, values, dtype):
        return ShardedRows(values, dtype, shards=self.shards)


@pytest.mark.parametrize("mode", MODES)
def test_a_run_over_shards_is_the_run_over_all_rows(mode):
    spec = parse_spec(
        yaml.safe_dump(
            {
                "name": "sharded", "seed": 5, "dtype": "float64", "parties": list(PARTIES), "evaluate_every": 2,
                "split": {"lower": 0.5, "upper": 0.25, "test": 0.25},
                "train": {"algorithm": "bambi", **NETWORK, **MODES[mode]},
            }
        )
    )  # fmt: skip
    drawn = np.random.default_rng(3).normal(size=(len(PARTIES), ROWS, COLUMNS))
    ids = np.array([f"{row:04}" for row in range(ROWS)])
    columns = [f"c{column}" for column in range(COLUMNS)]
    tables = [Table(ids, values, columns, name) for name, values in zip(PARTIES, drawn, strict=True)]
    labels = Labels(ids, (drawn.sum(axis=(0, 2)) > 0).astype(np.int64), ("0", "1"))
    whole, cut, again = (
        train_tables(spec, tables, labels, noise_key=bytes(32), engine=engine)
        for engine in (None, LocalShards(7), LocalShards(7))
    )
    predictions = [run.predict(tables) for run in (whole, cut, again)]
    np.testing.assert_allclose(predictions[1], predictions[0], rtol=1e-6, atol=1e-9)
    assert predictions[1].tobytes() == predictions[2].tobytes()
