import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix, issparse
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder, StandardScaler

from parley.tables.errors import FeatureMissing
from parley.tables.loading import Table
from parley.tables.preprocessing import Declared, Fitted, PreprocessingInvalid, apply, fit
from parley.tables.spelling import DateColumn

SCALERS = {"standard": StandardScaler(), "minmax": MinMaxScaler(), "none": "passthrough"}


def messy(rows=40, seed=0):
    generator = np.random.default_rng(seed)
    features = generator.normal(size=(rows, 3)) * [1, 100, 0.01] + [0, 5, 1]
    features[generator.random(features.shape) < 0.2] = np.nan
    features[:2] = [[0.5, 1, 2], [1, 2, 3]]
    texts = np.array([*generator.choice(["Oslo", "Bergen", "Ås"], rows - 1), "Oslo"], dtype=object)
    texts[3] = None
    return Table(np.array([str(i) for i in range(rows)]), features, ["a", "b", "c"], "train", texts={"city": texts})


@pytest.mark.parametrize("missing", ["mean", "median", "most_frequent"])
@pytest.mark.parametrize("scale", SCALERS)
def test_what_is_applied_is_what_scikit_learn_would_do(missing, scale):
    """The oracle is a ColumnTransformer that sees the training rows alone."""
    table, rows = messy(), np.arange(0, 40, 2)
    numbers = make_pipeline(SimpleImputer(strategy=missing), SCALERS[scale])
    categories = make_pipeline(
        SimpleImputer(strategy="most_frequent", missing_values=None),
        OneHotEncoder(handle_unknown="ignore", sparse_output=False),
    )
    oracle = ColumnTransformer([("numbers", numbers, [0, 1, 2]), ("categories", categories, [3])])
    frame = np.concatenate([table.features.astype(object), table.texts["city"].reshape(-1, 1)], axis=1)
    expected = oracle.fit(frame[rows]).transform(frame).astype(float)
    found = apply(fit(Declared(missing, ("city",), scale=scale), table, rows), table)
    np.testing.assert_allclose(found.features, expected, rtol=1e-12, atol=1e-12)
    assert found.columns == ["a", "b", "c", "city=Bergen", "city=Oslo", "city=Ås"]


def test_rows_outside_the_training_set_teach_nothing():
    table, rows = messy(), np.arange(20)
    other = messy()
    other.features[20:] = 1e6
    other.texts["city"][20:] = "Atlantis"
    declared = Declared("median", ("city",), scale="standard")
    assert fit(declared, table, rows) == fit(declared, other, rows)


@given(seed=st.integers(0, 1000), scale=st.sampled_from(sorted(SCALERS)))
@settings(max_examples=20, deadline=None)
def test_saved_figures_give_the_same_bits(seed, scale):
    table = messy(seed=seed)
    fitted = fit(Declared("mean", ("city",), scale=scale), table, np.arange(30))
    again = Fitted.from_json(fitted.to_json())
    assert again == fitted
    assert apply(again, table).features.tobytes() == apply(fitted, table).features.tobytes()


def test_a_category_that_training_never_saw_sets_no_column():
    table = messy()
    fitted = fit(Declared("mean", ("city",)), table, np.arange(40))
    table.texts["city"][0] = "Atlantis"
    np.testing.assert_array_equal(apply(fitted, table).features[0, 3:], 0)


def test_rare_and_unseen_categories_share_one_column_where_there_are_too_many():
    table = messy()
    table.texts["city"][:] = ["common"] * 20 + ["usual"] * 10 + [f"rare {i}" for i in range(10)]
    found = apply(fit(Declared("mean", ("city",), max_categories=3), table, np.arange(40)), table)
    assert found.columns[3:] == ["city=common", "city=usual", "city=(other)"]
    np.testing.assert_array_equal(found.features[:, 3:].sum(axis=0), [20, 10, 10])
    table.texts["city"][0] = "never seen"
    np.testing.assert_array_equal(apply(found.fitted, table).features[0, 3:], [0, 0, 1])


def test_declared_categories_make_the_same_columns_whatever_the_rows_hold():
    table = messy()
    declared = Declared("mean", ("city",), {"city": ("Tromsø", "Oslo")})
    found = apply(fit(declared, table, np.arange(40)), table)
    assert found.columns[3:] == ["city=Tromsø", "city=Oslo"]
    assert found.features[:, 3].sum() == 0


@pytest.mark.parametrize("column", ["number", "category"])
def test_missing_values_are_refused_unless_a_filling_is_declared(column):
    table = messy()
    table.features[:] = 1.0
    table.texts["city"][:] = "Oslo"
    fitted = fit(Declared("refuse", ("city",)), table, np.arange(40))
    if column == "number":
        table.features[7, 1] = np.nan
    else:
        table.texts["city"][7] = None
    with pytest.raises(FeatureMissing, match=r"column '(b|city)', row 7.*preprocess: \{missing: median\}"):
        apply(fitted, table)


def test_a_column_without_any_training_value_is_refused_by_name():
    table = messy()
    table.features[:10, 1] = np.nan
    with pytest.raises(FeatureMissing, match=r"column 'b'.*no training row"):
        fit(Declared("mean"), table, np.arange(10))


def sparse_table():
    features = csr_matrix(np.array([[0, 2.0, 0], [-4.0, 0, 0], [1, 1, 0]]))
    return Table(np.array(["0", "1", "2"]), features, ["1", "2", "3"], "sparse")


def test_a_sparse_table_is_scaled_by_its_largest_values_and_stays_sparse():
    table = sparse_table()
    found = apply(fit(Declared(scale="max_abs"), table, np.arange(2)), table)
    assert issparse(found.features)
    assert found.features.nnz == table.features.nnz
    np.testing.assert_array_equal(found.features.toarray(), [[0, 1, 0], [-1, 0, 0], [0.25, 0.5, 0]])


@pytest.mark.parametrize("scale", ["standard", "minmax"])
def test_a_sparse_table_is_never_filled(scale):
    with pytest.raises(PreprocessingInvalid, match="max_abs"):
        fit(Declared(scale=scale), sparse_table(), np.arange(3))


def test_damaged_figures_are_refused():
    with pytest.raises(PreprocessingInvalid, match="damaged"):
        Fitted.from_json(b'{"version": 1, "numbers": [{}]}')


def test_a_party_without_preprocessing_never_imports_scikit_learn():
    code = (
        "import parley.services.party.tables, parley.services.party.preprocessing, sys; print('sklearn' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"


def test_hashed_categories_learn_nothing_and_set_one_column_each():
    table, declared = messy(), Declared("mean", ("city",), max_categories=4, encoding="hashed")
    fitted = fit(declared, table, np.arange(5))
    assert not declared.learnt_categories
    assert fitted.outputs[3:] == ["city#0", "city#1", "city#2", "city#3"]
    table.texts["city"][0] = "Atlantis"
    found = apply(fitted, table).features[:, 3:]
    np.testing.assert_array_equal(found.sum(axis=1), 1)
    np.testing.assert_array_equal(found, apply(Fitted.from_json(fitted.to_json()), table).features[:, 3:])


@pytest.mark.parametrize("encoding", ["one_hot", "hashed"])
def test_indicators_say_where_values_are_missing(encoding):
    table = messy()
    declared = Declared("mean", ("city",), encoding=encoding, max_categories=5, indicators=("b", "city"))
    found = apply(fit(declared, table, np.arange(40)), table)
    np.testing.assert_array_equal(found.features[:, found.columns.index("b=(missing)")], np.isnan(table.features[:, 1]))
    expected = [text is None for text in table.texts["city"]]
    np.testing.assert_array_equal(found.features[:, found.columns.index("city=(missing)")], expected)
    cities = [index for index, name in enumerate(found.columns) if name.startswith(("city=", "city#"))]
    np.testing.assert_array_equal(found.features[:, cities].sum(axis=1), 1)


def test_dates_are_scaled_as_numbers_and_turned_as_dates():
    table = messy()
    table.features[:, 0] = np.arange(40.0)
    date = DateColumn("a", cycles=("week",))
    fitted = Fitted.from_json(
        fit(Declared("mean", ("city",), scale="standard", dates=(date,)), table, np.arange(40)).to_json()
    )
    found = apply(fitted, table)
    assert found.columns[:5] == ["a", "b", "c", "a:week sin", "a:week cos"]
    assert found.features[:, 0].mean() == pytest.approx(0, abs=1e-12)
    np.testing.assert_allclose(found.features[:, 3], np.sin(2 * np.pi * np.arange(40) / 7), atol=1e-12)


def test_large_numbers_that_differ_little_are_standardised_too():
    table = messy()
    table.features[:] = 1e18 + 1000 * np.arange(120.0).reshape(40, 3)
    table.features[:, 2] = 0.1
    found = apply(fit(Declared(scale="standard", categorical=("city",), missing="mean"), table, np.arange(40)), table)
    np.testing.assert_allclose(found.features[:, :2].std(axis=0), 1, rtol=1e-2)
    assert (found.features[:, 2] == 0).all(), "a constant column is exactly 0"
