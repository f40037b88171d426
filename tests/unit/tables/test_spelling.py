import datetime as dt
import decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parley.tables import errors
from parley.tables.loading import ColumnNotText, LabelInvalid, TableRequest, load_ids, load_labels, load_table
from parley.tables.row_files import Workspace, load_mapped
from parley.tables.spelling import DateColumn, Spelling, ValueUnreadable
from parley.tables.survey import survey


def csv(folder, text):
    path = folder / "t.csv"
    path.write_text(text)
    return path


def test_decimal_commas_and_thousands_are_read_as_their_owner_says(tmp_path):
    path = csv(tmp_path, "id;a;b\n1;1.234,5;-0,25\n2;12;1.000.000\n")
    table = load_table(TableRequest(path, delimiter=";", spelling=Spelling(",", "."), dtype=np.float64))
    np.testing.assert_array_equal(table.features, [[1234.5, -0.25], [12, 1e6]])


def test_blanks_between_thousands_may_be_of_the_kind_that_does_not_break(tmp_path):
    path = csv(tmp_path, "id,a\n1,1\u202f234.5\n2,2\u00a0000\n3,3 000 000\n")
    table = load_table(TableRequest(path, spelling=Spelling(thousands=" "), dtype=np.float64))
    np.testing.assert_array_equal(table.features[:, 0], [1234.5, 2000, 3e6])


@pytest.mark.parametrize("text", ["1.5", "12.34,5", "1,2,3", "abc", ",", "1..000", "0x10"])
def test_groups_that_are_not_of_three_digits_are_no_number(text):
    with pytest.raises(ValueUnreadable, match="is no number with the decimal sign ','"):
        Spelling(",", ".").numbers(pa.array([text]))


def test_mapped_rows_are_spelled_like_those_in_memory(tmp_path):
    path = csv(tmp_path, "id;a;since\n2;1.234,5;31.01.2020\n1;12;\n")
    spelling = Spelling(",", ".", (DateColumn("since", "%d.%m.%Y"),))
    request = TableRequest(path, delimiter=";", spelling=spelling, missing=True)
    held, mapped = load_table(request), load_mapped(request, Workspace(tmp_path / "state", 10**8))
    np.testing.assert_array_equal(np.asarray(mapped.features), held.features)
    assert held.features[1, 1] == 7335
    found = survey(request)
    assert (found.words, found.missing) == ((), ("since",))


def test_dates_are_days_since_their_reference_in_whatever_form_they_come(tmp_path):
    zone = dt.timezone(dt.timedelta(hours=2))
    columns = {
        "id": [1, 2],
        "day": pa.array([dt.date(2000, 1, 3), None]),
        "time": pa.array([dt.datetime(2000, 1, 1, 12), None]),
        "zoned": pa.array([dt.datetime(2000, 1, 1, 14, tzinfo=zone), None], pa.timestamp("ns", tz="Europe/Oslo")),
        "text": pa.array(["2000-01-02T06:00:00+00:00", "NA"]),
    }
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table(columns), path)
    spelling = Spelling(dates=tuple(map(DateColumn, ("day", "time", "zoned", "text"))))
    table = load_table(TableRequest(path, spelling=spelling, missing=True, dtype=np.float64))
    np.testing.assert_array_equal(table.features[0], [2, 0.5, 0.5, 1.25])
    assert np.isnan(table.features[1]).all()


def test_decimals_dictionaries_and_truth_values_are_numbers(tmp_path):
    columns = {
        "id": [1, 2],
        "price": pa.array([decimal.Decimal("1.25"), None], pa.decimal128(9, 2)),
        "code": pa.array([3, 5]).dictionary_encode(),
        "loyal": pa.array([True, None]),
        "huge": pa.array([2**63, 2**64 - 1], pa.uint64()),
    }
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table(columns), path)
    table = load_table(TableRequest(path, missing=True, dtype=np.float64))
    np.testing.assert_array_equal(table.features, [[1.25, 3, 1, 2.0**63], [np.nan, 5, np.nan, 2.0**64]])
    assert survey(TableRequest(path)).words == ()


def test_cycles_turn_once_in_their_period_and_stand_still_where_there_is_no_date():
    date = DateColumn("since", cycles=("week", "day"))
    turned = date.turned(np.array([0.0, 7.0, 3.5, np.nan]))
    np.testing.assert_allclose(turned, [[0, 1, 0, 1], [0, 1, 0, 1], [0, -1, 0, -1], [0, 0, 0, 0]], atol=1e-12)
    whole = date.turned(np.arange(9000.0))[:, 2:]
    assert (whole == whole[0]).all(), "whole days have one time of day, to the last bit"
    assert date.outputs == ["since:week sin", "since:week cos", "since:day sin", "since:day cos"]


ADVICE = [
    ("2024-01-31", r"preprocess: \{dates: \{columns: \[\.\.\.\]\}\}"),
    ("31.01.2024", r"format: '%d\.%m\.%Y'"),
    ("1.234,5", 'decimal: ","` and `thousands: "."'),
    ("12,5", 'Write `decimal: ","` on'),
    ("1,234", "whichever the comma is"),
    ("1,234,567", 'Write `thousands: ","`'),
    ("yes", r"categorical: \{columns: \[\.\.\.\]\}"),
]


@pytest.mark.parametrize(("text", "advice"), ADVICE)
def test_a_value_that_is_no_number_is_refused_with_what_its_form_suggests(tmp_path, text, advice):
    with pytest.raises(errors.ColumnNotNumeric, match=f"line 2.*{advice}"):
        load_table(TableRequest(csv(tmp_path, f'id,a\n1,"{text}"\n')))


def test_undeclared_dates_of_parquet_are_refused_with_what_to_declare(tmp_path):
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"id": [1], "day": pa.array([dt.date(2000, 1, 3)])}), path)
    with pytest.raises(errors.ColumnNotNumeric, match=r"date32.*preprocess: \{dates"):
        load_table(TableRequest(path))


@pytest.mark.parametrize(("text", "format_"), [("2024-13-01", None), ("2024-01-31", "%d.%m.%Y"), ("soon", None)])
def test_a_text_that_is_no_date_is_refused_by_its_line(tmp_path, text, format_):
    path = csv(tmp_path, f"id,since\n1,\n2,{text}\n")
    with pytest.raises(errors.ColumnNotNumeric, match=r"line 3.*is no date"):
        load_table(TableRequest(path, spelling=Spelling(dates=(DateColumn("since", format_),)), missing=True))


def test_formats_of_numbers_alone_hold_no_dates(tmp_path):
    path = tmp_path / "t.svm"
    path.write_text("1 1:2 # 5\n")
    with pytest.raises(ColumnNotText, match=r"no dates.*Leave `preprocess.dates` out"):
        load_table(TableRequest(path, spelling=Spelling(dates=(DateColumn("1"),))))


def test_columns_that_the_owner_leaves_out_are_not_even_looked_at(tmp_path):
    path = csv(tmp_path, "id,a,remark\n1,2,hello\n")
    assert load_table(TableRequest(path, exclude=("remark",))).columns == ["a"]
    assert survey(TableRequest(path, exclude=("remark",))).words == ()
    with pytest.raises(errors.ColumnMissing, match=r"'remark'.*leaves this column out"):
        load_table(TableRequest(path, columns=["remark"], exclude=("remark",)))
    with pytest.raises(errors.ColumnMissing, match="'rmark'"):
        load_table(TableRequest(path, exclude=("rmark", "remark")))


def test_rows_without_a_label_are_refused_or_left_out(tmp_path):
    path = csv(tmp_path, "id,label\nb,1\na,\nc,0\n")
    with pytest.raises(LabelInvalid, match=r"line 3: no label.*unlabelled: drop"):
        load_labels(path)
    labels = load_labels(path, unlabelled="drop")
    assert (labels.ids.tolist(), labels.values.tolist(), labels.classes) == (["b", "c"], [1, 0], ("0", "1"))
    assert list(load_ids(path, column="label", unlabelled="drop")) == [["b", "c"]]
    assert list(load_ids(path, column="label")) == [["b", "a", "c"]]


def test_real_labels_may_have_decimal_commas(tmp_path):
    path = csv(tmp_path, "id;label\n1;1,5\n2;2\n")
    labels = load_labels(path, kind="real", delimiter=";", spelling=Spelling(","))
    assert labels.values.tolist() == [1.5, 2.0]
