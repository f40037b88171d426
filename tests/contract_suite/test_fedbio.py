"""FedBiO keeps the contract of every algorithm; pooled, full steps of one round each are steps on everyone's rows."""

import numpy as np

from parley.testing import AlgorithmCase
from tests.contract_suite.built_in import PARTIES, BuiltInContract
from tests.oracle.pooled_fedbio import PooledCleaning

ROWS, CHECKED, SIZE, CLASSES, ROUNDS = 20, 15, 4, 3, 12
SPEC = f"""
name: fedbio-contract
seed: 3
dtype: float64
table: fedbio
parties: [{", ".join(PARTIES)}]
train:
  algorithm: fedbio
  task: {{kind: data_cleaning, classes: ["0", "1", "2"], checked: fedbio-checked, regularisation: 0.05}}
  accelerated: false
  rounds: {ROUNDS}
  warm_rounds: 0
  local_steps: 1
  eta: 50
  gamma: 0.5
  tau: 0.3
  batch: {ROWS}
  checked_batch: {CHECKED}
evaluate_every: 6
checkpoint_every: 4
"""
CENTRES = np.random.default_rng(7).standard_normal((CLASSES, SIZE))


def rows_of(member, count, seed):
    """Features and labels of a party; a third of its training labels are drawn at random."""
    draw = np.random.default_rng([member, seed])
    labels = draw.integers(0, CLASSES, count)
    features = CENTRES[labels] + draw.normal(0, 0.7, (count, SIZE))
    wrong = draw.random(count) < (1 / 3 if seed == 0 else 0)
    return features, np.where(wrong, draw.integers(0, CLASSES, count), labels)


def table(member, count, seed):
    features, labels = rows_of(member, count, seed)
    columns = {f"c{index}": features[:, index] for index in range(SIZE)}
    return {"id": [f"{row:02}" for row in range(count)], **columns, "label": labels}


def pooled(_):
    parts = [(*rows_of(member, ROWS, 0), *rows_of(member, CHECKED, 1)) for member in range(len(PARTIES))]
    rows, labels, checked, truth = (np.concatenate(part) for part in zip(*parts, strict=True))
    everyone = PooledCleaning(rows, labels, checked, truth, CLASSES, 0.05)
    _, y, _ = everyone.steps(ROUNDS, 50, 0.5, 0.3, len(PARTIES))
    weights, bias = y[: SIZE * CLASSES].reshape(SIZE, CLASSES), y[SIZE * CLASSES :]
    return {party: {"layers.0.weight": weights, "layers.0.bias": bias} for party in PARTIES}


class TestFedbio(BuiltInContract):
    case = AlgorithmCase(
        spec=SPEC,
        tables={
            party: {"fedbio": table(member, ROWS, 0), "fedbio-checked": table(member, CHECKED, 1)}
            for member, party in enumerate(PARTIES)
        },
        pooled=pooled,
        public={"parley.fedbio.v1.Instruction.further_participants": "who takes part follows from the spec's seed"},
    )
