"""What a party says of its tables: good ones are not called broken, and the rest is told by field names that exist."""

import pytest

from parley.services.party.config import TableConfig
from parley.services.party.tables import TableStore
from parley.tables.errors import TableError

MESSY = "id,age,colour\n1,30,red\n2,,blue\n3,40,\n"


@pytest.fixture
def store(tmp_path):
    def offered(text, **fields):
        (tmp_path / "table.csv").write_text(text)
        return TableStore({"train": TableConfig(path=tmp_path / "table.csv", **fields)})

    return offered


def test_a_table_without_flaws_is_offered_as_it_is(store):
    offer = store("id,a,b\n1,2,3\n2,3,4\n").offer("train")
    assert (offer.rows, offer.features, offer.problem, offer.notice) == (2, 2, "", "")


def test_a_table_for_prediction_is_good_without_preprocessing_of_its_own(store):
    offer = store(MESSY).offer("train")
    assert (offer.rows, offer.features, offer.problem) == (3, 2, "")
    assert "a run that trains on it needs `preprocess`" in offer.notice
    assert "prediction" in offer.notice
    assert "blue" not in offer.notice


def test_its_owner_is_told_which_columns_want_preprocessing_and_others_are_not(store):
    wide = "id," + ",".join(f"w{n}" for n in range(30)) + "\n1," + ",".join("x" * 30) + "\n"
    for text, named in ((MESSY, ("'colour')", "'age', 'colour')")), (wide, ("'w0', 'w1'", "and 20 more)"))):
        found = store(text).examine("train").notice
        assert all(part in found for part in named), found
        assert not any(part in store(text).offer("train").notice for part in named)


def test_a_table_whose_preprocessing_covers_its_flaws_needs_no_notice(store):
    declared = {"missing": "median", "categorical": {"columns": ["colour"]}}
    assert store(MESSY, preprocess=declared).offer("train").notice == ""


def test_a_table_with_repeated_ids_is_good_for_an_alignment(store):
    offer = store("id,a\n1,2\n1,3\n2,4\n").offer("train")
    assert (offer.rows, offer.features, offer.problem) == (3, 1, "")
    assert "parley align --duplicates" in offer.notice
    assert "'1'" not in offer.notice, "an id is a value"


def test_a_table_with_rows_without_an_id_is_good_for_an_alignment(store):
    offer = store("id,a\n1,2\n,3\n2,4\n").offer("train")
    assert offer.problem == ""
    assert "rows without an id" in offer.notice


@pytest.mark.parametrize("text", ["", "id,a\n", "name,a\nx,1\n", "id,a\n1,2,3\n", "id,a\n1,inf\n"])
def test_a_table_that_nothing_can_be_done_with_is_a_problem(store, text):
    offer = store(text).offer("train")
    assert offer.problem
    assert offer.rows == 0


def test_a_column_that_is_not_there_is_told_by_the_field_that_names_it(store):
    with pytest.raises(TableError, match='Name the right one as `id`, or write `id: "#row"`'):
        store("name,a\nx,1\n").load("train")


def test_a_column_of_words_is_told_where_it_can_be_left_out(store):
    with pytest.raises(TableError, match="list the others as `columns` of this party in the run's spec"):
        store("id,a\n1,red\n").load("train")


def test_a_table_with_semicolons_is_read_once_the_delimiter_is_named(store):
    text = "id;a;b\n1;2;3\n2;3;4\n"
    with pytest.raises(TableError, match=r'separated by ";"\. Write `delimiter: ";"`'):
        store(text).load("train")
    table = store(text, delimiter=";").load("train")
    assert (len(table), table.columns) == (2, ["a", "b"])
    labels = store(text, delimiter=";", label="b").labels("train")
    assert labels.classes == ("3", "4")
    assert [list(some) for some in store(text, delimiter=";").ids("train")] == [["1", "2"]]


def test_an_svmlight_file_that_counts_from_0_is_read_once_that_is_said(tmp_path):
    (tmp_path / "table.svm").write_text("1 0:2 1:3\n-1 0:1\n")
    with pytest.raises(TableError, match="`zero_based: true`"):
        TableStore({"train": TableConfig(path=tmp_path / "table.svm")}).load("train")
    table = TableStore({"train": TableConfig(path=tmp_path / "table.svm", zero_based=True)}).load("train")
    assert table.features.tolist() == [[2, 3], [1, 0]]
