"""A party's table as a run sees it: preprocessed as its owner declared, with figures of the run's training rows.

The figures are fitted when a run first opens here, kept beside its checkpoints, and used again by every later session:
a resumed run and a prediction treat rows as the training did, whatever the table holds by then.
"""

import numpy as np
from numpy.typing import NDArray

from parley.numerics.streams import stream
from parley.services.party.tables import TableShelf
from parley.spec.rows import divide
from parley.spec.run import RunSpec
from parley.tables.loading import Table
from parley.tables.preprocessing import Declared, Fitted, PreprocessingInvalid, apply, fit, of_table


def table_of_run(
    shelf: TableShelf, spec: RunSpec, index: int, *, dense: bool, saved: Fitted | None = None, table: str | None = None
) -> Table:
    """Party `index`'s table, or another one for a prediction; `table.fitted` is what to keep with the run."""
    name, columns = table or spec.table_of(index), spec.parties[index].columns
    if saved is not None:
        if columns is not None and set(columns) != set(saved.inputs):
            raise PreprocessingInvalid(name, "the run was begun with other columns", "Start a new run")
        return shelf.load_fitted(name, saved, dense=dense)
    declared = shelf.declared(name)
    if declared is None:
        return shelf.load(name, columns, dense=dense)
    if table is not None:
        # The run was trained before anything was declared here: its rows were taken as they are.
        return shelf.load(name, columns, dense=dense, raw=False)
    _check(spec, declared, name)
    raw = shelf.load(name, columns, dense=dense)
    return apply(fit(declared, raw, training_rows(spec, index, len(raw))), raw)


def to_keep(table: Table) -> Fitted | None:
    """What a later session needs in order to treat rows as this one does."""
    return table.fitted if table.fitted is not None else of_table(table)


def training_rows(spec: RunSpec, index: int, rows: int) -> NDArray[np.int64]:
    """The rows that figures are fitted on: those of the lower problem, by the very split that the run trains with."""
    match spec.train.algorithm:
        case "bambi" | "asysqn":
            return divide(spec.split, rows, stream(spec.seed, "split")).lower
        case "hgp":
            return divide(spec.split, rows, stream(spec.seed, f"hgp/{spec.parties[index].name}/split")).lower
    return np.arange(rows, dtype=np.int64)  # fedbio: the table is its training table, held-out rows have their own


def _check(spec: RunSpec, declared: Declared, name: str) -> None:
    if spec.train.algorithm == "ldp_dsbo":
        raise PreprocessingInvalid(
            name,
            "ldp_dsbo's ε would not cover figures that are learnt from its rows",
            "Offer a table without `preprocess`, scaled by figures that are public",
        )
    learnt = [column for column in declared.categorical if column not in (declared.categories or {})]
    if spec.train.layout == "horizontal" and learnt:
        raise PreprocessingInvalid(
            name,
            "parties with rows of the same columns must encode categories alike",
            "List them under `preprocess.categorical.categories`, the same at every party",
            column=learnt[0],
        )
