"""Make messy columns trainable: fill missing values, encode categories, scale.

What to do is declared with the table by its owner. The figures (medians, categories, means) are fitted by scikit-learn
on a run's training rows alone, and kept as plain numbers and texts: a saved run needs no pickle, no scikit-learn and
no particular version of it to be applied again. Nothing of it leaves the organisation.
"""

import hashlib
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, diags_array, issparse

from parley.tables.errors import OTHERS, FeatureMissing, TableError
from parley.tables.loading import Table
from parley.tables.rows import LocalRows, pieces
from parley.tables.spelling import DateColumn

VERSION = 1
ROUNDING = 1e-6
"""Slack of a bin's edge, as in `parley.numerics.column_figures`."""
_MISSING = "=(missing)"
_ABSENT = "\0absent"  # nor is this
_UNSEEN = "\0unseen"  # no category: texts from files carry no NUL
_TOO_MANY = "Group them before, leave the column out, or raise `preprocess.categorical.max_categories`"


class PreprocessingInvalid(TableError):
    """What is declared cannot be done to this table, or what was saved cannot be read."""


@dataclass(frozen=True)
class Declared:
    """What a table's owner wants done to it."""

    missing: Literal["refuse", "mean", "median", "most_frequent"] = "refuse"
    """How numbers are filled; a missing category becomes the most frequent one, unless `refuse`."""
    categorical: tuple[str, ...] = ()
    """Columns with categories; each becomes one column of 0 and 1 per category."""
    categories: Mapping[str, Sequence[str]] | None = None
    """Categories of columns, where they are fixed rather than learnt from the training rows."""
    max_categories: int = 50
    """Most columns that one column may become; rarer categories share the last of them."""
    encoding: Literal["one_hot", "hashed"] = "one_hot"
    """`hashed`: a category sets one of `max_categories` columns that its digest chooses, so that no row teaches any."""
    dates: tuple[DateColumn, ...] = ()
    """Columns with dates."""
    indicators: tuple[str, ...] = ()
    """Columns beside which another one is 1 where they have no value; of a category, a level of its own."""
    scale: Literal["none", "standard", "minmax", "max_abs"] = "none"
    """How numbers are scaled; a sparse table takes `max_abs`, which keeps its zeros."""
    figures: Mapping[str, tuple[float, float]] | None = None
    """Shift and scale of columns that are public, and so not learnt from any row."""

    @property
    def learns(self) -> bool:
        """Whether anything of it depends on the table's rows."""
        return self.missing != "refuse" or self.scale != "none" or bool(self.learnt_categories)

    @property
    def learnt_categories(self) -> list[str]:
        """Columns whose categories rows teach."""
        fixed = set(self.categories or {})
        return [] if self.encoding == "hashed" else [name for name in self.categorical if name not in fixed]


@dataclass(frozen=True)
class Numbers:
    """What is done to one numeric column: filled, then (value − shift) / scale."""

    column: str
    fill: float | None
    """What stands for a missing value; None refuses one."""
    shift: float
    scale: float


@dataclass(frozen=True)
class Binned:
    """What the values of one column become: a number for each bin, instead of being scaled."""

    column: str
    edges: tuple[float, ...]
    """One fewer than there are bins, ascending; bin b holds values in (edges[b−1], edges[b]]."""
    values: tuple[float, ...]
    """Weight of evidence of each bin."""

    def of(self, raw: NDArray[np.float64]) -> NDArray[np.float64]:
        """What stands for these values; one that was off its bin's edge by a rounding when bins were made stays in."""
        edges = np.array(self.edges)
        slack = ROUNDING * np.abs(edges) + ROUNDING / 10 * np.abs(edges).max(initial=0.0)
        return np.asarray(np.array(self.values)[np.searchsorted(edges + slack, raw, side="left")])


@dataclass(frozen=True)
class Categories:
    """What one categorical column becomes."""

    column: str
    fill: str | None
    """What stands for a missing category; None refuses one."""
    outputs: tuple[str, ...]
    """Names of the columns of 0 and 1."""
    place: Mapping[str | None, int]
    """Which of them each category sets."""
    unseen: int | None
    """Which of them a category sets that training rows do not have; None leaves all at 0."""
    hashed: bool = False
    """Whether the digest of a category chooses which of them it sets."""

    def set_by(self, text: str | None) -> int | None:
        """Which of the columns a category sets."""
        if self.hashed and text is not None and text not in self.place:
            digest = hashlib.sha256(text.encode()).digest()
            return int.from_bytes(digest[:8], "big") % (len(self.outputs) - len(self.place))
        return self.place.get(text, self.unseen)


@dataclass(frozen=True)
class Fitted:
    """What training rows taught: enough to treat any other table alike."""

    numbers: tuple[Numbers, ...]
    categories: tuple[Categories, ...]
    bins: tuple[Binned, ...] = ()
    """Of every output, where values are replaced by what their bin weighs."""
    dates: tuple[DateColumn, ...] = ()
    """Those of the numbers that are dates."""
    indicators: tuple[str, ...] = ()
    """Those of the numbers beside which another column says where they are missing."""

    @property
    def inputs(self) -> list[str]:
        """Columns that a table must have."""
        return [*(entry.column for entry in self.numbers), *self.categorical]

    @property
    def outputs(self) -> list[str]:
        """Columns that a run then sees."""
        return [
            *(entry.column for entry in self.numbers),
            *(name for date in self.dates for name in date.outputs),
            *(f"{column}{_MISSING}" for column in self.indicators),
            *(name for entry in self.categories for name in entry.outputs),
        ]

    @property
    def fills(self) -> bool:
        """Whether it stands in for missing values."""
        fills = [entry.fill for entry in self.numbers] + [entry.fill for entry in self.categories]
        return any(fill is not None for fill in fills)

    @property
    def categorical(self) -> list[str]:
        """Those of them that hold categories."""
        return [entry.column for entry in self.categories]

    def to_json(self) -> bytes:
        """Write what was learnt; floats keep every bit."""
        return json.dumps({"version": VERSION, **asdict(self)}, ensure_ascii=False).encode()

    @classmethod
    def from_json(cls, content: bytes) -> "Fitted":
        """Read what `to_json` wrote."""
        try:
            read = json.loads(content)
            if read["version"] != VERSION:
                raise PreprocessingInvalid("preprocessing", f"it is of version {read['version']}", "Train a new run")
            encoded = [Categories(**{**entry, "outputs": tuple(entry["outputs"])}) for entry in read["categories"]]
            bins = [Binned(e["column"], tuple(e["edges"]), tuple(e["values"])) for e in read.get("bins", ())]
            dates = [DateColumn(**{**entry, "cycles": tuple(entry["cycles"])}) for entry in read.get("dates", ())]
            numbers = tuple(Numbers(**entry) for entry in read["numbers"])
            return cls(numbers, tuple(encoded), tuple(bins), tuple(dates), tuple(read.get("indicators", ())))
        except (KeyError, TypeError, json.JSONDecodeError, UnicodeDecodeError) as damage:
            raise PreprocessingInvalid("preprocessing", f"the file is damaged ({damage})", "Train a new run") from None


def fit(declared: Declared, table: Table, rows: NDArray[np.int64]) -> Fitted:
    """Learn from the given rows of a table, and no others, what its preprocessing needs."""
    if issparse(table.features) and declared.scale not in ("none", "max_abs"):
        raise PreprocessingInvalid(
            table.name,
            f"`scale: {declared.scale}` would fill a sparse table",
            "Declare `scale: max_abs`, which keeps zeros",
        )
    fills = _fills(declared, table, rows)
    shifts, scales = _public(declared, table, *_scaling(declared, table.features, rows, fills))
    numbers = [
        Numbers(column, None if declared.missing == "refuse" else float(fill), float(shift), float(scale))
        for column, fill, shift, scale in zip(table.columns, fills, shifts, scales, strict=True)
    ]
    encoded = [_categories(declared, table, column, texts[rows]) for column, texts in table.texts.items()]
    dates = tuple(date for date in declared.dates if date.column in table.columns)
    return Fitted(tuple(numbers), tuple(encoded), (), dates, _indicators(declared, table))


def apply(fitted: Fitted, table: Table) -> Table:
    """Fill, encode and scale a table as the training rows taught."""
    if [*table.columns, *table.texts] != fitted.inputs:
        raise PreprocessingInvalid(table.name, "its columns are not those of the training table", "Use the same ones")
    scales = np.array([entry.scale for entry in fitted.numbers])
    columns = fitted.outputs
    if issparse(table.features):
        scaled = csr_matrix(table.features @ diags_array(1 / scales))
        return replace(table, features=scaled, columns=columns, texts={}, fitted=fitted)
    shifts = np.array([entry.shift for entry in fitted.numbers])

    def made(rows: slice) -> NDArray[Any]:
        piece, at = _piece(table, rows), rows.start or 0
        filled = _filled(fitted, piece, at)
        encoded = [*_beside(fitted, piece), *(_one_hot(entry, piece, at) for entry in fitted.categories)]
        if fitted.bins:
            return _in_bins(fitted.bins, np.concatenate([filled, *encoded], axis=1))
        blocks = [(filled - shifts) / scales, *encoded]
        return np.ascontiguousarray(np.concatenate(blocks, axis=1), dtype=table.features.dtype)

    if table.files is None:
        features = made(slice(None))
    else:
        name = "preprocessed-" + hashlib.sha256(fitted.to_json()).hexdigest()[:16]
        features = table.files.derived(name, len(table), len(columns), made)
    return replace(table, features=features, columns=columns, texts={}, fitted=fitted, missing=_missing(table))


def _beside(fitted: Fitted, table: Table) -> list[NDArray[np.float64]]:
    """Columns of cycles, and those that say where a value is missing."""
    features = np.asarray(table.features, dtype=np.float64)
    place = {column: index for index, column in enumerate(table.columns)}
    cycles = [date.turned(features[:, place[date.column]]) for date in fitted.dates]
    absent = np.isnan(features[:, [place[column] for column in fitted.indicators]])
    return [*cycles, absent.astype(np.float64)]


def _indicators(declared: Declared, table: Table) -> tuple[str, ...]:
    """Numeric columns whose gaps are told."""
    if declared.indicators and declared.missing == "refuse":
        remedy = "Declare how to fill it too, such as `preprocess: {missing: median}`"
        problem = "`indicators` names it, but missing values are refused"
        raise PreprocessingInvalid(table.name, problem, remedy, column=declared.indicators[0])
    return tuple(column for column in declared.indicators if column in table.columns)


def _piece(table: Table, rows: slice) -> Table:
    texts = {column: values[rows] for column, values in table.texts.items()}
    return replace(table, ids=table.ids[rows], features=table.features[rows], texts=texts)


def _missing(table: Table) -> dict[str, int]:
    """Values that are not there, by column."""
    counts = LocalRows(table.features).fold(lambda shard: np.isnan(shard).sum(axis=0))
    absent = dict(zip(table.columns, counts.tolist(), strict=True))
    for column, texts in table.texts.items():
        absent[column] = sum(text is None for rows in pieces(len(table)) for text in texts[rows])
    return absent


def binned(table: Table, found: Mapping[str, Binned]) -> Fitted:
    """How a table is treated whose columns are replaced by what was found of their bins.

    Raises:
        PreprocessingInvalid: if a column has no bins, or the table is sparse.
    """
    if issparse(table.features):
        raise PreprocessingInvalid(table.name, "a sparse table has no bins", "Leave `binned_by` out of the spec")
    known = table.fitted or of_table(table)
    lacking = [column for column in table.columns if column not in found]
    if lacking or known is None:
        raise PreprocessingInvalid(
            table.name,
            "the run that `binned_by` names has no weights of evidence for it",
            "Name a run of `algorithm: explore` with `against_label: true` that has finished, over the same columns",
            column=lacking[0] if lacking else "",
        )
    return replace(known, bins=tuple(found[column] for column in table.columns))


def _in_bins(bins: Sequence[Binned], values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.ascontiguousarray(np.stack([one.of(values[:, j]) for j, one in enumerate(bins)], axis=1))


def of_table(table: Table) -> Fitted | None:
    """What a later table must go through to be like this one, which was taken as it is or standardised when loaded.

    At least its columns, by name and order. None for a sparse table: its columns are numbers, and may be millions.
    """
    if issparse(table.features):
        return None
    width = len(table.columns)
    mean, std = (np.zeros(width), np.ones(width)) if table.scaling is None else (table.scaling.mean, table.scaling.std)
    figures = zip(table.columns, mean, std, strict=True)
    return Fitted(tuple(Numbers(column, None, float(shift), float(scale)) for column, shift, scale in figures), ())


def _fills(declared: Declared, table: Table, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    features, width = table.features, table.features.shape[1]
    if declared.missing == "refuse" or issparse(features):
        return np.zeros(width)
    local = LocalRows(features, np.float64)
    known = local.fold(lambda shard: (~np.isnan(shard)).sum(axis=0), rows)
    if not known.all():
        raise FeatureMissing(
            table.name,
            "no training row has a value",
            f"Leave the column out: {OTHERS}",
            column=table.columns[int(np.flatnonzero(known == 0)[0])],
        )
    if declared.missing == "mean":
        return np.asarray(local.fold(lambda shard: np.nansum(shard, axis=0), rows) / known)
    from sklearn.impute import SimpleImputer  # slow to import, and only a run that trains needs it

    columns = (np.asarray(features[:, index], dtype=np.float64)[rows, None] for index in range(width))
    return np.array([SimpleImputer(strategy=declared.missing).fit(column).statistics_[0] for column in columns])


def _scaling(declared: Declared, features: Any, rows: NDArray[np.int64], fills: NDArray[np.float64]) -> tuple[Any, Any]:
    width = features.shape[1]
    if declared.scale == "none" or not width:
        return np.zeros(width), np.ones(width)
    from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, StandardScaler

    if issparse(features):  # `fit` has refused every other scale
        return np.zeros(width), MaxAbsScaler().fit(features[rows]).scale_
    scaler = {"standard": StandardScaler, "minmax": MinMaxScaler, "max_abs": MaxAbsScaler}[declared.scale]()
    for shard in LocalRows(features, np.float64).shards(rows):
        scaler.partial_fit(np.where(np.isnan(shard), fills, shard))
    if declared.scale == "standard":
        return _far_from_zero(LocalRows(features, np.float64), rows, fills, scaler)
    if declared.scale == "minmax":
        # scikit-learn's range is 1 for a constant column, as its own transform has it.
        return scaler.data_min_, 1 / scaler.scale_
    return np.zeros(width), scaler.scale_


def _far_from_zero(
    local: LocalRows, rows: NDArray[np.int64], fills: NDArray[np.float64], scaler: Any
) -> tuple[Any, Any]:
    """Means and deviations, where scikit-learn takes a column for constant whose values are large and differ little."""
    means, scales, doubtful = scaler.mean_.copy(), scaler.scale_.copy(), scaler.scale_ == 1.0
    if not doubtful.any() or not len(rows):
        return means, scales
    first = np.where(np.isnan(local[rows[:1]]), fills, local[rows[:1]])[0]

    def sums(shard: NDArray[np.float64]) -> NDArray[np.float64]:
        away = np.where(np.isnan(shard), fills, shard) - first
        return np.stack([away.sum(axis=0), np.square(away).sum(axis=0)])

    total, squares = local.fold(sums, rows) / len(rows)
    deviation = np.sqrt(np.maximum(squares - total**2, 0.0))
    means[doubtful] = (first + total)[doubtful]
    scales[doubtful] = np.where(deviation > 0, deviation, 1.0)[doubtful]
    return means, scales


def _public(declared: Declared, table: Table, shifts: Any, scales: Any) -> tuple[Any, Any]:
    """The same, with public figures where the owner has given them."""
    shifts, scales = np.array(shifts, dtype=np.float64), np.array(scales, dtype=np.float64)
    for place, column in enumerate(table.columns):
        if column in (declared.figures or {}):
            shifts[place], scales[place] = (declared.figures or {})[column]
    if issparse(table.features) and shifts.any():
        raise PreprocessingInvalid(table.name, "a shift would fill a sparse table", "Give figures with `shift: 0`")
    return shifts, scales


def _categories(declared: Declared, table: Table, column: str, texts: NDArray[np.object_]) -> Categories:
    from sklearn.impute import SimpleImputer
    from sklearn.preprocessing import OneHotEncoder

    known = texts[np.array([text is not None for text in texts], dtype=bool)]
    if not len(known):
        raise FeatureMissing(
            table.name, "no training row has a value", f"Leave the column out: {OTHERS}", column=column
        )
    frequent = SimpleImputer(strategy="most_frequent", missing_values=None).fit(texts.reshape(-1, 1))
    filled = None if declared.missing == "refuse" else str(frequent.statistics_[0])
    if column in declared.indicators:
        filled = _ABSENT
    if declared.encoding == "hashed":
        outputs = [f"{column}#{number}" for number in range(declared.max_categories)]
        told: dict[str | None, int] = {_ABSENT: len(outputs)} if filled == _ABSENT else {}
        return Categories(column, filled, (*outputs, *(f"{column}{_MISSING}" for _ in told)), told, None, hashed=True)
    fixed = (declared.categories or {}).get(column)
    if fixed is not None and len(fixed) > declared.max_categories:
        raise PreprocessingInvalid(table.name, f"{len(fixed)} categories are declared", _TOO_MANY, column=column)
    encoder = OneHotEncoder(
        categories="auto" if fixed is None else [np.array(fixed, dtype=object)],
        handle_unknown="infrequent_if_exist" if fixed is None else "ignore",
        max_categories=declared.max_categories if fixed is None else None,
        dtype=np.float64,
        sparse_output=False,
    ).fit(known.reshape(-1, 1))
    every = [*map(str, encoder.categories_[0]), _UNSEEN]
    with warnings.catch_warnings():  # it warns of the unseen one, which is here to see what it does
        warnings.simplefilter("ignore", UserWarning)
        codes = encoder.transform(np.array(every, dtype=object).reshape(-1, 1))
    sets = [int(np.argmax(code)) if code.any() else None for code in codes]
    names = [name.removeprefix("x0_") for name in encoder.get_feature_names_out()]
    outputs = [f"{column}={'(other)' if name == 'infrequent_sklearn' else name}" for name in names]
    place: dict[str | None, int] = {text: at for text, at in zip(every[:-1], sets[:-1], strict=True) if at is not None}
    if filled == _ABSENT:
        place[_ABSENT] = len(outputs)
        outputs.append(f"{column}{_MISSING}")
    return Categories(column, filled, tuple(outputs), place, sets[-1])


def _filled(fitted: Fitted, table: Table, first: int) -> NDArray[np.float64]:
    features = np.asarray(table.features, dtype=np.float64)
    absent = np.isnan(features)
    if not absent.any():
        return features
    for index, entry in enumerate(fitted.numbers):
        if entry.fill is None and absent[:, index].any():
            _refuse_missing(table, entry.column, first + int(np.flatnonzero(absent[:, index])[0]))
    return np.where(absent, [0.0 if entry.fill is None else entry.fill for entry in fitted.numbers], features)


def _one_hot(entry: Categories, table: Table, first: int) -> NDArray[np.float64]:
    texts = table.texts[entry.column]
    if entry.fill is None:
        absent = np.flatnonzero([text is None for text in texts])
        if len(absent):
            _refuse_missing(table, entry.column, first + int(absent[0]))
    spelled = [entry.fill if text is None else str(text) for text in texts]
    nowhere = len(entry.outputs)  # a column of its own, which is cut off
    known = {text: nowhere if (place := entry.set_by(text)) is None else place for text in set(spelled)}
    encoded = np.zeros((len(texts), nowhere + 1))
    encoded[np.arange(len(texts)), [known[text] for text in spelled]] = 1.0
    return encoded[:, :nowhere]


def _refuse_missing(table: Table, column: str, row: int) -> None:
    raise FeatureMissing(
        table.name,
        "a value is missing",
        "Declare how to fill it, such as `preprocess: {missing: median}` on the table, or drop such rows",
        column=column,
        place=f"row {row} in the order of ids",
    )
