"""LDP-DSBO keeps the contract of every algorithm; pooled, it is its two boxes written out for all agents at once."""

import numpy as np
from scipy.special import expit, softmax

from parley.privacy.laplace_noise import add_laplace
from parley.privacy.noise import KeyedNoise
from parley.testing import KEY, AlgorithmCase
from tests.contract_suite.built_in import PARTIES, BuiltInContract

STEPS, BATCH, SIZE, WEIGHT = 12, 4, 3, 0.3
HALF = STEPS * BATCH
SPEC = f"""
name: ldp-contract
seed: 3
dtype: float64
table: ldp
parties: [{", ".join(PARTIES)}]
split: {{lower: "0:{HALF}", upper: "{HALF}:{2 * HALF}", test: 0}}
train:
  algorithm: ldp_dsbo
  classes: ["0", "1"]
  epsilon: 100
  iterations: {STEPS}
  batch: {BATCH}
  weight: {WEIGHT}
  network: {{kind: fully_connected}}
  noise: {{sigma: 1.0}}
  stretch: 2
checkpoint_every: 4
"""


def records(member):
    draw = np.random.default_rng(member)
    features = draw.uniform(-0.3, 0.3, (2 * HALF, SIZE))
    return features, (features @ [1.0, -2.0, 0.5] + draw.normal(0, 0.1, 2 * HALF) > 0).astype(int)


def table(member):
    features, labels = records(member)
    columns = {f"c{index}": features[:, index] for index in range(SIZE)}
    return {"id": [f"{row:03}" for row in range(2 * HALF)], **columns, "label": labels}


def directions(records, t, state):
    """u, ∇_y g and H z − b of logistic regression with e^x as its regularisation, on the records so far."""
    (features, labels), (x, y, z) = records, state
    seen, signs = (t + 1) * BATCH, np.where(labels == 1, 1.0, -1.0)
    lower, upper = slice(0, seen), slice(HALF, HALF + seen)

    def slopes(part):
        return expit(-signs[part] * (features[part] @ y))

    gradient = -(signs[lower] * slopes(lower)) @ features[lower] / seen
    curvature = features[lower].T @ np.diag(slopes(lower) * (1 - slopes(lower))) @ features[lower] / seen
    b = -(signs[upper] * slopes(upper)) @ features[upper] / seen
    return -np.exp(x) * y * z, gradient + np.exp(x) * y, curvature @ z + np.exp(x) * z - b


def pooled(run_id):
    """Every agent mixes its neighbours' noised states with its own clear one, and steps; then into its box."""
    states, noise, others = np.zeros((3, 3, SIZE)), KeyedNoise(KEY), np.full((3, 3), WEIGHT) - WEIGHT * np.eye(3)
    for t in range(STEPS):
        lengths = [0.01 / (t + 1) ** 0.95, 6.0 / (t + 1) ** 0.87, 0.5 / (t + 1) ** 0.75]
        scales = [1 / np.sqrt(2) * (t + 1.0) ** -rate for rate in (0.8, 0.76, 0.6)]  # to the bit: noise goes by it
        noised = np.array(
            [[add_laplace(agent[v], scales[v], noise, run_id, t, "xyz"[v]) for v in range(3)] for agent in states]
        )
        mixed = states * (1 - 2 * WEIGHT) + np.einsum("ij,jvk->ivk", others, noised)
        steps = [directions(records(member), t, state) for member, state in enumerate(states)]
        states = mixed - np.array(lengths)[:, None] * np.array(steps)
        boxes = np.array([[-8.0, -5.0], [-30.0, 30.0], [-4.0, 4.0]])
        states = np.clip(states, boxes[:, :1], boxes[:, 1:])
    return {party: {"x": x, "y": y, "z": z} for party, (x, y, z) in zip(PARTIES, states, strict=True)}


class TestLdpDsbo(BuiltInContract):
    case = AlgorithmCase(
        spec=SPEC,
        tables={party: {"ldp": table(member)} for member, party in enumerate(PARTIES)},
        pooled=pooled,
        tolerance=1e-9,
    )


CLASSES = 3
SOFTMAX = SPEC
for old, new in (
    ("name: ldp", "name: ldp-softmax"),
    ("table: ldp", "table: ldp-softmax"),
    ('"0", "1"', '"0", "1", "2"'),
    ("sigma: 1.0", "sigma: 4.0"),
):
    SOFTMAX = SOFTMAX.replace(old, new)


def softmax_records(member):
    features = records(member)[0]
    return features, (features @ np.array([[1.0, -2.0, 0.5], [-1.0, 1.0, 2.0], [0.5, 0.5, -2.0]])).argmax(axis=1)


def softmax_directions(records, t, state):
    """The same with a row of y and z for each class; x has one coefficient for each column."""
    (features, labels), (x, y, z) = records, state
    seen = (t + 1) * BATCH
    lower, upper, weights = slice(0, seen), slice(HALF, HALF + seen), y.reshape(CLASSES, SIZE)

    def residuals(part):
        return softmax(features[part] @ weights.T, axis=1) - np.eye(CLASSES)[labels[part]]

    hessian = np.diag(np.tile(np.exp(x), CLASSES))
    for row in features[lower]:
        p = softmax(weights @ row)
        hessian += np.kron(np.diag(p) - np.outer(p, p), np.outer(row, row)) / seen
    gradient = (residuals(lower).T @ features[lower]).ravel() / seen + np.tile(np.exp(x), CLASSES) * y
    b = (residuals(upper).T @ features[upper]).ravel() / seen
    return -np.exp(x) * (y * z).reshape(CLASSES, SIZE).sum(axis=0), gradient, hessian @ z - b


def softmax_pooled(run_id):
    """As `pooled`, with vectors of two lengths."""
    noise, boxes = KeyedNoise(KEY), {"x": (-8.0, -5.0), "y": (-30.0, 30.0), "z": (-4.0, 4.0)}
    sizes = {"x": SIZE, "y": CLASSES * SIZE, "z": CLASSES * SIZE}
    states = [{name: np.zeros(size) for name, size in sizes.items()} for _ in PARTIES]
    for t in range(STEPS):
        lengths = {"x": 0.01 / (t + 1) ** 0.95, "y": 6.0 / (t + 1) ** 0.87, "z": 0.5 / (t + 1) ** 0.75}
        rates = {"x": 0.8, "y": 0.76, "z": 0.6}
        after = []
        for member, own in enumerate(states):
            found = dict(zip("xyz", softmax_directions(softmax_records(member), t, own.values()), strict=True))
            after.append({})
            for name, (low, high) in boxes.items():
                scale = 4 / np.sqrt(2) * (t + 1.0) ** -rates[name]
                others = [
                    add_laplace(other[name], scale, noise, run_id, t, name)
                    for index, other in enumerate(states)
                    if index != member
                ]
                mixed = own[name] * (1 - 2 * WEIGHT) + WEIGHT * sum(others)
                after[member][name] = np.clip(mixed - lengths[name] * found[name], low, high)
        states = after
    return dict(zip(PARTIES, states, strict=True))


def softmax_table(member):
    return table(member) | {"label": softmax_records(member)[1]}


class TestLdpDsboWithThreeClasses(BuiltInContract):
    case = AlgorithmCase(
        spec=SOFTMAX,
        tables={party: {"ldp-softmax": softmax_table(member)} for member, party in enumerate(PARTIES)},
        pooled=softmax_pooled,
        tolerance=1e-9,
    )
    # Messages and checkpoints are those of two classes: wrong ones and lost processes are tried there.
    test_a_changed_message_is_answered_or_refused_by_name = None
    test_a_malformed_contribution_ends_the_attempt_by_name_and_the_run_resumes = None
    test_malformed_instructions_are_refused_and_the_session_goes_on = None
    test_killed_and_resumed_it_ends_with_the_same_bits = None
