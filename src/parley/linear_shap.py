"""SHAP values of a linear model, at the party that holds the columns: nothing leaves it.

S. M. Lundberg, S.-I. Lee: A unified approach to interpreting model predictions, 2017, section 4.1: of a linear model
with independent columns, φ_ij = w_j (x_ij − mean x_j). A party has w_j and x_j of its own columns, so the mean of
|φ_ij| over its rows is its own business, whatever the others hold.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from parley.contribution import NotMeasurable

if TYPE_CHECKING:
    from parley.client import Run
    from parley.numerics.arrays import Array
    from parley.spec.run import RunSpec


def mean_absolute(features: "Array", weights: "Array") -> "Array":
    """mean_i |φ_ij|, summed over outputs, by column."""
    spread = np.abs(features - features.mean(axis=0)).mean(axis=0)
    return np.asarray(spread * np.abs(weights).sum(axis=1))


def rows_of(columns: Sequence[str], values: "Array", party: str) -> list[dict[str, Any]]:
    """A row for each column, the largest first."""
    found = sorted(zip(columns, map(float, values), strict=True), key=lambda pair: -pair[1])
    return [{"party": party, "column": column, "mean |SHAP|": value} for column, value in found]


def own_columns(run: "Run", config: Path, coordinator: str = "coordinator") -> list[dict[str, Any]]:
    """Of a party's own columns, from its saved model and the rows of its table that the run's alignment chose."""
    from parley.party.roles import CheckpointMissing
    from parley.services.party.alignment import aligned_tables
    from parley.services.party.checkpoints import ModelMissing, Store
    from parley.services.party.config import PartyConfig
    from parley.services.party.preprocessing import table_of_run
    from parley.services.party.tables import TableStore
    from parley.services.wire.configuration import load_config
    from parley.spec.parsing import parse_spec
    from parley.tables.alignments import AlignmentStore
    from parley.tables.preprocessing import Fitted

    settings = load_config(config, PartyConfig)
    spec = parse_spec(run.refresh().message.spec_yaml)
    names = [entry.name for entry in spec.parties]
    if settings.name not in names:
        raise NotMeasurable(f"{settings.name} takes no part in {run.run_id}")
    try:
        store = Store(settings.state)
        model, kept = store.load_model(run.run_id), store.load_preprocessing(run.run_id)
    except (CheckpointMissing, ModelMissing) as error:
        raise NotMeasurable(str(error)) from None
    saved = None if kept is None else Fitted.from_json(kept)
    index = names.index(settings.name)
    stored = AlignmentStore(settings.state)
    tables = aligned_tables(TableStore(settings.tables), stored, spec, spec.table_of(index), coordinator)
    table = table_of_run(tables, spec, index, dense=True, saved=saved)
    count = len(table.columns)
    if "weights" in model:
        weights = model["weights"].numpy()[:count, None]
    elif "y" in model and not any(name.startswith("embedding.") for name in model) and len(model["y"]) >= count:
        weights = model["y"].numpy()[:count]
    else:
        raise NotMeasurable("this party's model is not linear in its columns: SHAP values are for linear ones")
    features = np.asarray(table.features, np.float64)
    found = rows_of(table.columns, mean_absolute(features, weights), settings.name)
    if spec.train.algorithm == "glm":
        permuted = _permuted(spec, features, weights[:, 0])
        found = (
            [row | {"permuted": permuted[table.columns.index(row["column"])]} for row in found] if permuted else found
        )
    return found


def permutation_importance(features: "Array", weights: "Array") -> "Array":
    """How much the mean squared error of a linear model grows on its own training rows when a column is permuted.

    The mean over all permutations: with w of least squares the residuals do not go with any column, so that
    E (r − w(x' − x))² − E r² = w² E (x' − x)² = 2 w² Var x, of which nothing is anybody else's.
    """
    return np.asarray(2 * weights**2 * features.var(axis=0))


def _permuted(spec: "RunSpec", features: "Array", weights: "Array") -> list[float]:
    """Of a linear regression without penalty; empty for other models, which need others' parts of the scores."""
    from parley.party.glm.role import training_rows
    from parley.protocols.glm.settings import GlmSpec

    settings = spec.settings(GlmSpec)
    if settings.family != "linear" or settings.penalty.strength:
        return []
    return [float(value) for value in permutation_importance(features[training_rows(spec, 0, len(features))], weights)]
