"""Rows that are mapped from files are those that a table in memory has."""

import os
import resource
import stat
import subprocess
import sys
import textwrap
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from parley.tables.digests import table_digest
from parley.tables.errors import ColumnNotNumeric, FeatureMissing, TableError
from parley.tables.identities import AlignmentStale, RowChoice
from parley.tables.loading import IdDuplicated, IdMissing, TableRequest, id_digest, load_table
from parley.tables.places import Place
from parley.tables.preprocessing import Declared, apply, fit
from parley.tables.row_files import Workspace, connected, load_mapped
from parley.tables.survey import survey

ROWS = 1000


@pytest.fixture
def workspace(tmp_path):
    return Workspace(tmp_path / "state", 200_000_000)


def written(directory, ids, *, files=3, suffix="parquet", words=False, gaps=False):
    rng = np.random.default_rng(4)
    values = rng.standard_normal((len(ids), 4)).astype(np.float32)
    columns = {"id": pa.array(ids)}
    columns |= {f"c{index}": pa.array(values[:, index]) for index in range(4)}
    if gaps:
        columns["c1"] = pa.array([None if row % 7 == 3 else float(values[row, 1]) for row in range(len(ids))])
    if words:
        towns = ["Oslo", "Tromsø", None, "Bergen", "Oslo"]
        columns["town"] = pa.array([towns[row % 5] for row in range(len(ids))])
    table = pa.table(columns)
    directory.mkdir(exist_ok=True)
    for number, rows in enumerate(np.array_split(np.arange(len(ids)), files)):
        path = directory / f"part-{number}.{suffix}"
        part = table.take(rows)
        pq.write_table(part, path) if suffix == "parquet" else pa.csv.write_csv(part, path)
    return Place(str(directory))


def shuffled(kind):
    order = np.random.default_rng(1).permutation(ROWS)
    return [int(row) * 3 for row in order] if kind == "numbers" else [f"id-{row}" for row in order]


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
@pytest.mark.parametrize("kind", ["numbers", "texts"])
def test_a_folder_of_files_is_mapped_as_it_would_be_read(tmp_path, workspace, suffix, kind):
    request = TableRequest(written(tmp_path / "rows", shuffled(kind), suffix=suffix))
    held, mapped = load_table(request), load_mapped(request, workspace)
    assert isinstance(mapped.features, np.memmap)
    assert np.array_equal(mapped.ids, held.ids)
    assert mapped.features.tobytes() == held.features.tobytes()
    assert mapped.row_digest == id_digest(held.ids)
    assert table_digest(mapped) == table_digest(held)


def test_files_are_made_once_and_for_their_owner_alone(tmp_path, workspace):
    request = TableRequest(written(tmp_path / "rows", shuffled("texts")))
    (directory,) = {load_mapped(request, workspace).files.directory for _ in range(2)}
    assert [stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()] == [0o600] * 4
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    os.utime(tmp_path / "rows" / "part-0.parquet", (1, 1))
    assert load_mapped(request, workspace).files.directory != directory


def test_a_row_is_found_by_bisection(tmp_path, workspace):
    for kind in ("numbers", "texts"):
        table = load_mapped(TableRequest(written(tmp_path / kind, shuffled(kind))), workspace)
        chosen = [0, 17, ROWS - 1]
        assert table.files.places(table.ids, [str(table.ids[row]) for row in chosen]).tolist() == chosen
        assert table.files.places(table.ids, ["7"]) is None
        assert table.files.places(table.ids, ["nobody"]) is None


@pytest.mark.parametrize("scale", ["none", "standard", "minmax", "max_abs"])
@pytest.mark.parametrize("missing", ["mean", "median", "most_frequent"])
def test_preprocessing_is_the_same_on_mapped_rows(tmp_path, workspace, monkeypatch, scale, missing):
    monkeypatch.setattr("parley.tables.rows.SHARD_ROWS", 64)
    place = written(tmp_path / "rows", shuffled("texts"), words=True, gaps=True)
    request = TableRequest(place, categorical=("town",), missing=True, dtype=np.float64)
    declared = Declared(missing, ("town",), scale=scale)
    held, mapped = load_table(request), load_mapped(request, workspace)
    training = np.arange(0, ROWS, 2)
    ours, theirs = fit(declared, mapped, training), fit(declared, held, training)
    assert ours == theirs
    one, other = apply(ours, mapped), apply(theirs, held)
    assert one.columns == other.columns
    assert one.missing == other.missing
    assert isinstance(one.features, np.memmap)
    np.testing.assert_allclose(one.features, other.features, rtol=1e-6, atol=1e-6)


def test_standardised_rows_are_the_same(tmp_path, workspace):
    request = TableRequest(written(tmp_path / "rows", shuffled("numbers")), standardise=True)
    held, mapped = load_table(request), load_mapped(request, workspace)
    assert mapped.features.tobytes() == held.features.tobytes()


@pytest.mark.parametrize("duplicates", ["first", "drop"])
def test_aligned_rows_are_the_same(tmp_path, workspace, duplicates):
    ids = [*shuffled("texts"), "id-3", " id-900 "]
    place = written(tmp_path / "rows", ids)
    wanted = tuple(f"id-{row}" for row in range(100, 900) if row != 3)
    request = TableRequest(place, only=RowChoice(wanted, duplicates))
    held, mapped = load_table(request), load_mapped(request, workspace)
    assert np.array_equal(mapped.ids, held.ids)
    assert mapped.features.tobytes() == held.features.tobytes()
    with pytest.raises(AlignmentStale, match="1 of 2 aligned rows"):
        load_mapped(replace(request, only=RowChoice(("id-5", "stranger"), duplicates)), workspace)


def test_a_bad_table_is_refused_by_name_and_place(tmp_path, workspace):
    with pytest.raises(IdDuplicated, match="identity 'a' appears twice"):
        load_mapped(TableRequest(written(tmp_path / "twice", ["a", "b", "a"])), workspace)
    with pytest.raises(IdMissing, match="row 1"):
        load_mapped(TableRequest(written(tmp_path / "none", ["a", " ", "c"])), workspace)
    with pytest.raises(FeatureMissing, match="column 'c1', row 3"):
        load_mapped(TableRequest(written(tmp_path / "gaps", [*"abcdefgh"], gaps=True)), workspace)
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "one.csv").write_text("id,c\na,1\nb,two\n")
    with pytest.raises(ColumnNotNumeric, match="line 3"):
        load_mapped(TableRequest(Place(str(tmp_path / "words"))), workspace)
    (tmp_path / "words" / "two.csv").write_text("id,d\nc,1\n")
    with pytest.raises(TableError, match="header"):
        load_mapped(TableRequest(Place(str(tmp_path / "words"))), workspace)
    assert not [*(workspace.state / "rows").glob(".partial*")]


def test_a_pattern_chooses_files(tmp_path, workspace):
    written(tmp_path / "rows", shuffled("texts"))
    one = load_mapped(TableRequest(Place(str(tmp_path / "rows" / "part-[01].parquet"))), workspace)
    assert 600 < len(one) < 700


def test_a_survey_of_a_folder_counts_what_a_run_must_know(tmp_path, workspace, monkeypatch):
    monkeypatch.setattr("parley.tables.survey.BATCH_ROWS", 100)
    for suffix in ("csv", "parquet"):
        ids = [*shuffled("texts"), "id-3", " "]
        place = written(tmp_path / suffix, ids, suffix=suffix, words=True, gaps=True)
        found = survey(TableRequest(place), workspace=workspace)
        assert found == survey(TableRequest(place))
        assert (found.rows, found.words, found.without_id, found.repeated) == (1002, ("town",), 1, 2)
        assert "c1" in found.missing


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_table_of_four_times_the_memory_is_sorted_and_read(tmp_path):
    """2 million rows of 20 columns are 160 MB; sorting in 200 MB keeps the process within a few hundred."""
    rows, columns = 2_000_000, 20
    rng = np.random.default_rng(0)
    ids = rng.permutation(rows)
    (tmp_path / "rows").mkdir()
    for number, part in enumerate(np.array_split(np.arange(rows), 8)):
        values = {f"c{c}": rng.standard_normal(len(part), dtype=np.float32) for c in range(columns)}
        pq.write_table(pa.table({"id": ids[part]} | values), tmp_path / "rows" / f"{number}.parquet")
    code = f"""
        import resource
        from pathlib import Path
        from parley.tables.loading import TableRequest
        from parley.tables.places import Place
        from parley.tables.row_files import Workspace, load_mapped
        import numpy, pyarrow.dataset, duckdb
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        workspace = Workspace(Path({str(tmp_path)!r}), 200 << 20)
        table = load_mapped(TableRequest(Place({str(tmp_path / "rows")!r})), workspace)
        assert len(table) == {rows} and str(table.ids[1234]) == "1234"
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    """
    limit = (700 << 20, 700 << 20)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, limit),
    )
    assert int(done.stdout) < 500_000  # kB


def test_sorting_writes_nothing_to_a_terminal_however_long_it_takes(tmp_path, workspace):
    """DuckDB draws a bar after two seconds where it takes Python for interactive, as it does `python -c`."""
    with connected(tmp_path / "some.db", workspace, tmp_path) as database:
        assert database.sql("SELECT current_setting('enable_progress_bar')").fetchall() == [(False,)]
