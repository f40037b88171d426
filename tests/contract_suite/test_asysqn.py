"""AsySQN keeps the contract of every algorithm; pooled, it is logistic regression by scikit-learn."""

import numpy as np
from sklearn.linear_model import LogisticRegression

from parley.testing import AlgorithmCase
from tests.contract_suite.built_in import PARTIES, BuiltInContract

ROWS, TRAINED, REGULARISATION = 80, 60, 0.05
SPEC = f"""
name: asysqn-contract
seed: 3
table: asysqn
parties: [{", ".join(PARTIES)}]
split: {{lower: "0:{TRAINED}", upper: lower, test: "{TRAINED}:{ROWS}"}}
train:
  algorithm: asysqn
  schedule: synchronous
  steps: 60
  batch: 32
  snapshot_every: 4
  regularisation: {REGULARISATION}
privacy: {{aggregation: {{kind: two_tree}}}}
checkpoint_every: 15
"""
DRAW = np.random.default_rng(1)
FEATURES = DRAW.standard_normal((ROWS, 6))
LABELS = (FEATURES @ DRAW.standard_normal(6) + DRAW.normal(0, 0.5, ROWS) > 0).astype(int)


def table(member):
    columns = {f"c{index}": FEATURES[:, index] for index in (2 * member, 2 * member + 1)}
    return {"id": [f"{row:02}" for row in range(ROWS)], **columns, "label": LABELS}


def pooled(_):
    penalty = 1 / (TRAINED * REGULARISATION)
    fit = LogisticRegression(C=penalty, fit_intercept=False, tol=1e-12, max_iter=10_000)
    weights = fit.fit(FEATURES[:TRAINED], LABELS[:TRAINED]).coef_[0]
    return {party: {"weights": weights[2 * m : 2 * m + 2]} for m, party in enumerate(PARTIES)}


class TestAsysqn(BuiltInContract):
    case = AlgorithmCase(
        spec=SPEC,
        tables={party: {"asysqn": table(member)} for member, party in enumerate(PARTIES)},
        labels={"asysqn": {name: table(0)[name] for name in ("id", "label")}},
        pooled=pooled,
        tolerance=1e-4,
        public={
            "parley.asysqn.v1.Progress.busy_seconds": "a duration",
            "parley.asysqn.v1.Progress.loop_seconds": "a duration",
        },
    )
