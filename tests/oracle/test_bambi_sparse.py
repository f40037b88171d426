"""BAMBI on sparse tables: the same models as on filled ones, without filling them."""

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from parley.party.bambi.role import ALGORITHM
from parley.simulation.runs import Holding, models_of, simulation_of
from parley.spec.run import RunSpec
from parley.tables.loading import Labels, Table
from parley.tables.rows import LocalRows

ROWS, WIDTHS = 120, (40, 30, 30)
SAME_ROWS = {"lower": 0.8, "upper": "lower", "test": 0.2}
HYPER_PARAMETERS = {
    "problem": "hyper_parameters",
    "loss": "logistic",
    "coefficients": "feature",
    "regularisation": 0.01,
    "intercept": True,
    "upper": {"steps": 4, "batch": 32, "optimiser": {"step": 0.1}},
    "lower": {"solver": "sgd", "steps": 3, "batch": 32, "optimiser": {"step": 0.5}},
}
IMPLICIT = {**HYPER_PARAMETERS, "hypergradient": "implicit", "lower": {"solver": "newton", "steps": 2}}
EMBEDDED = {
    "loss": "logistic",
    "model": {"kind": "mlp", "hidden": [8], "out": 4},
    "upper": {"steps": 4, "batch": 32, "optimiser": {"step": 0.1}},
}


def models(settings, *, filled):
    rng = np.random.default_rng(0)
    ids = np.array([f"{row:04d}" for row in range(ROWS)])
    whole = rng.standard_normal((ROWS, sum(WIDTHS))) * (rng.random((ROWS, sum(WIDTHS))) < 0.1)
    labels = Labels(ids, (whole @ rng.standard_normal(sum(WIDTHS)) > 0).astype(np.int64), ("no", "yes"))
    tables, first = [], 0
    for m, width in enumerate(WIDTHS):
        block = whole[:, first : first + width]
        columns = [f"x{column}" for column in range(width)]
        tables.append(Table(ids, block if filled else csr_matrix(block), columns, f"party-{m}"))
        first += width
    spec = RunSpec.model_validate(
        {
            "name": "sparse",
            "seed": 3,
            "dtype": "float64",
            "parties": [f"party-{m}" for m in range(len(WIDTHS))],
            "split": SAME_ROWS if settings["hypergradient"] == "local" else {"lower": 0.4, "upper": 0.4, "test": 0.2},
            "train": {"algorithm": "bambi", **settings},
            "privacy": {"aggregation": {"kind": "plain"}, "labels": {"mechanism": "off"}},
            "checkpoint_every": 0,
        }
    )
    simulation = simulation_of(spec, [Holding(table) for table in tables], lambda _, __: labels)
    outcome = simulation.run()
    return simulation, outcome.metrics, models_of(simulation, outcome)


@pytest.mark.parametrize(
    "settings",
    [
        {**HYPER_PARAMETERS, "hypergradient": "zeroth_order"},
        IMPLICIT,
        {**EMBEDDED, "hypergradient": "implicit", "lower": {"solver": "newton", "steps": 2}},
        {**EMBEDDED, "hypergradient": "local"},
    ],
    ids=["zeroth order", "implicit", "network", "local rounds"],
)
def test_a_sparse_table_trains_the_model_of_a_filled_one(settings):
    simulation, measured, sparse = models(settings, filled=False)
    _, expected, filled = models(settings, filled=True)
    for ours, theirs in zip(sparse, filled, strict=True):
        assert ours.keys() == theirs.keys()
        for name in ours:
            assert np.allclose(ours[name].numpy(), theirs[name].numpy(), atol=1e-6)
    assert measured["test accuracy"] == pytest.approx(expected["test accuracy"], abs=1e-6)
    for role in simulation.roles:
        assert _features(role).is_sparse


def test_rows_of_a_sparse_table_are_filled_a_shard_at_a_time():
    values = csr_matrix(np.eye(5, 3))
    rows = LocalRows(values, np.float32, ones=True, shard=2)
    assert rows.shape == (5, 4)
    assert [len(shard) for shard in rows.shards()] == [2, 2, 1]
    assert np.array_equal(rows.map(lambda shard: shard), np.append(np.eye(5, 3), np.ones((5, 1)), axis=1))


def test_a_wide_sparse_table_is_filled_by_small_shards():
    rows = LocalRows(csr_matrix((100, 1 << 20)))
    assert {len(shard) for shard in rows.shards(np.arange(16))} == {8}


def test_bambi_fills_a_table_only_where_its_owner_scales_it():
    assert ALGORITHM.keeps_sparse == "unless_scaled"


def _features(role):
    block = role.block
    return (block if hasattr(block, "features") else block.block).features
