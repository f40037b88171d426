"""Rows of CSV and Parquet files, one batch after the other, so that no more than a batch is in memory."""

import csv
import io
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset as ds

from parley.tables.databases import SqlSource
from parley.tables.errors import ColumnMissing, TableEmpty, TableError, TableUnreadable
from parley.tables.files import ArrowFile, diagnose_csv, refuse_duplicates, table_format
from parley.tables.places import Files, Place, find_files, is_store, unreachable
from parley.tables.spelling import PLAIN, Spelling

BATCH_ROWS = 1 << 16
BLOCK_BYTES = 4 << 20


@dataclass(frozen=True)
class Batches:
    """A table in files, not read yet."""

    files: Files
    names: list[str]
    """Columns of all files, in the order of the first."""
    delimiter: str
    skipped: int
    """Lines of a CSV file up to the end of its header."""
    spelling: Spelling = PLAIN
    """How numbers and dates are written."""

    def read(self, texts: Collection[str], wanted: Collection[str] | None) -> Iterator[pa.RecordBatch]:
        """The columns in `texts` as they stand and `wanted` (all if None) as numbers, in the order of the files."""
        included = [name for name in self.names if wanted is None or name in wanted or name in texts]
        numeric = [name for name in included if name not in texts and not self.spelling.is_text(name)]
        try:
            yield from (
                self.files.dataset(self._format(included, texts))
                .scanner(
                    columns=included,
                    batch_size=BATCH_ROWS,
                    batch_readahead=2,
                    fragment_readahead=1,
                    use_threads=False,  # batches in order, and no more of them ahead than these
                )
                .to_batches()
            )
        except (OSError, pa.ArrowException) as failure:
            raise self._named(failure, numeric) from failure

    def _format(self, included: Sequence[str], texts: Collection[str]) -> ds.FileFormat:
        if self.files.kind == "parquet":
            return ds.ParquetFileFormat()
        written = {name for name in included if name in texts or self.spelling.is_text(name)}
        types = {name: pa.string() if name in written else pa.float64() for name in included}
        return ds.CsvFileFormat(
            read_options=pa.csv.ReadOptions(
                column_names=self.names, skip_rows=self.skipped, block_size=BLOCK_BYTES, use_threads=False
            ),
            parse_options=pa.csv.ParseOptions(delimiter=self.delimiter),
            convert_options=pa.csv.ConvertOptions(column_types=types, strings_can_be_null=False),
        )

    def _named(self, failure: Exception, numeric: Sequence[str]) -> TableError:
        """The same failure with file, line and column where the files are here to look at."""
        place = self.files.place
        if is_store(place.text):
            return unreachable(place, failure)
        if self.files.kind == "csv":
            for path in self.files.paths:
                diagnose_csv(Path(path), self.names, numeric, self.delimiter)
        cause = " ".join(str(failure).split())[:300]
        return TableUnreadable(place, f"a file cannot be read ({cause})", "Copy or export it again")


def place_of(source: Path | SqlSource | Place, given: str | None) -> Place | None:
    """The place of a table that can be read in batches; None if it cannot."""
    if isinstance(source, Place):
        return source
    if isinstance(source, SqlSource) or table_format(source, given) not in ("csv", "parquet"):
        return None
    return None if source.suffix.lower() == ".xz" else Place(str(source))


def open_batches(place: Place, given: str | None, delimiter: str, spelling: Spelling = PLAIN) -> Batches:
    """Find the files of a table and the names of its columns."""
    files = find_files(place, given)
    try:
        if files.kind == "csv":
            skipped, names = _header(files, delimiter)
        else:
            skipped, names = 0, files.dataset(ds.ParquetFileFormat()).schema.names
    except (OSError, pa.ArrowException) as failure:
        raise unreachable(place, failure) from failure
    except UnicodeDecodeError as damage:
        raise TableUnreadable(place, f"the header is not UTF-8 ({damage})", "Make the files UTF-8") from damage
    refuse_duplicates(place, names)
    return Batches(files, list(names), delimiter, skipped, spelling)


def open_place(
    place: Place,
    given: str | None,
    delimiter: str,
    texts: Collection[str],
    wanted: Collection[str] | None,
    spelling: Spelling = PLAIN,
    exclude: Collection[str] = (),
) -> ArrowFile:
    """Read all files of a place into memory, but for columns in `exclude`."""
    batches = open_batches(place, given, delimiter, spelling)
    if wanted is None and exclude:
        wanted = [name for name in batches.names if name not in exclude]
    absent = next((name for name in wanted or () if name not in batches.names), None)
    if absent is not None:
        raise ColumnMissing(
            place, f"there is no such column, among {batches.names[:10]}", "Correct the name", column=absent
        )
    read = list(batches.read(texts, wanted))
    if not read:
        raise TableEmpty(place, "there are no rows", "A table needs at least one")
    columns = pa.Table.from_batches(read)
    return ArrowFile(place, batches.names, columns.num_rows, columns, None, spelling=spelling)


def _header(files: Files, delimiter: str) -> tuple[int, list[str]]:
    """Lines up to the end of the header, and the columns' names: the same in every file."""
    first: tuple[int, list[str]] | None = None
    for path in files.paths:
        with files.system.open_input_stream(path) as raw:
            reader = csv.reader(io.TextIOWrapper(raw, encoding="utf-8-sig", newline=""), delimiter=delimiter)
            fields = next((row for row in reader if row), None)
            if fields is None:
                raise TableEmpty(path, "the file is empty", "Write a header line and at least one row")
            header = reader.line_num, [name.strip() for name in fields]
        if first is not None and header != first:
            raise TableUnreadable(
                path, "its header is not that of the other files", "Give all files of a table the same columns"
            )
        first = header
    assert first is not None  # noqa: S101 (a place without files was refused)
    return first
