"""Look through a table without keeping it: how large it is, and what a run would have to know of it.

A survey is lenient where loading is strict. Words, missing values and repeated ids are counted, not refused: a
prediction or an alignment can work with them. What nobody can work with is refused as when loading.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet
from scipy.sparse import issparse

from parley.tables.batches import open_batches
from parley.tables.databases import SqlSource
from parley.tables.errors import FeatureNotFinite, TableEmpty, TableUnreadable
from parley.tables.files import (
    csv_header,
    decompressed,
    diagnose_csv,
    guarded,
    is_index,
    refuse_duplicates,
    table_format,
)
from parley.tables.loading import ROW_NUMBER, TableRequest, open_source, refuse_absent_id
from parley.tables.places import Place
from parley.tables.row_files import CountedTexts, Workspace, give_back
from parley.tables.spelling import NO_VALUE, ValueUnreadable

BLOCK_BYTES = 4 << 20
BATCH_ROWS = 1 << 16
_COLUMN = re.compile(r"In CSV column #(\d+)")
Progress = Callable[[float], None]
"""Is called with the share of the table that has been read."""


@dataclass(frozen=True)
class Survey:
    """What a table holds."""

    rows: int
    features: int
    words: tuple[str, ...]
    """Columns that hold something else than numbers."""
    missing: tuple[str, ...]
    """Columns in which some row has no value."""
    without_id: int
    """Rows without an id."""
    repeated: int
    """Rows whose id another row has too."""


def survey(request: TableRequest, progress: Progress = lambda _: None, workspace: Workspace | None = None) -> Survey:
    """Look through a table once; with a `workspace`, ids are counted on disk where they are many.

    Raises:
        TableError: if nobody could load it, whatever is declared.
    """
    try:
        return _surveyed(request, progress, workspace)
    finally:
        give_back()


def _surveyed(request: TableRequest, progress: Progress, workspace: Workspace | None) -> Survey:
    source = request.source
    if isinstance(source, Place):
        batches = open_batches(source, request.format, request.delimiter)
        tally = _Tally(request, request.id_column or "id", workspace=workspace)
        tally.names = batches.names
        refuse_absent_id(source, tally.identity, tally.names)
        for batch in batches.read(tally.names if batches.files.kind == "csv" else (), None):
            tally.add({name: _as_numbers(batch.column(name)) for name in batch.schema.names}, batch.num_rows)
        return tally.result()
    kind = "sql" if isinstance(source, SqlSource) else table_format(source, request.format)
    if isinstance(source, SqlSource) or kind in ("npz", "svmlight"):
        file, identity = open_source(request)
        vectors = getattr(file, "vectors", {})
        tally = _Tally(request, identity, vectors)
        tally.names = file.names
        tally.add(_columns(file, tally.features, identity), file.rows)
    else:
        tally = _Tally(request, request.id_column or "id", workspace=workspace)
        for batch, share in _batches(source, kind, request.delimiter, tally):
            tally.add({name: batch.column(name) for name in batch.schema.names}, batch.num_rows)
            progress(share)
    return tally.result()


class _Tally:
    """What the batches so far have shown."""

    def __init__(
        self, request: TableRequest, identity: str, vectors: Iterable[str] = (), workspace: Workspace | None = None
    ) -> None:
        self._source, self.identity, self._workspace = request.source, identity, workspace
        self._others = {request.label_column, *request.exclude, *vectors}
        self.spelling = request.spelling
        self.names: Sequence[str] = ()
        self._rows = 0
        self._ids: list[Any] = []
        self._counted: CountedTexts | None = None
        self._words: set[str] = set()
        self._missing: set[str] = set()

    @property
    def features(self) -> list[str]:
        """Columns that are neither id nor label."""
        return [name for name in self.names if name not in (self.identity, *self._others) and not is_index(name)]

    def add(self, columns: dict[str, Any], rows: int) -> None:
        """Take some rows into account."""
        self._rows += rows
        if self.identity in columns:
            self._ids.append(_trimmed(columns[self.identity]))
            if self._workspace is not None and self._counted is None and self._rows > BATCH_ROWS:
                self._counted = CountedTexts(self._workspace)
            if self._counted is not None:
                self._counted.add(self._ids)
                self._ids = []
        for name in self.features:
            self._inspect(name, columns[name])

    def _inspect(self, name: str, column: Any) -> None:
        column = self._understood(name, column)
        if not _is_numeric(column.type):
            self._words.add(name)
            blank = column.null_count
            if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
                blank = blank or pc.any(pc.equal(pc.utf8_trim_whitespace(column), "")).as_py()
            if blank:
                self._missing.add(name)
            return
        if pa.types.is_floating(column.type) and pc.any(pc.is_inf(column)).as_py():
            raise FeatureNotFinite(self._source, "a value is infinite", "Correct it, or drop the row", column=name)
        nan = pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py()
        if column.null_count or nan:
            self._missing.add(name)

    def _understood(self, name: str, column: Any) -> Any:
        """A column as numbers where its owner says how they, or dates, are written, and they are."""
        kind, date = column.type, self.spelling.date(name)
        if pa.types.is_dictionary(kind):
            return self._understood(name, column.cast(kind.value_type))
        try:
            if date is not None:
                return pa.array(date.days(column), from_pandas=True)
            if not self.spelling.plain and pa.types.is_string(kind):
                return self.spelling.numbers(column)
        except (ValueUnreadable, TypeError):
            return column
        return column

    def restart(self) -> None:
        """The rows so far come again."""
        self._rows, self._ids, self._counted = 0, [], None

    def result(self) -> Survey:
        """All of it."""
        if not self._rows or not self.features:
            found = f"{self._rows} rows and {len(self.features)} feature columns"
            raise TableEmpty(self._source, found, "A table needs one of each")
        without, repeated = self._flaws_of_ids()
        words = tuple(name for name in self.features if name in self._words)
        missing = tuple(name for name in self.features if name in self._missing)
        return Survey(self._rows, len(self.features), words, missing, without, repeated)

    def _flaws_of_ids(self) -> tuple[int, int]:
        if self._counted is not None:
            return self._counted.flaws()
        if not self._ids:
            return 0, 0
        ids = pa.chunked_array(self._ids)
        counts = pc.value_counts(ids)
        times, blank = counts.field("counts"), pc.equal(counts.field("values"), "")
        without = pc.sum(times.filter(blank)).as_py() or 0
        again = times.filter(pc.and_(pc.invert(blank), pc.greater(times, 1)))
        return without, pc.sum(again).as_py() or 0


def _trimmed(column: Any) -> pa.Array:
    texts = pc.utf8_trim_whitespace(pc.fill_null(column.cast(pa.string()), ""))
    return pa.concat_arrays(texts.chunks) if isinstance(texts, pa.ChunkedArray) else texts


def _as_numbers(column: pa.Array) -> pa.Array:
    """A column of texts as numbers, if they all are."""
    if not pa.types.is_string(column.type):
        return column
    texts = pc.utf8_trim_whitespace(column)
    known = pc.if_else(pc.is_in(pc.utf8_lower(texts), pa.array(NO_VALUE)), pa.scalar(None, pa.string()), texts)
    try:
        return known.cast(pa.float64())
    except pa.ArrowInvalid:
        return column


def _is_numeric(kind: pa.DataType) -> bool:
    numbers = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_null, pa.types.is_decimal)
    return any(is_kind(kind) for is_kind in numbers)


def _columns(file: Any, features: Sequence[str], identity: str) -> dict[str, Any]:
    """The columns of a table that was read whole."""
    found = {} if identity == ROW_NUMBER else {identity: pa.array(file.texts(identity), pa.string())}
    if hasattr(file, "columns"):
        return found | {name: file.columns.column(name) for name in features}
    matrix = file.numbers(features, np.float64, missing=True)
    if issparse(matrix):  # what is not written is 0: no value is missing
        column = pa.array(np.zeros(1))
        return found | dict.fromkeys(features, column)
    return found | {name: pa.array(matrix[:, index]) for index, name in enumerate(features)}


def _batches(path: Path, kind: str, delimiter: str, tally: _Tally) -> Iterator[tuple[pa.RecordBatch, float]]:
    """Some rows after the other, and which share of the file has been read then."""
    if kind == "parquet":
        yield from _parquet(path, tally)
        return
    skipped, tally.names = csv_header(path, delimiter)
    refuse_absent_id(path, tally.identity, tally.names)
    texts = {tally.identity, *(name for name in tally.names if name not in tally.features)}
    texts |= {name for name in tally.names if tally.spelling.is_text(name)}
    while True:
        try:
            yield from _csv(path, skipped, delimiter, tally.names, texts)
            return
        except pa.ArrowInvalid as refusal:
            place = _COLUMN.search(str(refusal))
            if place is None:
                if "Empty CSV" in str(refusal):
                    return
                diagnose_csv(path, list(tally.names), (), delimiter)
                raise TableUnreadable(path, f"the file is not valid CSV ({refusal})", "Export it again") from refusal
            texts.add(tally.names[int(place[1])])
            tally.restart()


def _csv(
    path: Path, skipped: int, delimiter: str, names: Sequence[str], texts: set[str]
) -> Iterator[tuple[pa.RecordBatch, float]]:
    size = max(1, path.stat().st_size)
    with path.open("rb") as raw, decompressed(path, raw) as file:
        reader = pa.csv.open_csv(
            file,
            read_options=pa.csv.ReadOptions(column_names=names, skip_rows=skipped, block_size=BLOCK_BYTES),
            parse_options=pa.csv.ParseOptions(delimiter=delimiter),
            convert_options=pa.csv.ConvertOptions(
                column_types={name: pa.string() if name in texts else pa.float64() for name in names},
                strings_can_be_null=False,
            ),
        )
        while True:
            batch = guarded(path, lambda: next(reader, None))
            if batch is None:
                return
            yield batch, raw.tell() / size


def _parquet(path: Path, tally: _Tally) -> Iterator[tuple[pa.RecordBatch, float]]:
    try:
        file = guarded(path, lambda: pa.parquet.ParquetFile(path))
        tally.names = file.schema_arrow.names
        refuse_duplicates(path, tally.names)
        refuse_absent_id(path, tally.identity, tally.names)
        done = 0
        for batch in file.iter_batches(BATCH_ROWS):
            done += batch.num_rows
            yield batch, done / max(1, file.metadata.num_rows)
    except pa.ArrowException as damage:
        raise TableUnreadable(path, f"the file is damaged ({damage})", "Copy it again") from damage
