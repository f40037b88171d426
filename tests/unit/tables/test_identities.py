"""Ids of different files become comparable, and rows are chosen by them."""

import numpy as np
import pytest

from parley.tables.alignments import Alignment, AlignmentDamaged, AlignmentStore, AlignmentTaken, AlignmentUnknown
from parley.tables.identities import (
    AlignmentStale,
    IdsMissing,
    IdsRepeated,
    RowChoice,
    canonical,
    canonical_all,
    identified,
    identities,
)
from parley.tables.loading import TableRequest, id_digest, load_ids, load_labels, load_table


@pytest.mark.parametrize("spelling", ["17", " 17 ", "17.0", "17.", "\ufeff17", "17.00\t"])
def test_whole_numbers_have_one_spelling(spelling):
    assert canonical(spelling) == "17"


@pytest.mark.parametrize(
    ("one", "other"), [("17", "017"), ("17", "17.5"), ("a", "A"), ("1e3", "1000"), ("17", "-17"), ("x.0", "x")]
)
def test_ids_that_may_differ_stay_apart(one, other):
    assert canonical(one) != canonical(other)


def test_composed_and_decomposed_accents_are_the_same_id():
    assert canonical("Zoe\u0308") == canonical("Zoë")


@pytest.mark.parametrize("nothing", [None, "", "  ", "nan", "NaN", "\ufeff"])
def test_what_is_no_id_is_missing(nothing):
    assert canonical(nothing) == ""


@pytest.mark.parametrize(
    "texts", [["a", "nan", "", "b-1"], ["17", "17.0"], ["a", None], ["a\n", "b"], ["e\u0301", "x"], ["\ufeffa"], []]
)
def test_many_ids_are_spelled_as_each_by_itself(texts):
    assert canonical_all(texts) == [canonical(text) for text in texts]


def test_missing_and_repeated_ids_are_counted():
    found = identities(["a", None, "b", " a", "c", "", "a"], "first")
    assert (found.ids, found.rows.tolist()) == (["a", "b", "c"], [0, 2, 4])
    assert (found.total, found.missing, found.duplicates) == (7, 2, 3)
    assert identities(["a", "b", "a"], "drop").ids == ["b"]


@pytest.mark.parametrize("duplicates", ["first", "drop"])
def test_ids_that_come_some_at_a_time_are_those_of_all_rows_at_once(duplicates):
    generator = np.random.default_rng(3)
    texts = [None if row % 17 == 0 else f" {number}.0" for row, number in enumerate(generator.integers(0, 300, 400))]
    found = identified((texts[first : first + 64] for first in range(0, 400, 64)), duplicates, holder="", table="")
    whole = identities(texts, duplicates)
    assert list(found.ids) == whole.ids
    assert (found.total, found.missing, found.duplicates) == (whole.total, whole.missing, whole.duplicates)
    assert found.ids.sorted().digest() == id_digest(whole.ids)
    rows = generator.permutation(len(found.ids))
    assert list(found.ids.take(rows)) == [whole.ids[row] for row in rows]


def test_repeated_ids_are_refused_unless_something_is_said_about_them():
    with pytest.raises(IdsRepeated, match="2 of 3 rows in bank's table t"):
        identified([["a", "b"], ["a"]], "refuse", holder="bank", table="t")
    with pytest.raises(IdsMissing, match="none of the 2 rows"):
        identified([[None, ""]], "refuse", holder="bank", table="t")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("id,a,label\n7.0,1,x\n,2,y\n 10 ,3,y\n9,4,x\n9,5,y\n", encoding="utf-8-sig")
    return path


def test_only_the_chosen_rows_are_loaded_in_the_order_of_tables(file):
    choice = RowChoice(("10", "7", "9"), "first")
    table = load_table(TableRequest(file, columns=["a"], label_column="label", only=choice))
    assert table.ids.tolist() == ["7", "9", "10"]
    assert table.features.ravel().tolist() == [1, 4, 3]
    labels = load_labels(file, only=choice)
    assert (labels.ids.tolist(), labels.values.tolist()) == (["7", "9", "10"], [0, 0, 1])


def test_scaling_sees_the_chosen_rows_only(file):
    table = load_table(TableRequest(file, columns=["a"], standardise=True, only=RowChoice(("7", "10"), "first")))
    np.testing.assert_allclose(table.features.ravel(), [-1, 1])


def test_row_numbers_are_ids_too(file):
    table = load_table(TableRequest(file, id_column="#row", columns=["a"], only=RowChoice(("1", "4"))))
    assert (table.ids.tolist(), table.features.ravel().tolist()) == (["1", "4"], [2, 5])


def test_a_table_that_lost_aligned_rows_is_refused(file):
    with pytest.raises(AlignmentStale, match="1 of 2 aligned rows"):
        load_table(TableRequest(file, columns=["a"], only=RowChoice(("7", "8"), "first")))


def test_ids_are_read_as_the_file_spells_them(file):
    assert [text and text.strip() for piece in load_ids(file) for text in piece] == ["7.0", "", "10", "9", "9"]


def stored(**changes):
    fields = {
        "name": "n",
        "table": "t",
        "coordinator": "hub",
        "parties": ("bank",),
        "duplicates": "drop",
        "digest": id_digest(["ü", "2"]),
        "ids": ("2", "ü"),
    }
    return Alignment(**fields | changes)


def test_an_alignment_is_read_back_as_it_was_stored(tmp_path):
    store = AlignmentStore(tmp_path)
    store.save(stored())
    found = store.load("n", "t", "hub")
    assert found.choice == RowChoice(("2", "ü"), "drop")
    assert (tmp_path / "alignments" / "n.json").stat().st_mode & 0o077 == 0, "ids are nobody else's business"


def test_an_alignment_of_another_table_or_coordinator_is_unknown(tmp_path):
    store = AlignmentStore(tmp_path)
    store.save(stored())
    for name, table, coordinator in (("m", "t", "hub"), ("n", "u", "hub"), ("n", "t", "rival")):
        with pytest.raises(AlignmentUnknown):
            store.load(name, table, coordinator)
    with pytest.raises(AlignmentTaken, match="choose another name"):
        store.refuse_others("n", "rival")
    store.refuse_others("n", "hub")


def test_a_damaged_alignment_says_what_to_do(tmp_path):
    store = AlignmentStore(tmp_path)
    store.save(stored())
    (tmp_path / "alignments" / "n.json").write_text("{")
    with pytest.raises(AlignmentDamaged, match="align again"):
        store.load("n", "t", "hub")
