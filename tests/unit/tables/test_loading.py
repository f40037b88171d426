import lzma
import os
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import issparse

from parley.tables import errors
from parley.tables import loading as tables
from parley.tables.loading import ROW_NUMBER, TableRequest, id_digest, load_labels, load_table
from parley.tables.survey import survey


def write(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def a_csv(tmp_path, text, name="a.csv"):
    return write(tmp_path / name, text)


ROWS = "id,age,weight\n10,1,2.5\n9,3,4.5\n-2,5,6.5\n"


def same_table(tmp_path, kind):
    if kind == "csv":
        return a_csv(tmp_path, ROWS)
    if kind == "csv.xz":
        return write(tmp_path / "a.csv.xz", lzma.compress(ROWS.encode()))
    if kind == "parquet":
        pq.write_table(
            pa.table({"id": [10, 9, -2], "age": [1, 3, 5], "weight": [2.5, 4.5, 6.5]}), tmp_path / "a.parquet"
        )
        return tmp_path / "a.parquet"
    if kind == "npz":
        x, ids = np.array([[1, 2.5], [3, 4.5], [5, 6.5]]), np.array([10, 9, -2])
        np.savez(tmp_path / "a.npz", x=x, ids=ids, columns=np.array(["age", "weight"]))
        return tmp_path / "a.npz"
    return write(tmp_path / "a.svm", "1 1:1 2:2.5 # 10\n-1 1:3 2:4.5 # 9\n1 1:5 2:6.5 #-2\n")


@pytest.mark.parametrize("kind", ["csv", "csv.xz", "parquet", "npz", "svm"])
def test_every_format_gives_the_same_table_sorted_by_integer_id(tmp_path, kind):
    table = load_table(TableRequest(same_table(tmp_path, kind)))
    assert table.ids.tolist() == ["-2", "9", "10"]
    features = table.features.toarray() if issparse(table.features) else table.features
    assert features.tolist() == [[5, 6.5], [3, 4.5], [1, 2.5]]
    assert features.dtype == np.float32
    assert table.columns == (["1", "2"] if kind == "svm" else ["age", "weight"])
    assert len(table) == 3


def test_dense_features_are_contiguous_in_the_type_asked_for(tmp_path):
    features = load_table(TableRequest(same_table(tmp_path, "csv"), dtype=np.float64)).features
    assert features.flags.c_contiguous
    assert features.dtype == np.float64


def test_ids_that_are_not_all_integers_are_sorted_by_code_point(tmp_path):
    path = a_csv(tmp_path, "id,a\nb,1\n007,2\né,3\n10,4\nZ,5\n")
    assert load_table(TableRequest(path)).ids.tolist() == ["007", "10", "Z", "b", "é"]


def test_ids_beyond_64_bits_are_still_sorted_by_number(tmp_path):
    path = a_csv(tmp_path, f"id,a\n{10**30},1\n5,2\n")
    assert load_table(TableRequest(path)).ids.tolist() == ["5", str(10**30)]


def test_one_identity_spelled_in_two_ways_is_one_identity(tmp_path):
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    first = load_table(TableRequest(a_csv(tmp_path, f"id,a\n{composed},1\n")))
    second = load_table(TableRequest(a_csv(tmp_path, f"id,a\n {decomposed} ,1\n")))
    assert id_digest(first.ids) == id_digest(second.ids)


def test_columns_are_chosen_and_ordered_by_name(tmp_path):
    table = load_table(TableRequest(same_table(tmp_path, "csv"), columns=["weight", "age"]))
    assert table.features[0].tolist() == [6.5, 5]


def test_the_label_and_other_text_columns_are_left_out(tmp_path):
    path = a_csv(tmp_path, "id,a,city,label\n1,2,Bern,yes\n")
    assert load_table(TableRequest(path, columns=["a"])).columns == ["a"]
    assert load_table(TableRequest(a_csv(tmp_path, "id,a,label\n1,2,yes\n"), label_column="label")).columns == ["a"]


def test_numbers_that_turn_from_integers_to_fractions_far_down_are_read(tmp_path):
    rows = "".join(f"{i},{i}\n" for i in range(200_000))
    table = load_table(TableRequest(a_csv(tmp_path, f"id,a\n{rows}200000,0.5\n")))
    assert table.features[-1, 0] == 0.5


def test_row_numbers_serve_as_ids_when_asked_for(tmp_path):
    assert load_table(TableRequest(a_csv(tmp_path, "a\n5\n6\n"), id_column=ROW_NUMBER)).ids.tolist() == ["0", "1"]


def test_svmlight_without_remarks_is_identified_by_row_number(tmp_path):
    table = load_table(TableRequest(write(tmp_path / "a.svm", "1 2:1\n\n0 1:4\n"), n_features=5))
    assert table.ids.tolist() == ["0", "1"]
    assert table.features.toarray().tolist() == [[0, 1, 0, 0, 0], [4, 0, 0, 0, 0]]


def test_svmlight_columns_are_chosen_by_their_index_in_the_file(tmp_path):
    path = write(tmp_path / "a.svm", "1 1:1 3:3\n0 2:2\n")
    assert load_table(TableRequest(path, columns=["3", "2"])).features.toarray().tolist() == [[3, 0], [0, 2]]
    zero = write(tmp_path / "b.svm", "1 0:1 2:3\n")
    assert load_table(TableRequest(zero, columns=["0", "2"], zero_based=True)).features.toarray().tolist() == [[1, 3]]


def truncated(path):
    return write(path, path.read_bytes()[: path.stat().st_size // 2])


def saved(path, **arrays):
    np.savez(path, **arrays)
    return path


REFUSED = [
    ("absent", lambda d: d / "no.csv", {}, errors.TableNotFound, "no such file"),
    ("unknown suffix", lambda d: write(d / "a.xlsx", "x"), {}, errors.UnknownTableFormat, "csv`, or parquet, npz"),
    ("unknown format", lambda d: a_csv(d, ROWS), {"format": "arff"}, errors.UnknownTableFormat, "arff"),
    (
        "parquet called csv",
        lambda d: same_table(d, "parquet").rename(d / "b.csv"),
        {},
        errors.TableFormatMismatch,
        "parq",
    ),
    ("csv called npz", lambda d: a_csv(d, ROWS, "a.npz"), {}, errors.TableFormatMismatch, "not npz"),
    ("truncated parquet", lambda d: truncated(same_table(d, "parquet")), {}, errors.TableUnreadable, "Copy it again"),
    ("truncated npz", lambda d: truncated(same_table(d, "npz")), {}, errors.TableUnreadable, "Copy it again"),
    ("truncated xz", lambda d: truncated(same_table(d, "csv.xz")), {}, errors.TableUnreadable, "Copy it again"),
    ("latin-1", lambda d: a_csv(d, "id,a\né,1\n".encode("latin-1")), {}, errors.TableUnreadable, "UTF-8"),
    ("pickle", lambda d: saved(d / "a.npz", x=np.array([[{}]])), {}, errors.TableUnreadable, "not objects"),
    ("npz 3d", lambda d: saved(d / "a.npz", x=np.zeros((2, 2, 2))), {}, errors.TableUnreadable, "Reshape"),
    ("npz lengths", lambda d: saved(d / "a.npz", x=np.zeros((2, 2)), ids=[1]), {}, errors.TableUnreadable, r"\[1, 2\]"),
    ("npz text", lambda d: saved(d / "a.npz", x=np.array([["a"]])), {}, errors.ColumnNotNumeric, "<U1"),
    ("empty", lambda d: a_csv(d, ""), {}, errors.TableEmpty, "empty"),
    ("header only", lambda d: a_csv(d, "id,a\n"), {}, errors.TableEmpty, "row"),
    ("ids only", lambda d: a_csv(d, "id\n1\n"), {}, errors.TableEmpty, "0 feature columns"),
    ("empty svmlight", lambda d: write(d / "a.svm", "\n"), {}, errors.TableEmpty, "no rows"),
    ("column", lambda d: a_csv(d, ROWS), {"columns": ["height"]}, errors.ColumnMissing, "'height'.*'age'"),
    ("id column", lambda d: a_csv(d, "a,b\n1,2\n"), {}, errors.ColumnMissing, "'id'.*as `id`, or write `id: .#row"),
    ("same name", lambda d: a_csv(d, "id,a,a\n1,2,3\n"), {}, errors.ColumnDuplicated, "'a'"),
    ("text", lambda d: a_csv(d, "id,a,b\n1,2,3\n\n2,x,3\n"), {}, errors.ColumnNotNumeric, "'a', line 4: 'x'"),
    ("gap", lambda d: a_csv(d, "id,a\n1,2\n2,\n"), {}, errors.FeatureMissing, "'a', line 3"),
    ("nan", lambda d: a_csv(d, "id,a\n1,2\n2,nan\n"), {}, errors.FeatureMissing, "'a', line 3"),
    ("inf", lambda d: a_csv(d, "id,a\n1,2\n2,-inf\n"), {}, errors.FeatureNotFinite, "'a', line 3"),
    ("too large", lambda d: a_csv(d, "id,a\n1,1e300\n"), {}, errors.FeatureNotFinite, "line 2.*too large for float32"),
    ("short", lambda d: a_csv(d, "id,a,b\n1,2,3\n2,3\n"), {}, errors.RowRagged, "line 3: 2 fields.*3"),
    ("long", lambda d: a_csv(d, "id,a\n1,2\n2,3,4\n"), {}, errors.RowRagged, "line 3: 3 fields.*2"),
    ("no id", lambda d: a_csv(d, "id,a\n1,2\n,3\n"), {}, tables.IdMissing, "line 3"),
    ("same id", lambda d: a_csv(d, "id,a\n1,2\n2,3\n1,4\n"), {}, tables.IdDuplicated, "line 4: identity '1'"),
    ("some remarks", lambda d: write(d / "a.svm", "1 1:1 # 5\n1 1:1\n"), {}, tables.IdMissing, "line 2"),
    ("svm text", lambda d: write(d / "a.svm", "1 1:1\n1 2:x\n"), {}, errors.TableUnreadable, "line 2"),
    ("svm order", lambda d: write(d / "a.svm", "1 1:1\n1 3:1 2:1\n"), {}, errors.TableUnreadable, "line 2.*ascending"),
    ("svm nan", lambda d: write(d / "a.svm", "1 1:1\n1 2:nan\n"), {}, errors.FeatureNotFinite, "line 2"),
    (
        "svm zero",
        lambda d: write(d / "a.svm", "1 1:1\n1 0:1\n"),
        {},
        errors.TableUnreadable,
        "line 2.*zero_based: true",
    ),
    ("svm wide", lambda d: write(d / "a.svm", "1 9:1\n"), {"n_features": 5}, errors.ColumnMissing, "index 9.*5"),
    (
        "sparse",
        lambda d: same_table(d, "svm"),
        {"standardise": True},
        tables.CannotStandardise,
        "Leave `standardise` out",
    ),
]


@pytest.mark.parametrize(("make", "options", "error", "text"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
def test_a_table_that_cannot_be_used_is_refused_with_place_and_remedy(tmp_path, make, options, error, text):
    path = make(tmp_path)
    with pytest.raises(error) as refusal:
        load_table(TableRequest(path, **options))
    assert type(refusal.value) is error
    assert re.search(text, str(refusal.value)), str(refusal.value)
    assert path.name in str(refusal.value)


def test_a_parquet_column_of_text_or_with_nulls_is_refused(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": [1, 2], "a": ["x", "y"]}), path)
    with pytest.raises(errors.ColumnNotNumeric, match=r"'a'.*string"):
        load_table(TableRequest(path))
    pq.write_table(pa.table({"id": [1, 2], "a": [1.0, None]}), path)
    with pytest.raises(errors.FeatureMissing, match="'a', row 1"):
        load_table(TableRequest(path))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_without_read_permission_is_refused(tmp_path):
    path = a_csv(tmp_path, ROWS)
    path.chmod(0)
    with pytest.raises(errors.TableUnreadable, match="permissions"):
        load_table(TableRequest(path))


def test_standardising_gives_mean_zero_and_population_deviation_one(tmp_path):
    table = load_table(TableRequest(same_table(tmp_path, "csv"), standardise=True, dtype=np.float64))
    np.testing.assert_allclose(table.features.mean(axis=0), 0, atol=1e-15)
    np.testing.assert_allclose(table.features.std(axis=0), 1)
    np.testing.assert_allclose(table.scaling.mean, [3, 4.5])


def test_saved_figures_standardise_another_table_in_the_same_way(tmp_path):
    train = load_table(TableRequest(same_table(tmp_path, "csv"), standardise=True))
    test = load_table(
        TableRequest(a_csv(tmp_path, "id,age,weight\n1,3,4.5\n"), standardise=True, scaling=train.scaling)
    )
    np.testing.assert_allclose(test.features, [[0, 0]], atol=1e-7)
    narrow = a_csv(tmp_path, "id,age\n1,3\n")
    with pytest.raises(tables.CannotStandardise, match="2 columns, but there are 1"):
        load_table(TableRequest(narrow, standardise=True, scaling=train.scaling))


def test_a_constant_column_becomes_exactly_zero_with_a_warning(tmp_path):
    path = a_csv(tmp_path, "id,a,b\n" + "".join(f"{i},0.1,{i}\n" for i in range(7)))
    with pytest.warns(tables.ConstantColumn, match="'a'"):
        table = load_table(TableRequest(path, standardise=True, dtype=np.float64))
    assert not table.features[:, 0].any()
    assert table.scaling.std[0] == 1


def test_the_digest_does_not_depend_on_order_but_on_every_id():
    assert id_digest(["b", "a"]) == id_digest(np.array(["a", "b"]))
    assert id_digest(["1", "2"]) == "68d722d582e85b466e21d3d9ed4ae9f358703e4cf94f716358e2f39d5d09ab89"
    assert id_digest(["a"]) != id_digest(["a", "b"])


@given(st.lists(st.text(max_size=3), unique=True, max_size=4), st.lists(st.text(max_size=3), unique=True, max_size=4))
def test_different_sets_of_ids_have_different_digests(first, second):
    assert (id_digest(first) == id_digest(second)) == (set(first) == set(second))


def test_classes_are_numbered_in_sorted_order_and_keep_their_names(tmp_path):
    labels = load_labels(a_csv(tmp_path, "id,label\n3,dog\n1,cat\n2,ant\n"))
    assert labels.ids.tolist() == ["1", "2", "3"]
    assert labels.values.tolist() == [1, 0, 2]
    assert labels.classes == ("ant", "cat", "dog")
    assert labels.values.dtype == np.int64


@pytest.mark.parametrize(
    ("written", "values", "classes"),
    [
        (["1", "0", "2"], [1, 0, 2], ("0", "1", "2")),
        (["-1", "1", "-1"], [0, 1, 0], ("-1", "1")),
        (["+1", "-1.0", "1"], [1, 0, 1], ("-1", "1")),
        (["10", "9", "10"], [1, 0, 1], ("9", "10")),
    ],
)
def test_integer_classes_become_indices(tmp_path, written, values, classes):
    labels = load_labels(a_csv(tmp_path, "id,label\n" + "".join(f"{i},{y}\n" for i, y in enumerate(written))))
    assert labels.values.tolist() == values
    assert labels.classes == classes


def test_a_given_list_of_classes_holds_even_if_the_file_lacks_one(tmp_path):
    path = a_csv(tmp_path, "id,label\n0,2\n1,0\n")
    assert load_labels(path, classes=["0", "1", "2"]).values.tolist() == [2, 0]
    with pytest.raises(tables.LabelInvalid, match="line 2: '2'"):
        load_labels(path, classes=["0", "1"])


def test_real_targets_stay_numbers(tmp_path):
    labels = load_labels(a_csv(tmp_path, "id,y\n2,1.5\n1,-3\n"), "y", kind="real")
    assert labels.values.tolist() == [-3, 1.5]
    assert labels.classes == ()


def test_real_targets_are_counted_in_the_unit_that_their_owner_declares(tmp_path):
    labels = load_labels(a_csv(tmp_path, "id,y\n2,150000\n1,-300000\n"), "y", kind="real", unit=100_000)
    assert labels.values.tolist() == [-3, 1.5]


@pytest.mark.parametrize("text", ["", "nan", "inf", "tall"])
def test_a_real_target_that_is_no_number_is_refused(tmp_path, text):
    with pytest.raises(tables.LabelInvalid, match="'y', line 3"):
        load_labels(a_csv(tmp_path, f"id,y\n2,1.5\n1,{text}\n"), "y", kind="real")


def test_a_missing_class_or_column_is_refused(tmp_path):
    with pytest.raises(tables.LabelInvalid, match="line 3: no label"):
        load_labels(a_csv(tmp_path, "id,label\n2,1\n1,\n"))
    with pytest.raises(errors.ColumnMissing, match="'target'"):
        load_labels(a_csv(tmp_path, "id,label\n2,1\n"), "target")


def test_labels_are_read_from_every_format(tmp_path):
    assert load_labels(same_table(tmp_path, "svm")).values.tolist() == [1, 0, 1]
    np.savez(tmp_path / "y.npz", label=np.array([1, -1]), ids=np.array(["b", "a"]))
    assert load_labels(tmp_path / "y.npz").values.tolist() == [0, 1]
    pq.write_table(pa.table({"id": ["b", "a"], "label": [True, False]}), tmp_path / "y.parquet")
    assert load_labels(tmp_path / "y.parquet").values.tolist() == [0, 1]


def test_a9a_has_the_published_shape():
    folder = Path(os.environ.get("PARLEY_DATA", Path(__file__).parents[3].parent / "shared" / "data"))
    path = folder / "libsvm" / "a9a.svm.xz"
    if not path.is_file():
        pytest.skip("set PARLEY_DATA to a folder with libsvm/a9a.svm.xz")
    table = load_table(TableRequest(path, n_features=123))
    assert table.features.shape == (32561, 123)
    assert table.features.nnz == 451592
    assert load_labels(path).values.sum() == 7841


@pytest.mark.parametrize(
    "ids",
    [[10, 9, -2, 7, 100], ["10", "9", "-2", "7", "100"], ["b", "a", "10", "é", "ab"], ["a-2", "a-1", "b", "A", "0"],
     ["9" * 20, "1", "5", "7", "8"], ["a", "b", "c", "d", None], [1, 2, 3, 4, 1]],
    ids=["numbers", "numbers as texts", "accents", "texts", "long numbers", "missing", "repeated"],
)  # fmt: skip
@pytest.mark.parametrize("given", [None, ("yes", "no", "1")])
def test_ids_and_classes_that_are_read_at_once_are_those_read_one_by_one(tmp_path, monkeypatch, ids, given):
    def read():
        try:
            table, found = load_table(TableRequest(path, label_column="label")), load_labels(path, classes=given)
        except errors.TableError as refusal:
            return str(refusal)
        figures = table.features.tolist(), found.values.tolist(), found.classes
        return table.ids.tolist(), table.ids.dtype, found.ids.tolist(), found.ids.dtype, figures

    path = tmp_path / "rows.parquet"
    labels = ["yes", " no", "1.0", "no", "1"]
    pq.write_table(pa.table({"id": ids, "c": range(5), "label": labels}), path)
    at_once = read()
    monkeypatch.setattr(tables, "_sorted_at_once", lambda *_: None)
    monkeypatch.setattr(tables, "ArrowFile", ())  # isinstance(…, ()) is never true
    assert read() == at_once


def test_the_row_numbers_that_pandas_writes_are_no_feature_unless_they_are_named(tmp_path):
    table = pd.DataFrame({"id": range(6), "age": range(20, 26)})
    path = tmp_path / "some.parquet"
    table[table.age != 22].to_parquet(path)
    assert "__index_level_0__" in pq.read_schema(path).names
    assert load_table(TableRequest(path)).columns == ["age"]
    assert load_table(TableRequest(path, id_column="__index_level_0__")).columns == ["id", "age"]
    assert load_table(TableRequest(path, columns=("__index_level_0__",))).columns == ["__index_level_0__"]
    assert survey(TableRequest(path)).features == 1
