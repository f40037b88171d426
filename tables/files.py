"""Read CSV, Parquet, NPZ and svmlight files, and name what is wrong with one that cannot be read.

A reader answers three questions about a file: its column names, some columns as numbers, one column as text. The
fast path trusts the file; only when it fails is the file read again, slowly, to find the first bad line.
"""

import bz2
import csv
import gzip
import io
import lzma
import re
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from parley.tables.errors import (
    OTHERS,
    ColumnDuplicated,
    ColumnMissing,
    ColumnNotNumeric,
    FeatureMissing,
    FeatureNotFinite,
    RowRagged,
    TableEmpty,
    TableError,
    TableFormatMismatch,
    TableNotFound,
    TableUnreadable,
    UnknownTableFormat,
)
from parley.tables.spelling import NO_VALUE, PLAIN, Spelling, ValueUnreadable, advice

Texts = list[str | None]
T = TypeVar("T")

_FORMATS = {
    ".csv": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".npz": "npz",
    ".svm": "svmlight",
    ".libsvm": "svmlight",
    ".svmlight": "svmlight",
}
_COMPRESSED: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_MAGIC = {b"PAR1": "parquet", b"PK\x03\x04": "npz"}
_DAMAGE = (OSError, EOFError, lzma.LZMAError, zlib.error, zipfile.BadZipFile, UnicodeDecodeError)


class TableFile(Protocol):
    """What a reader offers once the file is open."""

    @property
    def path(self) -> Any:
        """The file, or the query of a database."""

    @property
    def names(self) -> list[str]:
        """Columns in file order."""

    @property
    def rows(self) -> int:
        """Number of rows."""

    def numbers(self, names: Sequence[str], dtype: type[np.floating[Any]], *, missing: bool = False) -> Any:
        """Return columns as a rows × names array, dense or CSR; finite, or NaN where `missing` is allowed."""

    def texts(self, name: str) -> Texts:
        """Return one column as text, None where there is no value."""

    def place(self, row: int) -> str:
        """Say where row `row` (from 0) is in the file."""


def table_format(path: Path, given: str | None) -> str:
    """Tell the format from the argument or the file's name; refuse one that the first bytes deny."""
    if not path.is_file():
        raise TableNotFound(path, "there is no such file", "Check `path` in the configuration")
    suffixes = [suffix.lower() for suffix in path.suffixes]
    named = suffixes[-2:-1] if suffixes and suffixes[-1] in _COMPRESSED else suffixes[-1:]
    found = given or _FORMATS.get(named[0] if named else "")
    if found not in _FORMATS.values():
        raise UnknownTableFormat(
            path,
            f"format {given or path.suffix or 'without a suffix'} is not known",
            "Write `format: csv`, or parquet, npz or svmlight",
        )
    with open_table(path) as file:
        start = guarded(path, lambda: file.read(4))
    actual = _MAGIC.get(start, "text")
    if actual != ("text" if found in ("csv", "svmlight") else found) and start:
        raise TableFormatMismatch(
            path,
            f"the file is not {found}: it starts like {actual}",
            "Write the right `format`, or rename the file",
        )
    return str(found)


def open_table(path: Path) -> BinaryIO:
    """Open a plain or compressed file for reading."""
    opener = _COMPRESSED.get(path.suffix.lower(), open)
    return guarded(path, lambda: cast(BinaryIO, opener(path, "rb")))


def decompressed(path: Path, raw: BinaryIO) -> BinaryIO:
    """What is in an open file, which tells by `raw.tell()` how far it has been read."""
    opener = _COMPRESSED.get(path.suffix.lower())
    return raw if opener is None else cast(BinaryIO, opener(raw, "rb"))


def guarded(path: Path, read: Callable[[], T]) -> T:
    """Run `read`; damage of any sort becomes `TableUnreadable`."""
    try:
        return read()
    except _DAMAGE as damage:
        raise TableUnreadable(
            path,
            f"the file cannot be read ({damage})",
            "Copy it again, make it UTF-8 if it is text, and check its permissions",
        ) from damage


@dataclass(frozen=True)
class ArrowFile:
    """A CSV or Parquet file, or what a query of a database brought."""

    path: Any
    names: list[str]
    rows: int
    columns: pa.Table
    delimiter: str | None
    """Field separator of a CSV file; None for others."""
    first: int = 0
    """Row of the table that these rows begin with, where they are some of many."""
    spelling: Spelling = PLAIN
    """How numbers and dates are written."""

    def numbers(self, names: Sequence[str], dtype: type[np.floating[Any]], *, missing: bool = False) -> NDArray[Any]:
        """Return columns as a dense array."""
        matrix = np.empty((self.rows, len(names)), dtype=dtype)
        for index, name in enumerate(names):
            column = self._number_column(name)
            if column.null_count and missing:
                column = column.cast(pa.float64())  # null becomes NaN
            elif column.null_count:
                row = column.to_pylist().index(None)
                raise FeatureMissing(self.path, "a value is missing", _FILL, column=name, place=self.place(row))
            with np.errstate(over="ignore"):  # what overflows is refused below
                matrix[:, index] = column.to_numpy()
        refuse_not_finite(self, matrix, names, missing=missing)
        return matrix

    def _number_column(self, name: str) -> Any:
        """A column as integers, floats or truth values, null where there is none."""
        column, date = decoded(self.columns.column(name)), self.spelling.date(name)
        kind = column.type
        try:
            if date is not None:
                return pa.chunked_array([pa.array(date.days(column), from_pandas=True)])
            if not self.spelling.plain and (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
                return self.spelling.numbers(column)
        except (ValueUnreadable, TypeError) as refusal:
            place = self.place(refusal.row) if isinstance(refusal, ValueUnreadable) else None
            remedy = "Correct it, or how the table's configuration says that it is written"
            raise ColumnNotNumeric(self.path, str(refusal), remedy, column=name, place=place) from None
        if pa.types.is_null(kind) or pa.types.is_decimal(kind):  # of null no row has a value: the type is unknown
            return column.cast(pa.float64(), safe=False)
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or kind == pa.bool_()):
            remedy = _DATES if pa.types.is_date(kind) or pa.types.is_timestamp(kind) else _encode(_example(column))
            raise ColumnNotNumeric(
                self.path, f"the column holds {kind}, not numbers", remedy, column=name, place=self.place(0)
            )
        return column

    def texts(self, name: str) -> Texts:
        """Return one column as text."""
        column = decoded(self.columns.column(name))
        return [None if value is None else as_text(value) for value in column.to_pylist()]

    def place(self, row: int) -> str:
        """Say the line of a CSV file, or the row of a Parquet file."""
        if self.delimiter is None:
            return f"row {self.first + row}"
        lines = _csv_lines(self.path, self.delimiter)
        return next((f"line {line}" for index, (line, _) in enumerate(lines) if index == row + 1), f"row {row}")


def decoded(column: Any) -> Any:
    """A column without the dictionary that a file may keep its values in."""
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _example(column: Any) -> str:
    """A text of a column, to guess by how it is written."""
    texts = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    return next((value for value in column.slice(0, 1000).to_pylist() if value), "") if texts else ""


def open_csv(
    path: Path, texts: Collection[str], wanted: Collection[str] | None, delimiter: str, spelling: Spelling = PLAIN
) -> ArrowFile:
    """Read a CSV file with a header: columns in `texts` as they stand, others (`wanted`, or all) as numbers."""
    skipped, names = csv_header(path, delimiter)
    numeric = [name for name in names if name not in texts and (wanted is None or name in wanted)]
    included = [name for name in names if name in texts or name in numeric]
    types = {name: pa.string() if name in texts or spelling.is_text(name) else pa.float64() for name in included}
    try:
        with open_table(path) as file:
            columns = guarded(
                path,
                lambda: pa.csv.read_csv(
                    file,
                    read_options=pa.csv.ReadOptions(column_names=names, skip_rows=skipped),
                    parse_options=pa.csv.ParseOptions(delimiter=delimiter),
                    convert_options=pa.csv.ConvertOptions(
                        column_types=types, include_columns=included, strings_can_be_null=False
                    ),
                ),
            )
    except pa.ArrowInvalid as refusal:
        if "Empty CSV" in str(refusal):
            raise TableEmpty(path, "there are no rows below the header", "Write at least one row") from refusal
        diagnose_csv(path, names, [name for name in numeric if not spelling.is_text(name)], delimiter)
        raise TableUnreadable(path, f"the file is not valid CSV ({refusal})", "Export it again") from refusal
    return ArrowFile(path, names, columns.num_rows, columns, delimiter, spelling=spelling)


def csv_header(path: Path, delimiter: str) -> tuple[int, list[str]]:
    """Lines up to the header's end, and the columns' names."""
    header = next(_csv_lines(path, delimiter), None)
    if header is None:
        raise TableEmpty(path, "the file is empty", "Write a header line and at least one row")
    names = [name.strip() for name in header[1]]
    other = next((mark for mark in (";", "\t", "|", ",") if len(names) == 1 and mark in names[0]), None)
    if other is not None:
        written = other.replace("\t", "\\t")
        problem = f'its fields seem to be separated by "{written}"'
        raise TableUnreadable(path, problem, f'Write `delimiter: "{written}"` on the table')
    refuse_duplicates(path, names)
    return header[0], names


def is_index(name: str) -> bool:
    """Whether a column is the row numbers that pandas writes beside a table's columns: no feature unless named."""
    return re.fullmatch(r"__index_level_\d+__", name) is not None


def open_parquet(path: Path, texts: Collection[str], wanted: Collection[str] | None) -> ArrowFile:
    """Read a Parquet file."""
    try:
        file = guarded(path, lambda: pa.parquet.ParquetFile(path))
        names = file.schema_arrow.names
        refuse_duplicates(path, names)
        included = [name for name in names if wanted is None or name in wanted or name in texts]
        columns = guarded(path, lambda: file.read(columns=included))
    except pa.ArrowException as damage:
        raise TableUnreadable(path, f"the file is damaged ({damage})", "Copy it again") from damage
    return ArrowFile(path, names, columns.num_rows, columns, None)


@dataclass(frozen=True)
class NpzFile:
    """Arrays `x` or `features` (rows × columns), and optionally `ids`, `columns` and a one-dimensional label array."""

    path: Path
    names: list[str]
    rows: int
    matrix: NDArray[Any] | None
    vectors: dict[str, NDArray[Any]]

    def numbers(self, names: Sequence[str], dtype: type[np.floating[Any]], *, missing: bool = False) -> NDArray[Any]:
        """Return columns as a dense array."""
        matrix = np.zeros((self.rows, 0)) if self.matrix is None else self.matrix
        if matrix.dtype.kind not in "buif":
            raise ColumnNotNumeric(self.path, f"the features are of type {matrix.dtype}", _ENCODE)
        position = {name: index for index, name in enumerate(n for n in self.names if n not in self.vectors)}
        with np.errstate(over="ignore"):
            chosen = np.ascontiguousarray(matrix[:, [position[name] for name in names]], dtype=dtype)
        refuse_not_finite(self, chosen, names, missing=missing)
        return chosen

    def texts(self, name: str) -> Texts:
        """Return one vector, or one column of the features, as text."""
        if name in self.vectors:
            return [as_text(value) for value in self.vectors[name].tolist()]
        column = self.numbers([name], np.float64, missing=True)[:, 0]
        return [None if np.isnan(value) else as_text(value) for value in column.tolist()]

    def place(self, row: int) -> str:
        """Say the row."""
        return f"row {row}"


def open_npz(path: Path) -> NpzFile:
    """Read an NPZ file; pickled objects are refused, since loading one runs code."""
    try:
        arrays = guarded(path, lambda: dict(np.load(path, allow_pickle=False)))
    except ValueError as refusal:
        if isinstance(refusal, TableError):
            raise
        raise TableUnreadable(
            path, f"an array cannot be read ({refusal})", "Save plain arrays, not objects"
        ) from refusal
    given = arrays.pop("columns", None)
    matrix = arrays.pop("x", arrays.pop("features", None))
    if matrix is not None and matrix.ndim != 2:
        raise TableUnreadable(path, f"the features have shape {matrix.shape}", "Reshape them to rows × columns")
    vectors = {name: array for name, array in arrays.items() if array.ndim == 1}
    lengths = {len(array) for array in ([] if matrix is None else [matrix]) + list(vectors.values())}
    if len(lengths) != 1:
        raise TableUnreadable(
            path, f"the arrays have {sorted(lengths)} rows", "Save `x` (or `features`), and vectors of the same length"
        )
    width = 0 if matrix is None else matrix.shape[1]
    names = [str(name) for name in given] if given is not None else [str(index) for index in range(width)]
    if len(names) != width:
        raise TableUnreadable(path, f"there are {len(names)} names for {width} columns", "Save one name per column")
    refuse_duplicates(path, [*names, *vectors])
    return NpzFile(path, [*names, *vectors], lengths.pop(), matrix, vectors)


@dataclass(frozen=True)
class SvmlightFile:
    """Sparse rows `label index:value … # id`; columns are called by their index in the file."""

    path: Path
    names: list[str]
    rows: int
    matrix: csr_matrix
    labels: NDArray[np.float64]
    lines: list[int]
    """Line number of each row."""
    identities: Texts
    """The remark behind # on each row."""
    zero_based: bool

    def numbers(
        self,
        names: Sequence[str],
        dtype: type[np.floating[Any]],
        *,
        missing: bool = False,  # noqa: ARG002 (what is not there is 0, so nothing is ever missing)
    ) -> csr_matrix:
        """Return columns as a CSR matrix."""
        with np.errstate(over="ignore"):
            chosen = self.matrix[:, [int(name) - (not self.zero_based) for name in names]].astype(dtype)
        chosen.sort_indices()
        if not np.isfinite(chosen.data).all():
            row = int(np.searchsorted(chosen.indptr, np.flatnonzero(~np.isfinite(chosen.data))[0], side="right")) - 1
            raise FeatureNotFinite(self.path, "a value is NaN or infinite", _FILL, place=self.place(row))
        return chosen

    def texts(self, name: str) -> Texts:
        """Return labels (`label`) or identities (`id`)."""
        return [as_text(label) for label in self.labels.tolist()] if name == "label" else self.identities

    def place(self, row: int) -> str:
        """Say the line."""
        return f"line {self.lines[row]}"


def open_svmlight(path: Path, features: int | None, zero_based: bool) -> SvmlightFile:
    """Read an svmlight file; `features` fixes its width, which otherwise is the largest index in it."""
    with open_table(path) as file:
        content = guarded(path, file.read)
    lines = [(n, line) for n, line in enumerate(content.split(b"\n"), 1) if line.split(b"#")[0].strip()]
    if not lines:
        raise TableEmpty(path, "the file has no rows", "Write at least one row")
    from sklearn.datasets import load_svmlight_file  # slow to import, and only this format needs it

    try:
        matrix, labels = load_svmlight_file(io.BytesIO(content), zero_based=True)
    except (ValueError, OverflowError) as refusal:
        place = next((f"line {n}" for n, line in lines if not _parses(line)), None)
        raise TableUnreadable(
            path, f"not svmlight ({refusal})", "Write `label index:value …` with ascending indices", place=place
        ) from refusal
    first = 0 if zero_based else 1
    if not zero_based and matrix.shape[1] and matrix[:, 0].nnz:
        row = int(matrix[:, 0].nonzero()[0][0])
        raise TableUnreadable(
            path, "index 0 in a one-based file", "Write `zero_based: true` on the table", place=f"line {lines[row][0]}"
        )
    width = max(1, matrix.shape[1] - first) if features is None else features
    if matrix.shape[1] - first > width:
        raise ColumnMissing(
            path,
            f"the file has index {matrix.shape[1] - 1}, more than {width} features",
            "Raise `features` on the table",
        )
    matrix.resize((matrix.shape[0], width + first))
    remarks = [line.split(b"#", 1)[1].decode(errors="replace").strip() if b"#" in line else None for _, line in lines]
    return SvmlightFile(
        path,
        [str(index + first) for index in range(width)],
        len(lines),
        matrix[:, first:].tocsr(),
        labels,
        [n for n, _ in lines],
        [remark or None for remark in remarks],
        zero_based,
    )


def refuse_not_finite(file: TableFile, matrix: NDArray[Any], names: Sequence[str], *, missing: bool) -> None:
    """Refuse NaN (unless `missing` values are allowed) and ±∞, naming the first."""
    finite = ~np.isinf(matrix) if missing else np.isfinite(matrix)
    if finite.all():
        return
    row, column = map(int, np.argwhere(~finite)[0])
    if np.isnan(matrix[row, column]):
        raise FeatureMissing(file.path, "a value is NaN", _FILL, column=names[column], place=file.place(row))
    raise FeatureNotFinite(
        file.path,
        f"a value is infinite or too large for {matrix.dtype}",
        "Correct it, or leave it empty and declare `preprocess: {missing: median}` on the table",
        column=names[column],
        place=file.place(row),
    )


def as_text(value: object) -> str:
    """Write a value so that 7, 7.0 and "7" are one text, as identities and classes must be."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(int(value)) if isinstance(value, bool) else str(value)


_FILL = "Declare how to fill it, such as `preprocess: {missing: median}` on the table, or drop such rows"
_ENCODE = (
    "Declare `preprocess: {categorical: {columns: [...]}}` on the table, encode the column as numbers, or leave it "
    f"out: {OTHERS}, or write `exclude: [...]` on the table"
)
_DATES = "Declare `preprocess: {dates: {columns: [...]}}` on the table"


def _encode(text: str) -> str:
    return advice(text) or _ENCODE


def _csv_lines(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, fields) of each line that is not blank."""
    with open_table(path) as file:
        reader = csv.reader(io.TextIOWrapper(file, encoding="utf-8-sig", newline=""), delimiter=delimiter)
        while True:
            try:
                fields = guarded(path, lambda: next(reader, None))
            except csv.Error as error:
                raise TableUnreadable(
                    path, f"not CSV ({error})", "Export it again", place=f"line {reader.line_num}"
                ) from error
            if fields is None:
                return
            if fields:
                yield reader.line_num, fields


def diagnose_csv(path: Path, names: list[str], numeric: Collection[str], delimiter: str) -> None:
    """Raise for the first line that is ragged or holds something else than a number where one is wanted."""
    lines = _csv_lines(path, delimiter)
    next(lines)
    for number, fields in lines:
        place = f"line {number}"
        if len(fields) != len(names):
            raise RowRagged(
                path, f"{len(fields)} fields where the header has {len(names)}", "Repair or drop the line", place=place
            )
        for name, field in zip(names, fields, strict=True):
            if name in numeric and field.strip() and not _is_number(field):
                problem = f"{field[:40]!r} is not a number"
                raise ColumnNotNumeric(path, problem, _encode(field), column=name, place=place)


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return field.strip().lower() in NO_VALUE
    return "_" not in field


def _parses(line: bytes) -> bool:
    from sklearn.datasets import load_svmlight_file

    try:
        load_svmlight_file(io.BytesIO(line + b"\n"), zero_based=True)
    except (ValueError, OverflowError):
        return False
    return True


def refuse_duplicates(path: object, names: Sequence[str]) -> None:
    """Refuse columns of one name."""
    repeated = next((name for index, name in enumerate(names) if name in names[:index]), None)
    if repeated is not None:
        raise ColumnDuplicated(path, "two columns have this name", "Rename one of them", column=repeated)
