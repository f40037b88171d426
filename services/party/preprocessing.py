"""A party's table as a run sees it: preprocessed as its owner declared, with figures of the run's training rows.

The figures are fitted when a run first opens here, kept beside its checkpoints, and used again by every later session:
a resumed run and a prediction treat rows as the training did, whatever the table holds by then.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from parley.privacy.coefficients import Coefficient
from parley.services.party.algorithms import party_side
from parley.services.party.tables import TableStore
from parley.spec.run import RunSpec
from parley.tables.loading import Table
from parley.tables.preprocessing import Binned, Declared, Fitted, PreprocessingInvalid, apply, binned, fit, of_table


def table_of_run(
    tables: TableStore,
    spec: RunSpec,
    index: int,
    columns: tuple[str, ...] | None = None,
    *,
    dense: bool | None = None,
    saved: Fitted | None = None,
    table: str | None = None,
) -> Table:
    """Some or all columns of party `index`'s table, or of another one for a prediction.

    `table.fitted` is what to keep with the run. Whether a sparse file is filled is the algorithm's choice, unless told.
    """
    name, columns = table or spec.table_of(index), columns or spec.parties[index].columns
    if dense is None:
        keeps = party_side(spec.train.algorithm).keeps_sparse
        dense = keeps == "never" or (keeps == "unless_scaled" and _fills(tables, spec, name, saved))
    if saved is not None:
        if columns is not None and set(columns) != set(saved.inputs):
            raise PreprocessingInvalid(name, "the run was begun with other columns", "Start a new run")
        return tables.load_fitted(name, saved, dense=dense)
    declared = tables.declared(name)
    if declared is None:
        if table is None and tables.standardises(name):
            _refuse_learnt_figures(spec, name, "`standardise`")
        return tables.load(name, columns, dense=dense)
    if table is not None:
        # The run was trained before anything was declared here: its rows were taken as they are.
        return tables.load(name, columns, dense=dense, raw=False)
    _check(spec, declared, name)
    raw = tables.load(name, columns, dense=dense)
    return apply(fit(declared, raw, training_rows(spec, index, len(raw))), raw)


def _fills(tables: TableStore, spec: RunSpec, name: str, saved: Fitted | None) -> bool:
    """Whether a sparse table would be filled by what was declared, or fitted, for it."""
    if saved is not None:
        return bool(saved.bins or saved.categories) or any(entry.shift for entry in saved.numbers)
    declared = tables.declared(name)
    scaled = declared is not None and (declared.scale not in ("none", "max_abs") or bool(declared.figures))
    return spec.binned_by is not None or tables.standardises(name) or scaled


def binned_table(tables: TableStore, spec: RunSpec, index: int, table: Table, found: Sequence[Coefficient]) -> Table:
    """The table with each value replaced by the weight of evidence of its bin, as an earlier run has found it here."""
    name = spec.table_of(index)
    _refuse_learnt_figures(spec, name, "`binned_by`")
    figures: dict[str, dict[str, float]] = {}
    for one in found:
        figures.setdefault(one.column, {})[one.figure] = one.value
    return tables.load_fitted(name, binned(table, {c: b for c, f in figures.items() if (b := _bins(c, f))}))


def _bins(column: str, figures: Mapping[str, float]) -> Binned | None:
    """Edges and weights of evidence among a column's figures."""
    count = sum(name.startswith("bin ") and name.endswith(" woe") for name in figures)
    if not count:
        return None
    edges = tuple(figures[f"bin {number} up to"] for number in range(1, count))
    return Binned(column, edges, tuple(figures[f"bin {number} woe"] for number in range(1, count + 1)))


def to_keep(table: Table) -> Fitted | None:
    """What a later session needs in order to treat rows as this one does."""
    return table.fitted if table.fitted is not None else of_table(table)


def training_rows(spec: RunSpec, index: int, rows: int) -> NDArray[np.int64]:
    """The rows that figures are fitted on: those of the lower problem, by the very split that the run trains with."""
    return party_side(spec.train.algorithm).training_rows(spec, index, rows)


def _check(spec: RunSpec, declared: Declared, name: str) -> None:
    if declared.learns:
        _refuse_learnt_figures(spec, name, "`preprocess`")
    learnt = declared.learnt_categories
    if spec.train.layout == "horizontal" and learnt:
        raise PreprocessingInvalid(
            name,
            "parties with rows of the same columns must encode categories alike",
            "List them under `preprocess.categorical.categories`, the same at every party",
            column=learnt[0],
        )


def _refuse_learnt_figures(spec: RunSpec, name: str, setting: str) -> None:
    """One record moves a mean, and with it every other row: the bound on what a record changes would not hold."""
    noised = spec.privacy.features.kind != "none"
    if noised or spec.train.bounds_records:
        whose = "the ε of `privacy.features`" if noised else f"{spec.train.algorithm}'s ε"
        raise PreprocessingInvalid(
            name,
            f"{whose} would not cover the figures that {setting} learns from the rows",
            "Take public ones: `preprocess: {figures: {COLUMN: {shift: …, scale: …}}}`",
        )
