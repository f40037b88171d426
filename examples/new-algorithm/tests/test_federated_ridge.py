"""Federated ridge regression keeps the contract of every algorithm; all of the suite comes with Parley."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from federated_ridge.party import row_sets
from sklearn.linear_model import Ridge

from parley.spec.parsing import parse_spec
from parley.testing import AlgorithmCase, AlgorithmContract

SPEC = (Path(__file__).parents[1] / "run.yaml").read_text()


def table(member: int) -> dict[str, Any]:
    """A party's houses: as many as it has, and not quite like the others'."""
    draw, rows = np.random.default_rng(member), 30 + 10 * member
    size, age = draw.normal(1 + member, 1, rows), draw.normal(0, 1, rows)
    price = 3 + 2 * size - age + draw.normal(0, 0.1, rows)
    return {"id": [f"{row:02}" for row in range(rows)], "size": size, "age": age, "label": price}


TABLES = {name: {"houses": table(member)} for member, name in enumerate(("north", "south", "east"))}


@cache
def pooled() -> tuple[np.ndarray, float]:
    """Scikit-learn with everyone's rows in one place: coefficients, and the error on the held-out rows."""
    spec, parts = parse_spec(SPEC), {"trained": [], "test": []}
    for index, tables in enumerate(TABLES.values()):
        rows = np.column_stack([tables["houses"][name] for name in ("size", "age", "label")])
        for part, chosen in parts.items():
            chosen.append(rows[getattr(row_sets(spec, index, len(rows)), part)])
    trained, test = (np.concatenate(part) for part in parts.values())
    model = Ridge(alpha=spec.train.penalty * len(trained), tol=1e-12).fit(trained[:, :-1], trained[:, -1])
    return np.append(model.coef_, model.intercept_), np.mean((model.predict(test[:, :-1]) - test[:, -1]) ** 2)


class TestFederatedRidge(AlgorithmContract):
    """Everything that the suite tries, on three parties."""

    case = AlgorithmCase(
        spec=SPEC,
        tables=TABLES,
        pooled=lambda _: {party: {"coefficients": pooled()[0]} for party in TABLES},
        metrics=lambda: {"test error": pooled()[1]},
        foretold=False,
    )
