"""A table: features or labels under stable row identities, in an order that every organisation derives alike.

Rows are sorted by identity after loading, so two organisations with the same identities have the same row i without
telling each other anything but a digest. Features become C-contiguous float32 or float64 (or CSR for svmlight);
anything that would train silently wrong (missing or duplicate identities, NaN, text, ragged lines) is refused by name.
"""

import functools
import hashlib
import re
import unicodedata
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from scipy.sparse import issparse

from parley.tables.batches import open_batches, open_place, place_of
from parley.tables.databases import SqlSource, open_sql
from parley.tables.errors import ColumnMissing, TableEmpty, TableError
from parley.tables.files import (
    ArrowFile,
    SvmlightFile,
    TableFile,
    Texts,
    as_text,
    csv_header,
    decoded,
    is_index,
    open_csv,
    open_npz,
    open_parquet,
    open_svmlight,
    table_format,
)
from parley.tables.id_lists import sorted_id_digest
from parley.tables.identities import ChosenRows, RowChoice
from parley.tables.places import Place
from parley.tables.rows import LocalRows, pieces
from parley.tables.spelling import PLAIN, Spelling
from parley.tables.texts import from_arrow, in_order

ROW_NUMBER = "#row"
"""As `id_column`: identify rows by their position in the file, from 0."""

UNLABELLED = (
    "Write one, or `unlabelled: drop` on the coordinator's labels and let `parley align` find the rows that have one"
)
INTEGER = re.compile(r"0|-?[1-9][0-9]*")
PRINTABLE = r"^[\x21-\x7e]+$"
"""What an id of visible ASCII fits, which can be spelled in one way only."""
_SHORT_NUMBER = 18
"""Characters of a number that fits 64 bits."""


class IdMissing(TableError):
    """A row has no identity."""


class IdDuplicated(TableError):
    """Two rows have the same identity."""


class LabelInvalid(TableError):
    """A label is missing, not a known class, or not a number."""


class CannotStandardise(TableError):
    """A sparse table cannot be standardised, or the saved figures belong to other columns."""


class ColumnNotText(TableError):
    """A column cannot hold categories."""


class ConstantColumn(UserWarning):
    """A column has one value only: it carries nothing and becomes 0 when standardised."""


@dataclass(frozen=True, eq=False)
class Scaling:
    """What standardising subtracted and divided by."""

    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    """Population standard deviation; 1 for a constant column."""


@dataclass(frozen=True, eq=False)
class Table:
    """Features of one organisation, sorted by identity."""

    ids: NDArray[np.str_]
    """Identity of each row."""
    features: Any
    """rows × columns: a C-contiguous array, or a CSR matrix."""
    columns: list[str]
    """Name of each feature."""
    name: str
    """What messages call this table."""
    scaling: Scaling | None = None
    """Set once the features are standardised."""
    texts: Mapping[str, NDArray[np.object_]] = field(default_factory=dict)
    """Categorical columns that wait to be encoded: texts, None where there is no value."""
    fitted: Any = None
    """How the features were preprocessed (`parley.tables.preprocessing.Fitted`), if they were."""
    missing: Mapping[str, int] = field(default_factory=dict)
    """Values that preprocessing has filled in, by column."""
    files: Any = None
    """Where its rows are mapped from (`parley.tables.row_files.RowFiles`), if they are not in memory."""

    def __len__(self) -> int:
        return len(self.ids)

    @functools.cached_property
    def row_digest(self) -> str:
        """`id_digest` of the rows; mapped ones know it."""
        return self.files.id_digest if self.files is not None else id_digest(self.ids)


@dataclass(frozen=True, eq=False)
class Labels:
    """Labels of one organisation, sorted by identity."""

    ids: NDArray[np.str_]
    """Identity of each row."""
    values: NDArray[np.int64] | NDArray[np.float64]
    """Class indices, or real targets."""
    classes: tuple[str, ...]
    """What each class index was called in the file; empty for real targets."""

    def __len__(self) -> int:
        return len(self.ids)

    @functools.cached_property
    def row_digest(self) -> str:
        """`id_digest` of the rows."""
        return id_digest(self.ids)


@dataclass(frozen=True)
class TableRequest:
    """Which features to load, and how: CSV, Parquet, NPZ, svmlight (CSV and svmlight also compressed), or a query."""

    path: Path | str | SqlSource | Place
    format: str | None = None
    """`csv`, `parquet`, `npz` or `svmlight`; None tells it from the file's name."""
    id_column: str | None = None
    """Column with the identities. None takes `id` (NPZ: `ids`; svmlight: the remark behind #), and the row number where
    NPZ or svmlight has none."""
    columns: Sequence[str] | None = None
    """Features, in this order; None takes all but the identity and `label_column`."""
    label_column: str | None = None
    """A column that is no feature."""
    dtype: type[np.floating[Any]] = np.float32
    """Of the features."""
    standardise: bool = False
    """Bring each column to mean 0 and standard deviation 1."""
    scaling: Scaling | None = None
    """Standardise with the figures of another table; None takes this one's own."""
    n_features: int | None = None
    """Columns of an svmlight file; None takes the largest index in it."""
    zero_based: bool = False
    """Whether svmlight counts columns from 0."""
    dense: bool = False
    """Make an array of a sparse file."""
    delimiter: str = ","
    """Between the fields of a CSV line."""
    name: str | None = None
    """What messages call the table; None takes the file's name."""
    categorical: Sequence[str] = ()
    """Columns that are kept apart as texts, for `tables.preprocessing`."""
    missing: bool = False
    """Let values be NaN, for `tables.preprocessing`."""
    only: RowChoice | None = None
    """Keep the rows of an alignment, under their canonical ids."""
    spelling: Spelling = PLAIN
    """How numbers and dates are written."""
    exclude: Sequence[str] = ()
    """Columns that are no features."""

    @property
    def source(self) -> Path | SqlSource | Place:
        """The file, the files or the query."""
        return self.path if isinstance(self.path, SqlSource | Place) else Path(self.path)


def load_table(request: TableRequest) -> Table:
    """Load features, sorted by identity."""
    source, categorical = request.source, request.categorical
    _refuse_left_out(request)
    file, id_column = open_source(request)
    chosen = chosen_columns(request, file, id_column)
    if not file.rows or not chosen:
        raise TableEmpty(source, f"{file.rows} rows and {len(chosen)} feature columns", "A table needs one of each")
    ids, order = _sorted_ids(file, id_column)
    encoded = [column for column in chosen if column in categorical]
    if encoded and isinstance(file, SvmlightFile):
        raise ColumnNotText(
            source, "svmlight holds numbers only", "Leave `preprocess.categorical` out", column=encoded[0]
        )
    texts = {column: category_texts(file, column)[order] for column in encoded}
    chosen = [column for column in chosen if column not in categorical]
    features = file.numbers(chosen, request.dtype, missing=request.missing)[order]
    if issparse(features) and request.dense:
        features = features.toarray()
    features = features if issparse(features) else np.ascontiguousarray(features, dtype=request.dtype)
    table = Table(ids, features, chosen, request.name or source.name, texts=texts)
    return standardised(table, request.scaling) if request.standardise else table


def load_labels(
    path: Path | str | SqlSource | Place,
    column: str = "label",
    format: str | None = None,  # noqa: A002
    id_column: str | None = None,
    *,
    kind: Literal["classes", "real"] = "classes",
    classes: Sequence[str] | None = None,
    delimiter: str = ",",
    only: RowChoice | None = None,
    spelling: Spelling = PLAIN,
    unlabelled: Literal["refuse", "drop"] = "refuse",
    unit: float = 1.0,
) -> Labels:
    """Load labels and their identities from the same formats as features.

    `classes`: indices 0 … C − 1. Names and integers are numbered in sorted order (so 0 … C − 1 stay as they are and
    ±1 become 1 and 0), unless `classes` fixes the list, as it must where a file may lack a class. `real`: floats.
    `unlabelled`: rows without a label are refused, or are as if they were not there. `unit`: real labels are so many.
    """
    request = _labels_request(path, format, id_column, column, delimiter, only)
    file, id_column = open_source(request)
    _refuse_absent(file, () if hasattr(file, "labels") else [column])
    if unlabelled == "drop":
        file = _labelled(file, id_column, column)
    if not file.rows:
        raise TableEmpty(request.source, "there are no labels", "Write at least one row")
    ids, order = _sorted_ids(file, id_column)
    if kind == "real":
        return Labels(ids, _real(file, column, spelling)[order] / unit, ())
    known, values = _classes(file, column, classes)
    return Labels(ids, values[order], known)


def load_ids(
    path: Path | str | SqlSource | Place,
    format: str | None = None,  # noqa: A002
    id_column: str | None = None,
    *,
    column: str | None = None,
    delimiter: str = ",",
    unlabelled: Literal["keep", "drop"] = "keep",
) -> Iterator[Texts]:
    """The ids of all rows as the file spells them, None where there is none, some rows at a time.

    `column` holds labels, if any; rows without one can be dropped.
    """
    request = _labels_request(path, format, id_column, column, delimiter)
    place, identity = place_of(request.source, format), id_column or "id"
    if place is None or identity == ROW_NUMBER:
        file, identity = open_source(request)
        if unlabelled == "drop" and column is not None:
            _refuse_absent(file, () if hasattr(file, "labels") else [column])
            file = _labelled(file, identity, column)
        yield _id_texts(file, identity)
        return
    batches = open_batches(place, format, delimiter)
    refuse_absent_id(place, identity, batches.names)
    named = {identity} if unlabelled == "keep" or column is None else {identity, column}
    for batch in batches.read(named, ()):
        file = ArrowFile(place, batches.names, batch.num_rows, pa.Table.from_batches([batch]), None)
        _refuse_absent(file, named)
        yield (_labelled(file, identity, column) if len(named) > 1 and column is not None else file).texts(identity)


def _labelled(file: TableFile, id_column: str, column: str) -> TableFile:
    """The rows that have a label."""
    kept = [row for row, text in enumerate(file.texts(column)) if (text or "").strip() not in ("", "nan", "NaN")]
    ids = _id_texts(file, id_column)
    return ChosenRows(file, id_column, [ids[row] or "" for row in kept], np.array(kept, dtype=np.intp))


def _labels_request(
    path: Path | str | SqlSource | Place,
    given: str | None,
    id_column: str | None,
    column: str | None,
    delimiter: str,
    only: RowChoice | None = None,
) -> TableRequest:
    """No feature at all: what is wanted are identities, and labels if there is a column of them."""
    return TableRequest(path, given, id_column, (), column, zero_based=True, delimiter=delimiter, only=only)


def id_digest(ids: NDArray[np.str_] | Iterable[str]) -> str:
    """Return the SHA-256 of a set of identities: equal digests mean aligned rows.

    Identities are sorted first, and each carries its length, so no two sets are written alike.
    """
    ordered = in_order(ids) if isinstance(ids, np.ndarray) else sorted(ids)
    return sorted_id_digest(len(ordered), (ordered[rows] for rows in pieces(len(ordered))))


def standardised(table: Table, scaling: Scaling | None = None) -> Table:
    """Return the table with each column at mean 0 and population standard deviation 1 (or under `scaling`)."""
    if issparse(table.features):
        raise CannotStandardise(
            Path(table.name),
            "subtracting a mean would fill a sparse table",
            "Leave `standardise` out, or write `preprocess: {scale: max_abs}`",
        )
    features = LocalRows(table.features)
    if scaling is None:
        scaling = _own_scaling(table, features)
    elif scaling.mean.shape != (features.shape[1],):
        raise CannotStandardise(
            Path(table.name),
            f"figures for {len(scaling.mean)} columns, but there are {features.shape[1]}",
            "Use the scaling of the same columns",
        )
    mean, std = scaling.mean, scaling.std

    def scaled(rows: slice) -> NDArray[Any]:
        return ((features[rows] - mean) / std).astype(features.dtype)

    if table.files is not None:
        name = "standardised-" + hashlib.sha256(mean.tobytes() + std.tobytes()).hexdigest()[:16]
        return replace(table, features=table.files.derived(name, *features.shape, scaled), scaling=scaling)
    return replace(table, features=np.ascontiguousarray(scaled(slice(None))), scaling=scaling)


def _own_scaling(table: Table, features: LocalRows) -> Scaling:
    rows = len(features)
    mean = features.fold(lambda shard: shard.sum(axis=0, dtype=np.float64)) / rows
    squares = features.fold(lambda shard: np.square(shard - mean).sum(axis=0))
    low = np.min([shard.min(axis=0) for shard in features.shards()], axis=0)
    high = np.max([shard.max(axis=0) for shard in features.shards()], axis=0)
    constant = low == high  # exact, where a rounded deviation may not be 0
    if constant.any():
        named = [name for name, flat in zip(table.columns, constant, strict=True) if flat]
        warnings.warn(f"{table.name}: constant columns become 0: {named[:10]}", ConstantColumn, stacklevel=3)
    # A constant column's own value, not its rounded mean, so that it becomes exactly 0.
    return Scaling(np.where(constant, low, mean), np.where(constant, 1.0, np.sqrt(squares / rows)))


def open_source(request: TableRequest) -> tuple[TableFile, str]:
    """Open the source, settle which column identifies its rows, and keep the rows that are wanted."""
    file, id_column = _open_all(request)
    if request.only is not None:
        file = request.only.of(file, id_column, _id_texts(file, id_column))
    return file, id_column


def _open_all(request: TableRequest) -> tuple[TableFile, str]:
    source, columns = request.source, request.columns
    identity = request.id_column or "id"
    texts = {name for name in (identity, request.label_column) if name is not None} - set(columns or ())
    texts |= {name for name in request.categorical if columns is None or name in columns}
    file: TableFile
    if isinstance(source, SqlSource):
        file = replace(open_sql(source, texts, columns), spelling=request.spelling)
        refuse_absent_id(source, identity, file.names)
        return file, identity
    if isinstance(source, Place):
        file = open_place(source, request.format, request.delimiter, texts, columns, request.spelling, request.exclude)
        refuse_absent_id(source, identity, file.names)
        return file, identity
    kind = table_format(source, request.format)
    if kind in ("npz", "svmlight") and request.spelling.dates:
        date = request.spelling.dates[0].column
        raise ColumnNotText(source, f"{kind} holds no dates", "Leave `preprocess.dates` out", column=date)
    if kind == "npz":
        npz = open_npz(source)
        return npz, request.id_column or ("ids" if "ids" in npz.vectors else ROW_NUMBER)
    if kind == "svmlight":
        svm = open_svmlight(source, request.n_features, request.zero_based)
        return svm, request.id_column or ("id" if any(svm.identities) else ROW_NUMBER)
    if kind == "csv":
        names = csv_header(source, request.delimiter)[1]
        refuse_absent_id(source, identity, names)  # before a word is taken for a feature
        wanted = columns if columns is not None or not request.exclude else set(names) - set(request.exclude)
        file = open_csv(source, texts, wanted, request.delimiter, request.spelling)
    else:
        file = replace(open_parquet(source, texts, columns), spelling=request.spelling)
    refuse_absent_id(source, identity, file.names)
    return file, identity


def refuse_absent_id(source: Path | SqlSource | Place, identity: str, names: Sequence[str]) -> None:
    """Refuse a table without the column that should identify its rows."""
    if identity == ROW_NUMBER or identity in names:
        return
    raise ColumnMissing(
        source,
        f"there is no such column to identify rows by, among {list(names[:10])}",
        f'Name the right one as `id`, or write `id: "{ROW_NUMBER}"` if every organisation has the same row order',
        column=identity,
    )


def chosen_columns(request: TableRequest, file: TableFile, id_column: str) -> list[str]:
    """The features, categories among them; a name that the file does not have is refused."""
    if request.columns is not None:
        chosen = list(request.columns)
        _refuse_absent(file, chosen)
        _refuse_left_out(request)
        return chosen
    not_features = {id_column, request.label_column, *(getattr(file, "vectors", ()))} - set(request.categorical)
    left_out = {name for name in file.names if is_index(name) and name not in request.categorical} | {*request.exclude}
    chosen = [name for name in file.names if name not in not_features and name not in left_out]
    _refuse_absent(file, [*request.categorical, *(date.column for date in request.spelling.dates), *request.exclude])
    return chosen


def _refuse_left_out(request: TableRequest) -> None:
    left_out = next((name for name in request.columns or () if name in request.exclude), None)
    if left_out is not None:
        problem = "the table's owner leaves this column out (`exclude`)"
        raise ColumnMissing(request.source, problem, "Choose others in the run's spec", column=left_out)


def _refuse_absent(file: TableFile, names: Iterable[str]) -> None:
    present = set(file.names)
    for name in names:
        if name not in present:
            raise ColumnMissing(
                file.path, f"there is no such column, among {file.names[:10]}", "Correct the name", column=name
            )


def category_texts(file: TableFile, column: str) -> NDArray[np.object_]:
    """A column's categories, one spelling each; a blank is no value (but "NA" is one: it may mean Namibia)."""
    texts = [normal(text) or None for text in file.texts(column)]
    return np.array([None if text == "nan" else text for text in texts], dtype=object)


def _sorted_ids(file: TableFile, id_column: str) -> tuple[NDArray[np.str_], NDArray[np.intp]]:
    """Return the sorted identities and the order that sorts the rows: by number if all are integers, else by text."""
    found = _sorted_at_once(file, id_column)
    if found is not None:
        return found
    ids = [normal(text) for text in _id_texts(file, id_column)]
    if "" in ids:
        raise IdMissing(
            file.path, "a row has no identity", "Give every row one", column=id_column, place=file.place(ids.index(""))
        )
    repeated = next((identity for identity, times in Counter(ids).items() if times > 1), None)
    if repeated is not None:
        second = ids.index(repeated, ids.index(repeated) + 1)
        raise IdDuplicated(
            file.path,
            f"identity {repeated!r} appears twice",
            "Keep one row per identity",
            column=id_column,
            place=file.place(second),
        )
    numeric = all(INTEGER.fullmatch(identity) for identity in ids)
    keys: list[Any] = [int(identity) for identity in ids] if numeric else ids
    order = np.array(sorted(range(len(ids)), key=keys.__getitem__), dtype=np.intp)
    return np.array(ids)[order], order


def _sorted_at_once(file: TableFile, id_column: str) -> tuple[NDArray[np.str_], NDArray[np.intp]] | None:
    """The same where Arrow holds the ids, spelled in one way: no text is made for each of millions of rows.

    None where an id is missing, repeated, or may be spelled in two ways: these are looked at one by one.
    """
    if not isinstance(file, ArrowFile) or not file.rows:
        return None
    keys = pa.chunked_array([np.arange(file.rows)]) if id_column == ROW_NUMBER else file.columns.column(id_column)
    if keys.null_count:
        return None
    if pa.types.is_string(keys.type) or pa.types.is_large_string(keys.type):
        if not pc.all(pc.match_substring_regex(keys, PRINTABLE)).as_py():
            return None
        if pc.all(pc.match_substring_regex(keys, f"^(?:{INTEGER.pattern})$")).as_py():
            if pc.max(pc.binary_length(keys)).as_py() > _SHORT_NUMBER:
                return None
            keys = keys.cast(pa.int64())
    elif not pa.types.is_integer(keys.type):
        return None
    if pa.types.is_integer(keys.type):
        numbers = keys.to_numpy()
        order = np.argsort(numbers, kind="stable")
        if (numbers[order[1:]] == numbers[order[:-1]]).any():
            return None
        return _fixed_width(pa.array(numbers[order]).cast(pa.string())), order
    texts = _fixed_width(pa.concat_arrays(keys.cast(pa.large_string()).chunks))
    order = np.argsort(texts, kind="stable")
    return None if (texts[order[1:]] == texts[order[:-1]]).any() else (texts[order], order)


def _fixed_width(texts: pa.Array) -> NDArray[np.str_]:
    return from_arrow(texts, pc.max(pc.utf8_length(texts)).as_py())


def _id_texts(file: TableFile, id_column: str) -> Texts:
    if id_column == ROW_NUMBER and not isinstance(file, ChosenRows):  # which knows the numbers of its rows
        return [str(row) for row in range(file.rows)]
    return file.texts(id_column)


def normal(text: str | None) -> str:
    """One spelling per identity: no surrounding blanks, composed accents."""
    stripped = (text or "").strip()
    return stripped if stripped.isascii() else unicodedata.normalize("NFC", stripped)


def _real(file: TableFile, column: str, spelling: Spelling) -> NDArray[np.float64]:
    texts = [(text or "").strip() for text in file.texts(column)]
    read = _number if spelling.plain else spelling.number
    values = np.array([read(text) for text in texts], dtype=np.float64)
    if not np.isfinite(values).all():
        row = int(np.flatnonzero(~np.isfinite(values))[0])
        raise LabelInvalid(
            file.path,
            f"{texts[row][:40]!r} is not a finite number" if texts[row] else "no label",
            "Correct it, or train a model of classes, such as `family: logistic`" if texts[row] else UNLABELLED,
            column=column,
            place=file.place(row),
        )
    return values


def _classes(file: TableFile, column: str, given: Sequence[str] | None) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """The names of the classes, and the class of each row; every spelling is looked at once."""
    texts, spelling_of = _distinct_texts(file, column)
    spelled = [str(int(n)) if (n := _number(text)).is_integer() else text for text in texts]
    if given is not None:
        known = tuple(given)
    else:
        found = set(spelled) - {""}
        integers = all(INTEGER.fullmatch(text) for text in found)
        known = tuple(sorted(found, key=int) if integers else sorted(found))
    index = {name: position for position, name in enumerate(known)}
    class_of = np.array([-1 if text in ("", "nan") else index.get(text, -1) for text in spelled], dtype=np.int64)
    values = class_of[spelling_of]
    if (class_of < 0).any():
        bad = int(np.flatnonzero(values < 0)[0])
        text = spelled[spelling_of[bad]]
        raise LabelInvalid(
            file.path,
            f"{text[:40]!r} is not one of the classes {list(known[:10])}" if text else "no label",
            "Correct the label, or the list of classes" if text else UNLABELLED,
            column=column,
            place=file.place(bad),
        )
    return known, values


def _distinct_texts(file: TableFile, column: str) -> tuple[list[str], NDArray[np.int64]]:
    """A column's texts without blanks, and which of them stands in each row."""
    if isinstance(file, ArrowFile):
        whole = pa.concat_arrays(decoded(file.columns.column(column)).chunks)
        coded = whole.dictionary_encode(null_encoding="encode")
        texts = ["" if value is None else as_text(value).strip() for value in coded.dictionary.to_pylist()]
        return texts, coded.indices.to_numpy()
    known: dict[str, int] = {}
    rows = [known.setdefault((text or "").strip(), len(known)) for text in file.texts(column)]
    return list(known), np.array(rows, dtype=np.int64)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")
