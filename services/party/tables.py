"""The tables that a party offers: loaded once, and again when the file changes."""

import logging
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from parley.party.roles import MapsRows
from parley.services.party.config import TableConfig
from parley.tables.errors import RowsDiffer, TableError, TableTooLarge, TableUnknown
from parley.tables.identities import RowChoice
from parley.tables.loading import Labels, Table, TableRequest, load_ids, load_labels, load_table
from parley.tables.preprocessing import Declared, Fitted, apply
from parley.tables.row_files import Workspace, load_mapped
from parley.tables.survey import Survey, survey

logger = logging.getLogger(__name__)
_MOST_NAMED = 10
"""Columns that a notice for their owner lists."""
_HELD_SHARE = 0.5


class TooManySessions(RuntimeError):
    """The party serves as many sessions as its policy allows."""


def must_hold_rows(maps_rows: MapsRows, features: str, *, predicts: bool) -> bool:
    """Whether a session reads all rows at once: its algorithm does, or noise on rows (`privacy.features`) is drawn."""
    return features != "none" or maps_rows == "never" or (maps_rows == "predicting" and not predicts)


@dataclass(frozen=True)
class TableOffer:
    """What a party says of one of its tables: sizes and sentences, no values."""

    name: str
    rows: int = 0
    features: int = 0
    problem: str = ""
    """Why nobody can use it; empty if somebody can."""
    notice: str = ""
    """What a run that trains on it needs first; empty if nothing."""


class TableStore:
    """Tables by name, read from their files or databases when first asked for."""

    def __init__(self, tables: dict[str, TableConfig], workspace: Workspace | None = None) -> None:
        """`workspace` is where rows are kept that must not be held in memory."""
        self._tables, self._workspace = tables, workspace
        self._loaded: dict[TableRequest, tuple[int, weakref.ref[Table]]] = {}
        """Every choice of columns that somebody works on, with the stamp of its source."""
        self._newest: dict[str, Table] = {}
        """The last one of each table is kept: the next run is likely to ask for it again."""
        self._only: dict[str, RowChoice] = {}

    def only(self, name: str, choice: RowChoice) -> "TableStore":
        """The same tables, but of one of them only the rows that an alignment chose."""
        store = TableStore(self._tables, self._workspace)
        store._only = self._only | {name: choice}
        return store

    def ids(self, name: str) -> Iterator[Sequence[str | None]]:
        """The ids of a table as it spells them, some rows at a time."""
        config = self._config(name)
        return load_ids(config.source, config.format, config.id, column=config.label, delimiter=config.delimiter)

    @property
    def names(self) -> list[str]:
        """Every table's name."""
        return sorted(self._tables)

    def declared(self, name: str) -> Declared | None:
        """The preprocessing that the owner of a table declared."""
        config = self._config(name)
        return None if config.preprocess is None else config.preprocess.declared

    def standardises(self, name: str) -> bool:
        """Whether a table is scaled by the mean and the deviation of its own rows."""
        return self._config(name).standardise

    def load(self, name: str, columns: tuple[str, ...] | None = None, *, dense: bool = True, raw: bool = True) -> Table:
        """A table, or some of its columns; a sparse file stays sparse unless `dense` is asked for.

        Where preprocessing is declared, values are as they stand, to be preprocessed; `raw=False` reads them strictly.
        """
        declared = self.declared(name) if raw else None
        request = replace(self._request(name, columns, dense=dense), standardise=self._config(name).standardise)
        if declared is not None:
            request = replace(request, categorical=declared.categorical, missing=declared.missing != "refuse")
            request = replace(request, spelling=replace(request.spelling, dates=declared.dates))
        return self._read(name, request)

    def load_fitted(self, name: str, fitted: Fitted, *, dense: bool = True) -> Table:
        """A table under preprocessing that was fitted before, on this one or another."""
        request = self._request(name, tuple(fitted.inputs), dense=dense)
        spelling = replace(request.spelling, dates=fitted.dates)
        request = replace(request, categorical=tuple(fitted.categorical), missing=fitted.fills, spelling=spelling)
        return apply(fitted, self._read(name, request))

    def load_like(self, name: str, other: Table) -> Table:
        """A table with the columns of another, and under its scaling: what was learnt on one fits the other."""
        if other.fitted is not None:
            return self.load_fitted(name, other.fitted)
        request = self._request(name, tuple(other.columns), dense=True)
        return self._load(replace(request, standardise=other.scaling is not None, scaling=other.scaling))

    def _request(self, name: str, columns: tuple[str, ...] | None, *, dense: bool) -> TableRequest:
        config = self._config(name)
        return TableRequest(
            config.source,
            config.format,
            config.id,
            columns,
            config.label,
            dtype=np.float64,
            n_features=config.features,
            zero_based=config.zero_based,
            delimiter=config.delimiter,
            dense=dense,
            name=name,
            spelling=config.spelling,
            exclude=config.exclude,
        )

    def _read(self, name: str, request: TableRequest) -> Table:
        """The chosen rows of a table, from memory unless its file has changed."""
        stamp = self.stamp(name)
        read, known = self._loaded.get(request, (None, None))
        table = known() if known is not None and read == stamp else None
        if table is None:
            self._newest.pop(name, None)  # before another one is read beside it
            table = self._load(replace(request, only=self._only.get(name)))
            self._loaded = {each: kept for each, kept in self._loaded.items() if kept[1]() is not None}
            self._loaded[request] = (stamp, weakref.ref(table))
        self._newest[name] = table
        return table

    def _load(self, request: TableRequest) -> Table:
        return load_table(request) if self._workspace is None else load_mapped(request, self._workspace)

    def require_room(self, table: Table, algorithm: str) -> None:
        """Refuse a table whose rows are mapped from files and would not fit memory, where they must be held."""
        if table.files is not None and 8 * table.features.size > _HELD_SHARE * table.files.memory:
            raise TableTooLarge(
                table.name,
                f"{algorithm} holds its {len(table)} rows in memory here, more than `memory` has room for",
                "Raise `memory` in the party's configuration, or choose fewer columns by a view",
            )

    def labels(
        self, name: str, classes: Sequence[str] | None = None, kind: Literal["classes", "real"] = "classes"
    ) -> Labels:
        """The labels of a table, numbered as `classes` has them where it is given."""
        config = self._config(name)
        if config.label is None:
            raise TableUnknown(
                f"table {name!r} has no labels here: name their column as `label` in the party's table, or leave the "
                "labels to the coordinator (`labels_at: coordinator`, in algorithms that take it)"
            )
        path = config.label_path or config.source
        format_ = None if config.label_path else config.format
        only = self._only.get(name)
        return load_labels(
            path,
            config.label,
            format_,
            config.id,
            kind=kind,
            classes=classes,
            delimiter=config.delimiter,
            only=only,
            spelling=config.spelling,
        )

    def stamp(self, name: str) -> int:
        """Changes when a table should be read again."""
        return self._config(name).stamp()

    def offer(self, name: str, progress: Callable[[float], None] = lambda _: None) -> TableOffer:
        """What to say of a table to those who may use it; `progress` is called with the share that has been read."""
        try:
            return self.examine(name, progress, named=False)
        except TableError as error:
            logger.warning("table %s cannot be used: %s", name, error.without_values)
            return TableOffer(name, problem="cannot be loaded; the party's log says why")

    def examine(
        self, name: str, progress: Callable[[float], None] = lambda _: None, *, named: bool = True
    ) -> TableOffer:
        """The same, for the table's owner: columns are `named`, and what is wrong is raised as a `TableError` that may
        quote values.
        """
        declared, request = self.declared(name), self._request(name, None, dense=False)
        dates = () if declared is None else declared.dates
        found = survey(replace(request, spelling=replace(request.spelling, dates=dates)), progress, self._workspace)
        return TableOffer(name, found.rows, found.features, notice=_notice(found, declared, named=named))

    def _config(self, name: str) -> TableConfig:
        if name not in self._tables:
            raise TableUnknown(
                f"no table {name!r} here; there are {self.names}: correct `table`, or add it to the party"
            )
        return self._tables[name]


def _notice(found: Survey, declared: Declared | None, *, named: bool) -> str:
    """What a run that trains on a table needs first; nothing of it is a value, and columns go unnamed to others."""
    wants = Declared() if declared is None else declared
    flaws = []
    words = [column for column in found.words if column not in wants.categorical]
    if words:
        flaws.append("columns of words" + (_listed(words) if named else ""))
    if found.missing and wants.missing == "refuse":
        flaws.append("missing values" + (_listed(found.missing) if named else ""))
    notices = []
    if flaws:
        notices.append(
            f"has {' and '.join(flaws)}: a run that trains on it needs `preprocess`; a prediction takes what the run "
            "has learnt"
        )
    rows = ["rows without an id"] if found.without_id else []
    rows += ["rows that share an id"] if found.repeated else []
    if rows:
        notices.append(f"has {' and '.join(rows)}: align it before training (parley align --duplicates first, or drop)")
    return "; ".join(notices)


def _listed(columns: Sequence[str]) -> str:
    """Columns in brackets, the first of them where they are many."""
    more = f" and {len(columns) - _MOST_NAMED} more" if len(columns) > _MOST_NAMED else ""
    return f" ({', '.join(map(repr, columns[:_MOST_NAMED]))}{more})"


def chosen_rows(table: Table, ids: list[str]) -> Table:
    """The rows that `ids` name, in that order."""
    if not ids:
        return table
    rows = table.files.places(table.ids, ids) if table.files is not None else _places(table, ids)
    if rows is None:
        # Neither which nor how many: the answer to a long list must not tell more than one question may.
        raise RowsDiffer(f"not all of the {len(ids)} ids are in table {table.name}: name rows that every party has")
    texts = {column: values[rows] for column, values in table.texts.items()}
    return replace(table, ids=table.ids[rows], features=table.features[rows], texts=texts, files=None)


def _places(table: Table, ids: list[str]) -> NDArray[np.int64] | None:
    place = {identity: row for row, identity in enumerate(table.ids)}
    return np.array([place[identity] for identity in ids]) if place.keys() >= set(ids) else None
