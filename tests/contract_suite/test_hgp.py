"""HGP keeps the contract of every algorithm; where everybody reaches everybody, it is gradient descent on all rows."""

import numpy as np
from scipy.special import expit

from parley.testing import AlgorithmCase
from tests.contract_suite.built_in import PARTIES, BuiltInContract

HALF, SIZE, OUTER, INNER, ROUNDS = 24, 3, 3, 20, 10
RATE, ETA, STEP = 0.5, 0.8, 0.02
SPEC = f"""
name: hgp-contract
seed: 3
dtype: float64
table: hgp
parties: [{", ".join(PARTIES)}]
split: {{lower: "0:{HALF}", upper: "{HALF}:{2 * HALF}", test: 0}}
train:
  algorithm: hgp
  task: {{kind: regularisation, classes: ["0", "1"], initial: 0.1}}
  network: {{kind: fully_connected}}
  inner: {{steps: {INNER}, learning_rate: {RATE}}}
  hyper: {{rounds: {ROUNDS}, push_steps: 1, step_size: {ETA}, form: reinit}}
  outer: {{steps: {OUTER}, optimiser: adam, step_size: {STEP}}}
  stretch: 5
evaluate_every: 1
checkpoint_every: 1
"""


def records(member):
    draw = np.random.default_rng(member)
    features = draw.standard_normal((2 * HALF, SIZE))
    return features, (features @ [1.0, -2.0, 0.5] + draw.normal(member, 1, 2 * HALF) > 0).astype(int)


def table(member):
    features, labels = records(member)
    columns = {f"c{index}": features[:, index] for index in range(SIZE)}
    return {"id": [f"{row:02}" for row in range(2 * HALF)], **columns, "label": labels}


def pooled(_):
    """Gradient descent on everyone's training rows, a Neumann series with everyone's Hessian, then a step of Adam."""
    parts = [records(member) for member in range(3)]
    (a, b), (va, vb) = (
        tuple(np.concatenate([part[which][rows] for part in parts]) for which in (0, 1))
        for rows in (slice(0, HALF), slice(HALF, 2 * HALF))
    )
    x, lam = np.zeros(SIZE), np.full(SIZE, 0.1)
    first, second = np.zeros(SIZE), np.zeros(SIZE)
    for k in range(1, OUTER + 1):
        for _ in range(INNER):
            x = x - RATE * (a.T @ (expit(a @ x) - b) / len(a) + lam * x)
        weight = expit(a @ x) * (1 - expit(a @ x))
        hessian = a.T @ (weight[:, None] * a) / len(a) + np.diag(lam)
        u, v = va.T @ (expit(va @ x) - vb) / len(va), np.zeros(SIZE)
        for _ in range(ROUNDS):
            u, v = u - ETA * hessian @ u, v - ETA * x * u
        first, second = 0.9 * first + 0.1 * v, 0.999 * second + 0.001 * v * v
        step = STEP * (first / (1 - 0.9**k)) / (np.sqrt(second / (1 - 0.999**k)) + 1e-8)
        lam = np.maximum(lam - step, 1e-4)
    return {party: {"model": x, "hyper": lam, "hyper_gradient": v} for party in PARTIES}


class TestHgp(BuiltInContract):
    case = AlgorithmCase(
        spec=SPEC,
        tables={party: {"hgp": table(member)} for member, party in enumerate(PARTIES)},
        pooled=pooled,
        tolerance=1e-9,
        public={
            "parley.decentralised.v1.PushSumVector.omega": "a weight of the network",
            "parley.decentralised.v1.PushSumVector.total_omega": "a weight of the network",
        },
    )
