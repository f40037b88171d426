"""Values are replaced by what their bins weigh, in the run that asks for it and in every later table of that run."""

import csv

import numpy as np
import pytest
import torch

from parley.numerics.column_figures import cut, evidence
from parley.party.explore.role import figures
from parley.party.explore.steps import Columns, explore
from parley.protocols.explore.messages import ReleasedLabels
from parley.services.party.config import PreprocessConfig, TableConfig
from parley.services.party.preprocessing import binned_table, table_of_run
from parley.services.party.tables import TableStore
from parley.spec.parsing import SpecInvalid, parse_spec
from parley.tables.preprocessing import Fitted, PreprocessingInvalid

RNG = np.random.default_rng(4)
ROWS = 400
RANGES = np.array([[-1.0, 1.0]] * 2)
"""Where noised counts are made, which these explorations have none of."""
AMOUNT = np.round(RNG.gamma(2.0, 5000.0, ROWS), -2)
AMOUNT[:150] = 0.0  # ties, as balances have
AGE = RNG.integers(20, 70, ROWS).astype(float)
CLASSES = (RNG.random(ROWS) < 0.2 + 0.3 * (AMOUNT == 0)).astype(np.uint8)
SPEC = """
name: card
binned_by: explored-1
parties: [bank, shop, telco]
train: {algorithm: glm}
privacy: {labels: {mechanism: "off"}%s}
"""


@pytest.fixture(params=[None, "standard"])
def store(request, tmp_path):
    rows = [[f"{i:04}", amount, age] for i, (amount, age) in enumerate(zip(AMOUNT, AGE, strict=True))]
    for name, count in (("train", ROWS), ("later", 50)):
        with (tmp_path / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([["id", "amount", "age"], *rows[:count]])
    declared = None if request.param is None else PreprocessConfig(scale=request.param)
    paths = {name: TableConfig(path=tmp_path / f"{name}.csv", preprocess=declared) for name in ("train", "later")}
    return TableStore(paths)


@pytest.fixture
def found():
    """What an exploration keeps, in the units of the table."""
    values = np.stack([AMOUNT, AGE], axis=1)
    made = explore(Columns(values, values[:0], np.zeros(2), RANGES), 5, 20, ReleasedLabels(CLASSES, 0.0))
    model = {"summary": torch.tensor(made.summary), "bins": torch.tensor(made.bins)}
    return figures(model, ["amount", "age"])


def weights_of(values):
    bins = cut(values, 5, 20)
    return evidence(bins.counts(values), bins.counts(values, CLASSES)).weights[bins.of(values)]


def test_values_become_the_weights_of_evidence_of_their_bins(store, found):
    spec = parse_spec(SPEC % "")
    table = binned_table(store, spec, 0, table_of_run(store, spec, 0, dense=True), found)
    assert list(table.columns) == ["amount", "age"]
    np.testing.assert_allclose(table.features, np.stack([weights_of(AMOUNT), weights_of(AGE)], axis=1), 1e-12)


def test_what_was_kept_treats_a_later_table_alike(store, found):
    spec = parse_spec(SPEC % "")
    table = binned_table(store, spec, 0, table_of_run(store, spec, 0, dense=True), found)
    kept = Fitted.from_json(table.fitted.to_json())
    later = table_of_run(store, spec, 0, dense=True, saved=kept, table="later")
    np.testing.assert_array_equal(later.features, table.features[: len(later)])


def test_a_column_without_bins_is_refused(store, found):
    spec = parse_spec(SPEC % "")
    with pytest.raises(PreprocessingInvalid, match=r"age.*against_label"):
        binned_table(store, spec, 0, table_of_run(store, spec, 0, dense=True), [f for f in found if f.column != "age"])


def test_bins_that_rows_taught_are_refused_under_noise_on_rows(found, tmp_path):
    (tmp_path / "train.csv").write_text("id,amount,age\n1,2,3\n")
    store = TableStore({"train": TableConfig(path=tmp_path / "train.csv")})
    spec = parse_spec(SPEC % ", features: {kind: once}")
    with pytest.raises(PreprocessingInvalid, match="binned_by"):
        binned_table(store, spec, 0, table_of_run(store, spec, 0, dense=True), found)


def test_parties_that_hold_rows_have_no_common_bins():
    spec = SPEC.replace(
        "{algorithm: glm}", "{algorithm: fedbio, task: {kind: data_cleaning, classes: [a, b], checked: 0.1}}"
    )
    with pytest.raises(SpecInvalid, match="binned_by"):
        parse_spec(spec % "")
