"""FedBiO with a shared upper variable keeps the contract too: coefficients and model are those of the pooled rows."""

import numpy as np

from parley.testing import AlgorithmCase
from tests.contract_suite.built_in import PARTIES, BuiltInContract
from tests.contract_suite.test_fedbio import CHECKED, CLASSES, ROWS, SIZE, rows_of, table
from tests.oracle.pooled_fedbio import PooledTuning

ROUNDS, INITIAL = 12, 0.1
SPEC = f"""
name: fedbio-shared-contract
seed: 3
dtype: float64
table: fedbio-shared
parties: [{", ".join(PARTIES)}]
train:
  algorithm: fedbio
  task:
    kind: hyper_parameters
    classes: ["0", "1", "2"]
    validation: fedbio-shared-validation
    initial: {INITIAL}
    lowest: 0.05
  accelerated: false
  rounds: {ROUNDS}
  local_steps: 1
  eta: 2
  gamma: 0.2
  tau: 0.2
  batch: {ROWS}
  checked_batch: {CHECKED}
evaluate_every: 6
checkpoint_every: 4
"""


def pooled(_):
    parts = [(*rows_of(member, ROWS, 0), *rows_of(member, CHECKED, 1)) for member in range(len(PARTIES))]
    features, labels, checked, checked_labels = (np.concatenate(part) for part in zip(*parts, strict=True))
    everyone = PooledTuning(features, labels, checked, checked_labels, CLASSES, 0.05)
    start = np.full(SIZE, np.log(INITIAL / (1 - INITIAL)))
    x, y, _ = everyone.steps_from(start, ROUNDS, 2, 0.2, 0.2)
    weights, bias = y[: SIZE * CLASSES].reshape(SIZE, CLASSES), y[SIZE * CLASSES :]
    coefficients = 0.05 + 1 / (1 + np.exp(-x))
    return {
        party: {"layers.0.weight": weights, "layers.0.bias": bias, "coefficients": coefficients} for party in PARTIES
    }


class TestSharedFedbio(BuiltInContract):
    case = AlgorithmCase(
        spec=SPEC,
        tables={
            party: {"fedbio-shared": table(member, ROWS, 0), "fedbio-shared-validation": table(member, CHECKED, 1)}
            for member, party in enumerate(PARTIES)
        },
        pooled=pooled,
        public={"parley.fedbio.v1.Instruction.further_participants": "who takes part follows from the spec's seed"},
    )
