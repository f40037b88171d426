import gzip
import os
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import issparse
from sklearn import datasets

from parley.datasets import DatasetError, DatasetUnreadable, UnknownDataset, load_dataset
from parley.splitting import SplitExists, SplitImpossible, dealt_columns, split_dataset
from parley.tables.loading import TableRequest, id_digest, load_labels, load_table


def features(summary, holder):
    file = next(f for f in summary.files if f.holder == holder and f.content == "features")
    table = load_table(TableRequest(file.path, n_features=len(file.columns) if file.path.suffix == ".svm" else None))
    return table, (table.features.toarray() if issparse(table.features) else table.features)


def labels(summary, holder="labels", **options):
    return load_labels(next(f.path for f in summary.files if f.holder == holder and f.content == "labels"), **options)


@pytest.mark.parametrize("format_", ["parquet", "csv", "npz", "svm"])
def test_the_parties_together_hold_the_whole_data_set(tmp_path, format_):
    summary = split_dataset("breast_cancer", ["a", "b", "c"], tmp_path, format=format_)
    whole = datasets.load_breast_cancer()
    joined = np.hstack([features(summary, party)[1] for party in "abc"])
    np.testing.assert_array_equal(joined, whole.data.astype(np.float32))
    np.testing.assert_array_equal(labels(summary).values, whole.target)
    assert [len(file.columns) for file in summary.files] == [10, 10, 10, 1]


def test_uneven_columns_are_shared_nearly_equally_and_in_order(tmp_path):
    summary = split_dataset("wine", ["a", "b", "c", "d"], tmp_path)
    assert [len(file.columns) for file in summary.files[:-1]] == [4, 3, 3, 3]
    assert sum((file.columns for file in summary.files[:-1]), ())[:2] == ("alcohol", "malic_acid")
    assert summary.classes == ("0", "1", "2")
    assert (summary.rows, summary.columns, summary.kind) == (178, 13, "classes")


@pytest.mark.parametrize(
    ("strips", "shapes"), [("horizontal", [(3, 8), (3, 8), (2, 8)]), ("vertical", [(8, 3), (8, 3), (8, 2)])]
)
def test_an_image_is_cut_into_strips(tmp_path, strips, shapes):
    summary = split_dataset("digits", ["a", "b", "c"], tmp_path, strips=strips)
    assert [file.image_shape for file in summary.files[:-1]] == shapes
    pieces = [features(summary, party)[1].reshape(-1, *shape) for party, shape in zip("abc", shapes, strict=True)]
    whole = np.concatenate(pieces, axis=1 if strips == "horizontal" else 2)
    np.testing.assert_array_equal(whole, (datasets.load_digits().images / 16).astype(np.float32))


def test_shuffled_files_differ_in_order_but_load_as_the_same_rows(tmp_path):
    plain = split_dataset("iris", ["a", "b"], tmp_path / "plain", format="csv")
    shuffled = split_dataset("iris", ["a", "b"], tmp_path / "shuffled", format="csv", shuffle_ids=True)
    orders = [[line.split(",")[0] for line in f.path.read_text().splitlines()] for f in shuffled.files]
    assert orders[0] != orders[1]
    np.testing.assert_array_equal(features(plain, "b")[1], features(shuffled, "b")[1])
    np.testing.assert_array_equal(labels(plain).values, labels(shuffled).values)
    digests = {id_digest(features(shuffled, party)[0].ids) for party in "ab"} | {id_digest(labels(shuffled).ids)}
    assert len(digests) == 1


def test_a_limit_keeps_a_random_sample_of_all_classes_under_their_own_ids(tmp_path):
    summary = split_dataset("iris", ["a"], tmp_path, limit=30)
    table, kept = features(summary, "a")
    assert len(table) == 30
    assert len(set(labels(summary).values.tolist())) == 3
    np.testing.assert_array_equal(kept, datasets.load_iris().data[table.ids.astype(int)].astype(np.float32))


def test_the_same_seed_writes_the_same_bytes(tmp_path):
    first, second = (
        split_dataset("digits", ["a"], tmp_path / name, limit=50, shuffle_ids=True, seed=3) for name in "xy"
    )
    assert [f.path.read_bytes() for f in first.files] == [f.path.read_bytes() for f in second.files]
    other = split_dataset("digits", ["a"], tmp_path / "z", limit=50, shuffle_ids=True, seed=4)
    assert first.files[0].path.read_bytes() != other.files[0].path.read_bytes()


def test_real_targets_stay_real(tmp_path):
    summary = split_dataset("diabetes", ["a", "b"], tmp_path)
    assert summary.kind == "real"
    np.testing.assert_array_equal(labels(summary, kind="real").values, datasets.load_diabetes().target)


def test_standardised_columns_have_mean_zero_and_deviation_one(tmp_path):
    _, x = features(split_dataset("breast_cancer", ["a"], tmp_path, standardise=True), "a")
    np.testing.assert_allclose(x.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(x.std(axis=0), 1, atol=1e-5)


def test_rows_are_dealt_out_evenly_with_their_labels(tmp_path):
    summary = split_dataset("iris", ["a", "b", "c", "d"], tmp_path, rows=True)
    whole = datasets.load_iris()
    seen = []
    for party in "abcd":
        table, x = features(summary, party)
        rows = table.ids.astype(int)
        np.testing.assert_array_equal(x, whole.data[rows].astype(np.float32))
        np.testing.assert_array_equal(labels(summary, party, classes=["0", "1", "2"]).values, whole.target[rows])
        seen += rows.tolist()
    assert sorted(seen) == list(range(150))
    assert [f.rows for f in summary.files if f.content == "features"] == [38, 38, 37, 37]


def test_a_small_alpha_gives_each_party_few_classes_and_nobody_nothing(tmp_path):
    def shares(alpha):
        summary = split_dataset("digits", list("abcdefgh"), tmp_path / str(alpha), rows=True, alpha=alpha)
        assert sum(f.rows for f in summary.files if f.content == "features") == 1797
        classes = [str(c) for c in range(10)]
        counts = [np.bincount(labels(summary, p, classes=classes).values, minlength=10) for p in "abcdefgh"]
        assert min(map(sum, counts)) >= 1
        return np.mean([max(count) / sum(count) for count in counts])

    assert shares(0.05) > 0.5
    assert shares(100) < 0.2


def test_a_csv_file_with_named_classes_is_split_under_its_own_ids(tmp_path):
    source = tmp_path / "people.csv"
    source.write_text("id,age,height,pet\nx9,1,2,dog\nx1,3,4,cat\n")
    summary = split_dataset(source, ["a", "b"], tmp_path / "out", label_column="pet")
    table, x = features(summary, "b")
    assert (table.ids.tolist(), table.columns, x.tolist()) == (["x1", "x9"], ["height"], [[4], [2]])
    assert labels(summary).classes == ("cat", "dog")


def test_a_file_without_ids_or_labels_is_identified_by_row_number(tmp_path):
    source = tmp_path / "plain.csv"
    source.write_text("age,height\n1,2\n3,4\n")
    summary = split_dataset(source, ["a", "b"], tmp_path / "out")
    assert summary.kind == "none"
    assert [f.holder for f in summary.files] == ["a", "b"]
    assert features(summary, "a")[0].ids.tolist() == ["0", "1"]


def test_sparse_data_stay_sparse(tmp_path):
    source = tmp_path / "s.svm"
    source.write_text("+1 1:0.5 4:2\n-1 2:1e-7\n+1 5:1\n")
    summary = split_dataset(source, ["a", "b"], tmp_path / "out", n_features=6, shuffle_ids=True)
    assert [file.path.suffix for file in summary.files] == [".svm", ".svm", ".csv"]
    table, a = features(summary, "a")
    assert issparse(table.features)
    np.testing.assert_array_equal(a, np.array([[0.5, 0, 0], [0, 1e-7, 0], [0, 0, 0]], dtype=np.float32))
    np.testing.assert_array_equal(features(summary, "b")[1], [[2, 0, 0], [0, 0, 0], [0, 1, 0]])
    assert labels(summary).values.tolist() == [1, 0, 1]


def idx(path, array):
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, dtype=">u4").tobytes()
    path.write_bytes(gzip.compress(header + array.tobytes()))


def mnist_like(folder, train=5, test=2):
    folder.mkdir()
    pixels = np.arange((train + test) * 12, dtype=np.uint8).reshape(-1, 4, 3)
    idx(folder / "train-images-idx3-ubyte.gz", pixels[:train])
    idx(folder / "t10k-images-idx3-ubyte.gz", pixels[train:])
    idx(folder / "train-labels-idx1-ubyte.gz", np.arange(train, dtype=np.uint8))
    idx(folder / "t10k-labels-idx1-ubyte.gz", np.arange(test, dtype=np.uint8))
    return pixels


def test_an_idx_folder_puts_test_rows_behind_training_rows(tmp_path):
    pixels = mnist_like(tmp_path / "m")
    summary = split_dataset(tmp_path / "m", ["a", "b"], tmp_path / "out")
    assert labels(summary).values.tolist() == [0, 1, 2, 3, 4, 0, 1]
    expected = pixels[:, 2:].reshape(7, 6) / np.float32(255)
    np.testing.assert_array_equal(features(summary, "b")[1], expected)


def test_a_damaged_idx_folder_is_named(tmp_path):
    mnist_like(tmp_path / "m")
    images = tmp_path / "m" / "t10k-images-idx3-ubyte.gz"
    for damaged in (images.read_bytes()[:-9], gzip.compress(b"\0\0\x08\x03" + bytes(12) + b"x"), b"plain"):
        images.write_bytes(damaged)
        with pytest.raises(DatasetUnreadable, match=r"t10k-images.*again"):
            split_dataset(tmp_path / "m", ["a"], tmp_path / "out")
    images.unlink()
    with pytest.raises(DatasetUnreadable, match="t10k-images"):
        split_dataset(tmp_path / "m", ["a"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_files_are_not_overwritten_without_force(tmp_path):
    summary = split_dataset("iris", ["a"], tmp_path)
    before = summary.files[0].path.read_bytes()
    with pytest.raises(SplitExists, match=r"a\.parquet"):
        split_dataset("iris", ["a"], tmp_path, limit=3)
    assert summary.files[0].path.read_bytes() == before
    split_dataset("iris", ["a"], tmp_path, limit=3, force=True)
    assert summary.files[0].path.read_bytes() != before


@pytest.mark.parametrize("parties", [[], ["a", "a"], ["a/b"], ["labels"], [""], list("abcde")])
def test_impossible_parties_are_refused(tmp_path, parties):
    with pytest.raises(SplitImpossible):
        split_dataset("iris", parties, tmp_path)


@pytest.mark.parametrize(
    ("source", "options", "error"),
    [
        ("irises", {}, UnknownDataset),
        ("iris", {"limit": 0}, DatasetError),
        ("iris", {"alpha": 1.0}, SplitImpossible),
        ("iris", {"alpha": -1.0, "rows": True}, SplitImpossible),
        ("diabetes", {"alpha": 1.0, "rows": True}, SplitImpossible),
        ("iris", {"format": "xlsx"}, SplitImpossible),
    ],
)
def test_an_impossible_split_is_refused_before_anything_is_written(tmp_path, source, options, error):
    with pytest.raises(error):
        split_dataset(source, ["a", "b"], tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_the_printed_table_says_who_holds_what(tmp_path):
    rows = split_dataset("digits", ["a", "b"], tmp_path).table()
    assert [row["holder"] for row in rows] == ["a", "b", "labels"]
    assert rows[0]["first … last"] == "pixel_0_0 … pixel_3_7"
    assert rows[0]["image"] == "4×8"


def test_mnist_is_split_whole():
    folder = Path(os.environ.get("PARLEY_DATA", Path(__file__).parents[3].parent / "shared" / "data")) / "mnist"
    if not folder.is_dir():
        pytest.skip("set PARLEY_DATA to a folder with mnist/")
    dataset = load_dataset(folder)
    assert dataset.features.shape == (70_000, 784)
    assert dataset.features.dtype == np.float32
    assert dataset.features.max() == 1
    assert np.bincount(dataset.labels[:60_000])[0] == 5923
    assert np.bincount(dataset.labels[60_000:])[0] == 980


def test_a_file_with_semicolons_is_split_once_the_delimiter_is_named(tmp_path):
    (tmp_path / "a.csv").write_text("a;b;label\n1;2;x\n3;4;y\n")
    summary = split_dataset(tmp_path / "a.csv", ["left", "right"], tmp_path / "out", delimiter=";")
    assert (summary.rows, summary.columns, summary.classes) == (2, 2, ("x", "y"))


def breast():
    found = datasets.load_breast_cancer()
    return found.data, found.target


@pytest.mark.parametrize(("cut", "value"), [("importance", 0.1), ("importance", 10.0), ("correlation", 0.5)])
def test_a_cut_deals_every_column_to_one_party_and_leaves_nobody_without(cut, value):
    features, labels = breast()
    blocks = dealt_columns(features, labels, 4, cut, value, seed=2)
    assert sorted(np.concatenate(blocks)) == list(range(30))
    assert all(len(block) for block in blocks)


def test_a_small_alpha_gives_one_party_most_of_what_matters():
    features, labels = breast()
    matter = np.abs(np.corrcoef(features.T, labels)[-1, :-1])

    def largest(alpha):
        shares = []
        for seed in range(8):
            blocks = dealt_columns(features, labels, 3, "importance", alpha, seed)
            shares.append(max(matter[block].sum() for block in blocks) / matter.sum())
        return np.mean(shares)

    assert largest(0.1) > 0.6 > largest(100.0)


def test_a_cut_by_correlation_keeps_together_what_goes_together():
    generator = np.random.default_rng(0)
    groups = np.repeat(generator.normal(size=(200, 2)), 3, axis=1) + 0.1 * generator.normal(size=(200, 6))
    together = dealt_columns(groups, None, 2, "correlation", 1.0, seed=0)
    assert {frozenset(block) for block in together} == {frozenset({0, 1, 2}), frozenset({3, 4, 5})}
    spread = dealt_columns(groups, None, 2, "correlation", 0.0, seed=0)
    assert {frozenset(block) for block in spread} != {frozenset({0, 1, 2}), frozenset({3, 4, 5})}


def test_cuts_that_cannot_be_made_are_refused():
    features, labels = breast()
    for parties, cut, value, known in [
        (31, "importance", 1.0, labels),
        (3, "importance", 0.0, labels),
        (3, "importance", 1.0, None),
        (3, "correlation", 1.5, labels),
    ]:
        with pytest.raises(SplitImpossible):
            dealt_columns(features, known, parties, cut, value, seed=0)
