"""BAMBI keeps the contract of every algorithm; pooled, it is autograd with everyone's columns side by side."""

import numpy as np

from parley.spec.parsing import parse_spec
from parley.testing import AlgorithmCase
from tests.contract_suite.built_in import PARTIES, BuiltInContract
from tests.oracle import pooled_local
from tests.oracle.pooled_bambi import trained

ROWS = 60
SPEC = f"""
name: bambi-contract
seed: 3
dtype: float64
table: bambi
parties: [{", ".join(PARTIES)}]
train:
  algorithm: bambi
  hypergradient: zeroth_order
  regularisation: 0.02
  model: {{kind: mlp, hidden: [4], out: 3, activation: tanh}}
  upper: {{steps: 4, batch: 10, optimiser: {{step: 0.2}}}}
  lower: {{solver: sgd, steps: 3, batch: 20, optimiser: {{step: 0.3}}}}
  zeroth_order: {{directions: 2, smoothing: 0.001}}
privacy:
  labels: {{mechanism: "off"}}
  aggregation: {{fraction_bits: 44}}
evaluate_every: 2
checkpoint_every: 1
"""
LOCAL_SPEC = f"""
name: bambi-local-contract
seed: 3
dtype: float64
table: local
parties: [{", ".join(PARTIES)}]
split: {{lower: 0.8, upper: lower, test: 0.2}}
train:
  algorithm: bambi
  hypergradient: local
  regularisation: 0.02
  model: {{kind: mlp, hidden: [4], out: 3, activation: tanh}}
  local: {{exchanges: 5, rows: 30, epochs: 2, minibatch: 8}}
  message: full
privacy:
  labels: {{mechanism: "off"}}
  aggregation: {{fraction_bits: 44}}
evaluate_every: 2
checkpoint_every: 1
"""
DRAW = np.random.default_rng(2)
FEATURES = DRAW.standard_normal((ROWS, 6))
LABELS = (FEATURES @ DRAW.standard_normal(6) > 0).astype(int)
IDS = [f"{row:02}" for row in range(ROWS)]


def table(member):
    return {"id": IDS} | {f"c{index}": FEATURES[:, index] for index in (2 * member, 2 * member + 1)}


def pooled(_):
    networks, y = trained(parse_spec(SPEC), np.hsplit(FEATURES, 3), LABELS)
    return {
        party: {f"embedding.{name}": tensor for name, tensor in network.items()} | {"y": own}
        for party, network, own in zip(PARTIES, networks, y, strict=True)
    }


def pooled_by_local_rounds(_):
    networks, y, _ = pooled_local.trained(parse_spec(LOCAL_SPEC), np.hsplit(FEATURES, 3), LABELS)
    return {
        party: {f"embedding.{name}": tensor for name, tensor in network.items()} | {"y": own}
        for party, network, own in zip(PARTIES, networks, y, strict=True)
    }


class TestLocalRounds(BuiltInContract):
    case = AlgorithmCase(
        spec=LOCAL_SPEC,
        tables={party: {"local": table(member)} for member, party in enumerate(PARTIES)},
        labels={"local": {"id": IDS, "label": LABELS}},
        pooled=pooled_by_local_rounds,
        tolerance=1e-5,
    )


class TestBambi(BuiltInContract):
    case = AlgorithmCase(
        spec=SPEC,
        tables={party: {"bambi": table(member)} for member, party in enumerate(PARTIES)},
        labels={"bambi": {"id": IDS, "label": LABELS}},
        pooled=pooled,
        tolerance=1e-5,
    )
