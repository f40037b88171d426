import numpy as np
import pytest
from scipy.sparse import issparse

from parley.services.party.config import PreprocessConfig, TableConfig
from parley.services.party.preprocessing import table_of_run, to_keep, training_rows
from parley.services.party.tables import TableStore
from parley.spec.parsing import parse_spec
from parley.tables.errors import ColumnMissing
from parley.tables.preprocessing import PreprocessingInvalid

SPEC = "name: t\nparties: [bank, shop]\ntrain: {algorithm: bambi}\n"
ROWS = "id,a,b\n" + "\n".join(f"{i},{i},{i * i}" for i in range(10)) + "\n"
HORIZONTAL = """
name: t
parties: [bank, shop]
train: {algorithm: hgp, task: {kind: regularisation, classes: ["0", "1"]}, network: {kind: ring}}
"""


def tables_of(tmp_path, **tables):
    configs = {}
    for name, (text, fields) in tables.items():
        (tmp_path / f"{name}.csv").write_text(text)
        configs[name] = TableConfig(path=tmp_path / f"{name}.csv", **fields)
    return TableStore(configs)


@pytest.mark.parametrize("fields", [{}, {"standardise": True}, {"preprocess": PreprocessConfig(scale="standard")}])
def test_a_later_table_is_read_by_the_columns_and_figures_of_the_training_table(tmp_path, fields):
    """Its columns stand in another order, with more beside them, and its own mean is another one."""
    fresh = "extra,b,id,a\n1,16,x,4\n"
    store = tables_of(tmp_path, train=(ROWS, fields), fresh=(fresh, fields))
    spec = parse_spec(SPEC)
    trained = table_of_run(store, spec, 0, dense=True)
    found = table_of_run(store, spec, 0, dense=True, saved=to_keep(trained), table="fresh")
    assert found.columns == ["a", "b"]
    np.testing.assert_array_equal(found.features[0], trained.features[4])


def test_figures_come_from_the_rows_of_the_lower_problem_alone(tmp_path):
    store = tables_of(tmp_path, train=(ROWS, {"preprocess": PreprocessConfig(scale="standard")}))
    spec = parse_spec(SPEC)
    rows = training_rows(spec, 0, 10)
    assert len(rows) == 6
    table = table_of_run(store, spec, 0, dense=True)
    np.testing.assert_allclose(table.features[rows].mean(axis=0), 0, atol=1e-12)
    assert np.abs(table.features.mean(axis=0)).max() > 0.01


def test_a_sparse_table_stays_sparse_and_later_tables_take_its_scale(tmp_path):
    lines = [f"{i % 2} 1:{i + 1} 3:{-2 * i}" for i in range(10)]
    (tmp_path / "train.svm").write_text("\n".join(lines))
    (tmp_path / "fresh.svm").write_text("0 1:1000 3:1000\n")
    scaled = PreprocessConfig(scale="max_abs")
    paths = {name: tmp_path / f"{name}.svm" for name in ("train", "fresh")}
    store = TableStore({name: TableConfig(path=path, features=4, preprocess=scaled) for name, path in paths.items()})
    spec = parse_spec(SPEC.replace("[bank, shop]", "[bank, shop, telco]").replace("bambi", "asysqn"))
    trained = table_of_run(store, spec, 0, dense=False)
    assert issparse(trained.features)
    assert abs(trained.features[training_rows(spec, 0, 10)]).max() == 1
    fresh = table_of_run(store, spec, 0, dense=False, saved=to_keep(trained), table="fresh")
    assert issparse(fresh.features)
    assert fresh.features[0, 0] == 1000 / max(row + 1 for row in training_rows(spec, 0, 10))


def test_a_table_that_lacks_a_trained_column_is_refused(tmp_path):
    store = tables_of(tmp_path, train=(ROWS, {}), fresh=("id,a\n1,2\n", {}))
    kept = to_keep(table_of_run(store, parse_spec(SPEC), 0, dense=True))
    with pytest.raises(ColumnMissing, match="'b'"):
        table_of_run(store, parse_spec(SPEC), 0, dense=True, saved=kept, table="fresh")


def test_a_run_that_goes_on_with_other_columns_is_refused(tmp_path):
    store = tables_of(tmp_path, train=(ROWS, {}))
    kept = to_keep(table_of_run(store, parse_spec(SPEC), 0, dense=True))
    fewer = parse_spec(SPEC.replace("[bank, shop]", "[{name: bank, columns: [a]}, shop]"))
    with pytest.raises(PreprocessingInvalid, match="other columns"):
        table_of_run(store, fewer, 0, dense=True, saved=kept)


def test_parties_with_rows_of_the_same_columns_must_name_the_categories(tmp_path):
    learnt = PreprocessConfig.model_validate({"categorical": {"columns": ["a"]}})
    store = tables_of(tmp_path, train=(ROWS, {"preprocess": learnt}))
    with pytest.raises(PreprocessingInvalid, match="categories"):
        table_of_run(store, parse_spec(HORIZONTAL), 0, dense=True)
    named = PreprocessConfig.model_validate({"categorical": {"columns": ["a"], "categories": {"a": ["1", "2"]}}})
    store = tables_of(tmp_path, train=(ROWS, {"preprocess": named}))
    assert table_of_run(store, parse_spec(HORIZONTAL), 0, dense=True).columns == ["b", "a=1", "a=2"]


LOCAL = """
name: t
parties: [bank, shop, telco]
train:
  algorithm: ldp_dsbo
  network: {kind: ring}
  classes: ["0", "1"]
  epsilon: 5
  bounds: {row_l1: 1, row_max: 0.5, x_low: -4, x_high: -1, y_max: 3, z_max: 3}
"""
PUBLIC = {
    "preprocess": PreprocessConfig.model_validate({"figures": {"a": {"shift": 5, "scale": 5}, "b": {"scale": 81}}})
}


@pytest.mark.parametrize(
    "fields",
    [
        {"standardise": True},
        {"preprocess": PreprocessConfig(scale="standard")},
        {"preprocess": PreprocessConfig(missing="median")},
        {"preprocess": PreprocessConfig.model_validate({"categorical": {"columns": ["a"]}})},
    ],
    ids=["standardise", "scale", "missing", "categories"],
)
def test_figures_that_rows_teach_are_refused_where_epsilon_is_claimed_for_each_record(tmp_path, fields):
    store = tables_of(tmp_path, train=(ROWS, fields))
    with pytest.raises(PreprocessingInvalid, match=r"ldp_dsbo's ε would not cover .* Take public ones"):
        table_of_run(store, parse_spec(LOCAL), 0, dense=True)


def test_under_public_figures_a_changed_record_changes_no_other_row(tmp_path):
    """What the accountant's sensitivity rests on; under `standardise` every row would move."""
    changed = ROWS.replace("9,9,81", "9,-1000,1e6")
    one = table_of_run(tables_of(tmp_path, train=(ROWS, PUBLIC)), parse_spec(LOCAL), 0, dense=True)
    other = table_of_run(tables_of(tmp_path, train=(changed, PUBLIC)), parse_spec(LOCAL), 0, dense=True)
    np.testing.assert_array_equal(one.features[:9], other.features[:9])
    np.testing.assert_array_equal(one.features[3], [(3 - 5) / 5, 9 / 81])
    assert (one.features[9] != other.features[9]).all()


def test_public_figures_hold_beside_learnt_ones_where_those_are_allowed(tmp_path):
    both = {"preprocess": PreprocessConfig.model_validate({"scale": "standard", "figures": {"a": {"scale": 10}}})}
    found = table_of_run(tables_of(tmp_path, train=(ROWS, both)), parse_spec(SPEC), 0, dense=True)
    np.testing.assert_allclose(found.features[:, 0], np.arange(10) / 10)
    assert abs(found.features[training_rows(parse_spec(SPEC), 0, 10), 1].mean()) < 1e-12


@pytest.mark.parametrize("fields", [{"standardise": True}, {"preprocess": PreprocessConfig(scale="standard")}])
def test_figures_that_rows_teach_are_refused_where_rows_are_noised(tmp_path, fields):
    store, spec = tables_of(tmp_path, train=(ROWS, fields)), parse_spec(f"{SPEC}privacy: {{features: {{kind: once}}}}")
    with pytest.raises(PreprocessingInvalid, match=r"ε of `privacy.features` would not cover.*figures"):
        table_of_run(store, spec, 0, dense=True)


def test_public_figures_are_taken_where_rows_are_noised(tmp_path):
    public = PreprocessConfig(figures={"a": {"shift": 5, "scale": 5}, "b": {"shift": 40, "scale": 40}})
    store = tables_of(tmp_path, train=(ROWS, {"preprocess": public}))
    table = table_of_run(store, parse_spec(f"{SPEC}privacy: {{features: {{kind: once}}}}"), 0, dense=True)
    np.testing.assert_allclose(table.features[5], [0.0, (25 - 40) / 40])
