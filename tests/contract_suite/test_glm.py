"""Generalised linear models keep the contract of every algorithm; pooled, they are statsmodels and scikit-learn."""

from functools import cache

import numpy as np
import statsmodels.api as sm
from sklearn.linear_model import ElasticNet

from parley.numerics.streams import stream
from parley.spec.parsing import parse_spec
from parley.spec.rows import divide
from parley.testing import AlgorithmCase
from tests.contract_suite.built_in import PARTIES, BuiltInContract

ROWS = 120
SPEC = f"""
name: glm-contract
seed: 3
table: glm
parties: [{", ".join(PARTIES)}]
train: {{algorithm: glm, family: logistic}}
privacy:
  labels: {{mechanism: "off"}}
checkpoint_every: 1
"""
SHRUNK_SPEC = f"""
name: glm-shrunk-contract
seed: 3
table: shrunk
parties: [{", ".join(PARTIES)}]
train: {{algorithm: glm, family: linear, penalty: {{strength: 0.2, l1_ratio: 0.7}}}}
privacy:
  labels: {{mechanism: "off"}}
checkpoint_every: 1
"""
DRAW = np.random.default_rng(2)
FEATURES = DRAW.standard_normal((ROWS, 6))
SIGNAL = FEATURES @ [1.0, -0.5, 0.3, 0.0, 0.8, 0.2]
CLASSES = (SIGNAL + DRAW.logistic(size=ROWS) > 0).astype(int)
NUMBERS = SIGNAL + DRAW.standard_normal(ROWS)
IDS = [f"{row:03}" for row in range(ROWS)]


def table(member):
    return {"id": IDS} | {f"c{index}": FEATURES[:, index] for index in (2 * member, 2 * member + 1)}


def trained_rows(spec):
    return divide(spec.split, ROWS, stream(spec.seed, "split")).trained


def by_party(values, intercept):
    """The first party has the intercept last."""
    parts = np.split(np.asarray(values), 3)
    return [np.append(parts[0], intercept), *parts[1:]]


@cache
def pooled_logistic():
    rows = trained_rows(parse_spec(SPEC))
    return sm.GLM(CLASSES[rows], sm.add_constant(FEATURES[rows]), sm.families.Binomial()).fit(tol=1e-14)


def pooled(_):
    found = pooled_logistic()
    weights, errors = by_party(found.params[1:], found.params[0]), by_party(found.bse[1:], found.bse[0])
    return {
        party: {"weights": weights[m], "standard_errors": errors[m], "freedom": 0.0} for m, party in enumerate(PARTIES)
    }


def pooled_shrunk(_):
    rows = trained_rows(parse_spec(SHRUNK_SPEC))
    found = ElasticNet(alpha=0.2, l1_ratio=0.7, tol=1e-14, max_iter=100_000).fit(FEATURES[rows], NUMBERS[rows])
    assert (found.coef_ == 0).any()
    return {
        party: {"weights": part} for party, part in zip(PARTIES, by_party(found.coef_, found.intercept_), strict=True)
    }


class TestGlm(BuiltInContract):
    case = AlgorithmCase(
        spec=SPEC,
        tables={party: {"glm": table(member)} for member, party in enumerate(PARTIES)},
        labels={"glm": {"id": IDS, "label": CLASSES}},
        pooled=pooled,
        metrics=lambda: {"deviance": pooled_logistic().deviance, "null deviance": pooled_logistic().null_deviance},
        public={"parley.glm.v1.Instruction.freedom": "rows less columns, which the spec and the tables' sizes tell"},
    )


class TestShrunkGlm(BuiltInContract):
    case = AlgorithmCase(
        spec=SHRUNK_SPEC,
        tables={party: {"shrunk": table(member)} for member, party in enumerate(PARTIES)},
        labels={"shrunk": {"id": IDS, "label": NUMBERS}},
        pooled=pooled_shrunk,
        foretold=False,  # how many rounds a lasso takes is known when it is there
        public=TestGlm.case.public,
    )
