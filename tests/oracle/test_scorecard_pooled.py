"""Points of three parties' bins add up to the scorecard of the pooled table, to 1e-6."""

import numpy as np
import statsmodels.api as sm

from parley.commands.scorecard import card_rows
from parley.numerics.column_figures import cut, evidence
from parley.numerics.scorecards import Scale
from parley.numerics.streams import stream
from parley.party.glm.role import coefficients
from parley.simulation.runs import Holding, models_of, simulation_of
from parley.spec.parsing import parse_spec
from parley.spec.rows import divide
from parley.tables.loading import Labels, Table
from parley.tables.preprocessing import Binned, apply, binned

ROWS, SHARES = 1200, {"bureau": (0, 1), "bank": (2,), "telco": (3, 4)}
DRAW = np.random.default_rng(21)
FEATURES = np.round(DRAW.gamma(2.0, 10.0, (ROWS, 5)))
CLASSES = (FEATURES @ [0.04, -0.05, 0.03, 0.0, -0.04] + DRAW.logistic(size=ROWS) > 0).astype(int)
IDS = np.array([f"{row:04}" for row in range(ROWS)])
SPEC = parse_spec("""
name: card
parties: [bureau, bank, telco]
split: {lower: 0.6, upper: 0.1, test: 0.3}
train: {algorithm: glm}
privacy: {labels: {mechanism: "off"}}
""")


def test_points_of_all_parties_add_up_to_the_pooled_scorecard():
    """The naive way: weigh the pooled table by hand, fit it by statsmodels, scale its logits to points."""
    rows = divide(SPEC.split, ROWS, stream(SPEC.seed, "split"))
    found, weights = {}, np.zeros(FEATURES.shape)
    for column in range(5):
        values = FEATURES[rows.trained, column]
        bins = cut(values, 4, 20)
        told = evidence(bins.counts(values), bins.counts(values, CLASSES[rows.trained])).weights
        found[f"c{column}"] = Binned(f"c{column}", tuple(bins.edges), tuple(told))
        for low, high, weight in zip([-np.inf, *bins.edges], [*bins.edges, np.inf], told, strict=True):
            weights[(FEATURES[:, column] > low) & (FEATURES[:, column] <= high), column] = weight
    wanted = sm.GLM(CLASSES[rows.trained], sm.add_constant(weights[rows.trained]), sm.families.Binomial()).fit(
        tol=1e-14
    )
    scale = Scale(points=600, odds=50, double=20)
    pooled = 600 - scale.factor * (np.log(50) + sm.add_constant(weights) @ wanted.params)

    raw = [
        Table(IDS, np.ascontiguousarray(FEATURES[:, list(held)]), [f"c{c}" for c in held], name)
        for name, held in SHARES.items()
    ]
    tables = [apply(binned(table, found), table) for table in raw]
    labels = Labels(IDS, CLASSES, ("paid", "late"))
    simulation = simulation_of(SPEC, [Holding(table) for table in tables], lambda _, __: labels, sums="protected")
    models = models_of(simulation, simulation.run())
    scores = np.zeros(ROWS)
    for party, table, model in zip(SHARES, tables, models, strict=True):
        values = {(party, one.column): one.value for one in coefficients(model, table.columns)}
        bins = {(party, c): list(zip([*found[c].edges, None], found[c].values, strict=True)) for c in table.columns}
        for row in card_rows(values, bins, scale):
            if row["column"] == "(intercept)":
                scores += row["points"]
                continue
            edges, column = [-np.inf, *found[row["column"]].edges], FEATURES[:, int(row["column"][1:])]
            high = np.inf if row["up to"] is None else row["up to"]
            scores[(column > edges[row["bin"] - 1]) & (column <= high)] += row["points"]
    np.testing.assert_allclose(scores, pooled, 1e-6)
