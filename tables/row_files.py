"""A table whose rows are mapped from files instead of being held in memory.

CSV and Parquet files are read once, batch by batch; DuckDB sorts the rows by identity within a bound of memory, on disk
where they are more; and the sorted rows lie in plain files that numpy maps: features as float32, identities as text of
one width, categories as numbers of a list. A later session, or another process, maps the same files. They hold what the
table holds, and so belong to the party's owner alone (mode 0600 in the party's state directory).
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from parley.tables.batches import Batches, open_batches, place_of
from parley.tables.errors import TableEmpty, TableError, TableUnreadable
from parley.tables.files import ArrowFile
from parley.tables.id_lists import sorted_id_digest
from parley.tables.identities import AlignmentStale, canonical
from parley.tables.loading import (
    INTEGER,
    PRINTABLE,
    ROW_NUMBER,
    IdDuplicated,
    IdMissing,
    Table,
    TableRequest,
    category_texts,
    chosen_columns,
    load_table,
    normal,
    refuse_absent_id,
    standardised,
)
from parley.tables.places import Place
from parley.tables.rows import pieces
from parley.tables.spelling import PLAIN
from parley.tables.texts import from_arrow

DIRECTORY = "rows"
FEATURES, IDS, CODES, FACTS = "features.f32", "ids.u4", "codes.i4", "facts.json"
_LONGEST_NUMBER = 37
_SORTING_SHARE = 0.4
"""Of the memory that a party may use: the rest is for the interpreter, libraries and what a run computes."""


class IdTooLong(TableError):
    """An identity is a number of more digits than can be sorted."""


@dataclass(frozen=True)
class Workspace:
    """Where a party keeps rows, and how much memory it may use for them."""

    state: Path
    memory: int
    """Bytes."""


class CodedTexts:
    """A column of categories as numbers of a list: what an array of texts would be, a few rows at a time."""

    def __init__(self, codes: NDArray[np.int32], names: Sequence[str]) -> None:
        self._codes = codes
        self._names = np.array([*names, None], dtype=object)  # the last, so that −1 is no value

    def __len__(self) -> int:
        return len(self._codes)

    def __getitem__(self, rows: Any) -> Any:
        return self._names[self._codes[rows]]


@dataclass(frozen=True)
class RowFiles:
    """The files of one table."""

    directory: Path
    id_digest: str
    """`tables.loading.id_digest` of the rows."""
    numeric: bool
    """Whether identities are numbers, and sorted as such."""
    memory: int = field(compare=False)

    def places(self, ids: NDArray[np.str_], wanted: Sequence[str]) -> NDArray[np.int64] | None:
        """Where identities stand, found by bisection; None if one is not there."""
        places = np.empty(len(wanted), dtype=np.int64)
        for index, identity in enumerate(wanted):
            row = _bisect(ids, identity, numeric=self.numeric)
            if row is None:
                return None
            places[index] = row
        return places

    def derived(self, name: str, rows: int, width: int, make: Callable[[slice], NDArray[Any]]) -> NDArray[np.float32]:
        """Rows made from this table's, mapped from a file beside them that is made once."""
        path = self.directory / f"{name}.f32"
        if not path.exists():
            scratch = path.with_suffix(f".{os.getpid()}.partial")
            with _private(scratch) as file:
                for piece in pieces(rows):
                    file.write(np.ascontiguousarray(make(piece), dtype="<f4").tobytes())
            scratch.replace(path)
        mapped: NDArray[np.float32] = _mapped(path, "<f4", (rows, width))
        return mapped


def load_mapped(request: TableRequest, workspace: Workspace) -> Table:
    """Load features, sorted by identity, without holding them; formats other than CSV and Parquet are held."""
    place = place_of(request.source, request.format)
    if place is None:
        return load_table(request)
    batches = open_batches(place, request.format, request.delimiter, request.spelling)
    identity = request.id_column or "id"
    refuse_absent_id(place, identity, batches.names)
    header = ArrowFile(place, batches.names, 0, pa.table({}), None)
    chosen = chosen_columns(request, header, identity)
    if not chosen:
        raise TableEmpty(place, "there are no feature columns", "A table needs one")
    categorical = [column for column in chosen if column in request.categorical]
    numeric = [column for column in chosen if column not in request.categorical]
    directory = workspace.state / DIRECTORY / _key(request, batches, numeric, categorical)
    if not (directory / FACTS).exists():
        _Build(request, batches, identity, numeric, categorical, workspace).into(directory)
    table = _opened(directory, request, numeric, categorical, workspace)
    return standardised(table, request.scaling) if request.standardise else table


def _key(request: TableRequest, batches: Batches, numeric: Sequence[str], categorical: Sequence[str]) -> str:
    only = request.only
    chosen = None if only is None else [hashlib.sha256("\0".join(only.ids).encode()).hexdigest(), only.duplicates]
    facts = [batches.files.digest, request.id_column, numeric, categorical, request.missing, request.delimiter, chosen]
    spelled = [] if request.spelling == PLAIN else [asdict(request.spelling)]
    return hashlib.sha256(json.dumps([*facts, *spelled]).encode()).hexdigest()[:32]


def connected(file: Path, workspace: Workspace, scratch: Path) -> Any:
    """A database of DuckDB's in a file, within a party's memory; it spills into `scratch`."""
    import duckdb  # slow to import, and only tables that outgrow memory need it

    database = duckdb.connect(str(file), config=_settings(workspace, scratch))
    # After two seconds it would draw a bar on the standard output, where it takes Python for interactive.
    database.execute("SET enable_progress_bar = false")
    return database


def _settings(workspace: Workspace, scratch: Path) -> dict[str, Any]:
    return {
        "memory_limit": f"{max(64, int(workspace.memory * _SORTING_SHARE) >> 20)}MiB",
        "temp_directory": str(scratch / "spill"),
        "threads": 1,
        "preserve_insertion_order": False,
        # What is freed goes back to the system: by default half a gigabyte of it may stay.
        "allocator_flush_threshold": "16MiB",
        "allocator_bulk_deallocation_flush_threshold": "16MiB",
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }


class CountedTexts:
    """Texts that are counted on disk."""

    def __init__(self, workspace: Workspace) -> None:
        parent = workspace.state / DIRECTORY
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._directory = tempfile.TemporaryDirectory(prefix=".partial-", dir=parent)
        scratch = Path(self._directory.name)
        self._database = connected(scratch / "count.db", workspace, scratch)
        self._database.execute("CREATE TABLE texts (text VARCHAR)")

    def add(self, texts: Sequence[pa.Array]) -> None:
        """Take some into account."""
        self._database.register("came", pa.table({"text": pa.chunked_array(list(texts))}))
        self._database.execute("INSERT INTO texts SELECT text FROM came")

    def flaws(self) -> tuple[int, int]:
        """How many are empty, and how many another one equals."""
        found = self._database.execute(
            "SELECT coalesce(sum(times) FILTER (text = ''), 0), "
            "coalesce(sum(times) FILTER (text <> '' AND times > 1), 0) "
            "FROM (SELECT text, count(*) AS times FROM texts GROUP BY text)"
        ).fetchall()[0]
        self._database.close()
        self._directory.cleanup()
        return int(found[0]), int(found[1])


@dataclass
class _Build:
    """One reading of the files into rows."""

    request: TableRequest
    batches: Batches
    identity: str
    numeric: list[str]
    categorical: list[str]
    workspace: Workspace
    _codes: dict[str, dict[str, int]] = field(default_factory=dict)
    _whole_numbers: bool = True
    _longest: int = 1
    _rows: int = 0
    _refusal: TableError | None = None

    @property
    def _source(self) -> Place:
        return self.batches.files.place

    def into(self, directory: Path) -> None:
        """Sort the rows into files, whole or not at all."""
        directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".partial-", dir=directory.parent))  # of mode 0700
        try:
            self._sort(scratch)
            if directory.exists():
                shutil.rmtree(directory)
            scratch.replace(directory)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
            give_back()

    def _sort(self, scratch: Path) -> None:
        import duckdb

        try:
            with connected(scratch / "sort.db", self.workspace, scratch) as database:
                count, digest = self._sorted(database, scratch)
        except duckdb.Error as failure:
            self._explain(failure)
        for left in ("sort.db", "sort.db.wal"):
            (scratch / left).unlink(missing_ok=True)
        shutil.rmtree(scratch / "spill", ignore_errors=True)
        names = {column: list(codes) for column, codes in self._codes.items()}
        facts = {
            "rows": count, "width": len(self.numeric), "longest": self._longest, "numeric": self._whole_numbers,
            "id_digest": digest, "categories": {column: names.get(column, []) for column in self.categorical},
        }  # fmt: skip
        with _private(scratch / FACTS) as file:
            file.write(json.dumps(facts, ensure_ascii=False).encode())

    def _sorted(self, database: Any, scratch: Path) -> tuple[int, str]:
        """Take all rows in, and write them in order; how many there are, and the digest of their ids."""
        database.register("came", pa.RecordBatchReader.from_batches(self._schema, self._records()))
        database.execute("CREATE TABLE unsorted AS SELECT * FROM came")
        if not self._rows:
            raise TableEmpty(self._source, "there are no rows", "A table needs at least one")
        self._choose(database)
        count = database.execute("SELECT count(*) FROM unsorted").fetchall()[0][0]
        texts = (batch.column(0) for batch in self._ordered(database, "id", "id"))
        digest = sorted_id_digest(count, (from_arrow(some, self._longest) for some in texts))
        self._write(database, scratch)
        return count, digest

    def _explain(self, failure: Exception) -> NoReturn:
        """What DuckDB says of an error in `_records` is a text of it: raise the error itself."""
        if self._refusal is not None:
            raise self._refusal from None
        cause = " ".join(str(failure).split())[:300]
        raise TableUnreadable(
            self._source, f"its rows cannot be sorted ({cause})", "Free disk space in `state`, or raise `memory`"
        ) from None

    def _records(self) -> Iterator[pa.RecordBatch]:
        texts = {self.identity, *self.categorical} - {ROW_NUMBER}
        try:
            for batch in self.batches.read(texts, [*self.numeric, *self.categorical]):
                if batch.num_rows:
                    yield self._encoded(batch)
        except TableError as refusal:
            self._refusal = refusal
            raise

    @property
    def _words(self) -> int:
        """Words of four bytes in a row."""
        return len(self.numeric) + len(self.categorical)

    @property
    def _schema(self) -> pa.Schema:
        return pa.schema([("id", pa.string()), ("row", pa.int64()), ("body", pa.binary(4 * self._words))])

    def _encoded(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Identity, place and one string of bytes for each row: float32 features, then numbers of categories."""
        count = batch.num_rows
        table, spelling = pa.Table.from_batches([batch]), self.request.spelling
        file = ArrowFile(self._source, batch.schema.names, count, table, None, self._rows, spelling)
        ids = self._ids(file, count)
        body = np.empty((count, self._words), dtype="<u4")
        features = file.numbers(self.numeric, np.float32, missing=self.request.missing)
        body[:, : len(self.numeric)] = np.ascontiguousarray(features, dtype="<f4").view("<u4")
        for index, column in enumerate(self.categorical, len(self.numeric)):
            body[:, index] = self._coded(column, category_texts(file, column)).view("<u4")
        rows = pa.array(np.arange(self._rows, self._rows + count))
        self._rows += count
        stored = pa.Array.from_buffers(pa.binary(4 * self._words), count, [None, pa.py_buffer(body)])
        return pa.record_batch([ids, rows, stored], schema=self._schema)

    def _ids(self, file: ArrowFile, count: int) -> pa.Array:
        if self.identity == ROW_NUMBER:
            ids = pc.cast(pa.array(np.arange(self._rows, self._rows + count)), pa.string())
        else:
            ids = self._spelled(file)
        blank = pc.equal(ids, "")
        if self.request.only is None and pc.any(blank).as_py():
            row = pc.index(blank, True).as_py()
            raise IdMissing(
                self._source, "a row has no identity", "Give every row one", column=self.identity, place=file.place(row)
            )
        self._longest = max(self._longest, pc.max(pc.utf8_length(ids)).as_py() or 1)
        if self._whole_numbers:
            self._whole_numbers = bool(pc.all(pc.match_substring_regex(ids, f"^(?:{INTEGER.pattern})$")).as_py())
        return ids

    def _spelled(self, file: ArrowFile) -> pa.Array:
        """Identities in one spelling: by Arrow where nothing can be spelled in two ways, else one by one."""
        column = file.columns.column(self.identity).combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            column = pa.concat_arrays(column.chunks)
        if pa.types.is_integer(column.type) and not column.null_count:
            return pc.cast(column, pa.string())
        plain = self.request.only is None and pa.types.is_string(column.type) and not column.null_count
        if plain and pc.all(pc.match_substring_regex(column, PRINTABLE)).as_py():
            return column
        spell = normal if self.request.only is None else canonical
        return pa.array([spell(text) for text in file.texts(self.identity)], pa.string())

    def _coded(self, column: str, texts: NDArray[np.object_]) -> NDArray[np.int32]:
        known = self._codes.setdefault(column, {})
        return np.array([-1 if text is None else known.setdefault(text, len(known)) for text in texts], dtype="<i4")

    def _choose(self, database: Any) -> None:
        """Keep the rows of an alignment."""
        only = self.request.only
        if only is None:
            return
        database.execute("DELETE FROM unsorted WHERE id = ''")
        if only.duplicates == "drop":
            keep = "SELECT id, min(row) AS row FROM unsorted GROUP BY id HAVING count(*) = 1"
        else:
            keep = "SELECT id, min(row) AS row FROM unsorted GROUP BY id"
        database.register("named", pa.table({"id": pa.array(only.ids, pa.string())}))
        database.execute(
            f"CREATE TABLE kept AS SELECT unsorted.* FROM unsorted JOIN ({keep}) AS one USING (id, row) "  # noqa: S608
            "SEMI JOIN named USING (id)"
        )
        database.execute("DROP TABLE unsorted")
        database.execute("ALTER TABLE kept RENAME TO unsorted")
        found = database.execute("SELECT count(*) FROM unsorted").fetchall()[0][0]
        if found < len(only.ids):
            raise AlignmentStale(
                self._source,
                f"{len(only.ids) - found} of {len(only.ids)} aligned rows are no longer in the table",
                "Put them back, or align the tables again under a new name",
                column=self.identity,
            )
        self._whole_numbers = all(INTEGER.fullmatch(identity) for identity in only.ids)

    def _ordered(self, database: Any, columns: str, key: str) -> Iterator[pa.RecordBatch]:
        ordered = database.sql(f"SELECT {columns} FROM unsorted ORDER BY {key}")  # noqa: S608 (constants)
        yield from ordered.to_arrow_reader(1 << 16)

    def _write(self, database: Any, scratch: Path) -> None:
        key = "id"
        if self._whole_numbers:
            if self._longest > _LONGEST_NUMBER:
                raise IdTooLong(
                    self._source,
                    f"an identity is a number of {self._longest} digits",
                    f"Shorten it to {_LONGEST_NUMBER}, or put a letter before all",
                    column=self.identity,
                )
            key = "CAST(id AS HUGEINT)"
        before: NDArray[np.str_] = np.empty(0, dtype=f"<U{self._longest}")
        width = len(self.numeric)
        with (
            _private(scratch / FEATURES) as features,
            _private(scratch / IDS) as ids,
            _private(scratch / CODES) as codes,
        ):
            for batch in self._ordered(database, "id, row, body", key):
                texts = from_arrow(batch.column(0), self._longest)
                self._refuse_repeated(np.append(before, texts), batch.column(1))
                before = texts[-1:]
                ids.write(texts.tobytes())
                body = batch.column(2).cast(pa.binary(4 * self._words))
                words = np.frombuffer(body.buffers()[1], "<u4", len(texts) * self._words, 4 * body.offset * self._words)
                words = words.reshape(len(texts), self._words)
                features.write(np.ascontiguousarray(words[:, :width]).tobytes())
                codes.write(np.ascontiguousarray(words[:, width:]).tobytes())

    def _refuse_repeated(self, texts: NDArray[np.str_], rows: pa.Array) -> None:
        """`rows` are the places of the last texts; one before them may be that of an earlier batch."""
        again = np.flatnonzero(texts[1:] == texts[:-1]) + 1
        if again.size:
            raise IdDuplicated(
                self._source,
                f"identity {str(texts[again[0]])!r} appears twice",
                "Keep one row per identity",
                column=self.identity,
                place=f"row {rows[int(again[0]) - len(texts)].as_py()}",
            )


def _opened(
    directory: Path, request: TableRequest, numeric: list[str], categorical: list[str], workspace: Workspace
) -> Table:
    facts = json.loads((directory / FACTS).read_text("utf-8"))
    rows, longest = facts["rows"], facts["longest"]
    features = _mapped(directory / FEATURES, "<f4", (rows, len(numeric)))
    ids: Any = _mapped(directory / IDS, f"<U{longest}", (rows,))
    codes = _mapped(directory / CODES, "<i4", (rows, len(categorical)))
    texts: dict[str, Any] = {
        column: CodedTexts(codes[:, index], facts["categories"][column]) for index, column in enumerate(categorical)
    }
    files = RowFiles(directory, facts["id_digest"], facts["numeric"], workspace.memory)
    return Table(ids, features, numeric, request.name or request.source.name, texts=texts, files=files)


def _mapped(path: Path, kind: str, shape: tuple[int, ...]) -> Any:
    if not all(shape):
        return np.empty(shape, dtype=kind)
    return np.memmap(path, dtype=kind, mode="r", shape=shape)


def _private(path: Path) -> Any:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")


def give_back() -> None:
    """Give back to the system what Arrow keeps of the memory that batches were read into."""
    pa.default_memory_pool().release_unused()


def _bisect(ids: NDArray[np.str_], identity: str, *, numeric: bool) -> int | None:
    if numeric and not INTEGER.fullmatch(identity):
        return None
    key: Callable[[Any], Any] = (lambda text: int(text)) if numeric else str
    wanted, low, high = key(identity), 0, len(ids)
    while low < high:
        middle = (low + high) // 2
        if key(ids[middle]) < wanted:
            low = middle + 1
        else:
            high = middle
    return low if low < len(ids) and str(ids[low]) == identity else None
