"""The deterministic golden run of AsySQN: three parties, full batch, synchronous, on breast cancer."""

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer

from parley.numerics.gradient_estimators import Estimator, as_features
from parley.numerics.lbfgs import Damping, DampingMode
from parley.numerics.linear_losses import Logistic, slopes_at, slopes_from_derivative
from parley.party.asysqn.steps import (
    PartyData,
    Schedule,
    Settings,
    partial_theta,
    propose_batch,
    snapshot_due,
    squared_norm,
    start,
    take_snapshot,
    update,
)

COMMON = {1: 0.224333856516, 2: 0.201472743841, 5: 0.088892967873}
GOLDEN = {
    DampingMode.FLOOR: COMMON | {10: 0.059222309838, 20: 0.051180575244, 50: 0.046449869799},
    DampingMode.EQ12: COMMON | {10: 0.059281204058, 20: 0.051594026243, 50: 0.047031558552},
}
REGULARISATION = 1e-4
LOSS = Logistic()


def training_rows():
    raw = load_breast_cancer()
    features = (raw.data - raw.data.mean(axis=0)) / raw.data.std(axis=0)
    train = np.random.default_rng(0).permutation(len(features))[113:]
    return features[train], np.where(raw.target[train] == 1, 1.0, -1.0)


def objectives(mode, *, estimator=Estimator.SGD, labels_at_coordinator=False, rounds=50):
    features, labels = training_rows()
    parties = [PartyData(f"p{m}", as_features(features[:, 10 * m : 10 * m + 10])) for m in range(3)]
    settings = Settings(
        estimator=estimator,
        schedule=Schedule.SYNCHRONOUS,
        step_size=0.5,
        batch_size=len(labels),
        regularisation=REGULARISATION,
        damping=Damping(memory=5, mode=mode),
        pair_every=1,
    )
    states = [start(data) for data in parties]
    found = []
    for _ in range(rounds):
        if snapshot_due(settings, states[0]):
            theta = sum(partial_theta(d, s) for d, s in zip(parties, states, strict=True))
            slopes = LOSS.derivative(theta, labels)
            states = [take_snapshot(settings, d, s, slopes) for d, s in zip(parties, states, strict=True)]
        rows = propose_batch(settings, parties[0], states[0])
        theta = sum(partial_theta(d, s, rows) for d, s in zip(parties, states, strict=True))
        if labels_at_coordinator:
            slopes = slopes_from_derivative(LOSS, LOSS.derivative(theta, labels[rows]))
        else:
            slopes = slopes_at(LOSS, theta, labels[rows])
        states = [update(settings, d, s, rows, slopes) for d, s in zip(parties, states, strict=True)]
        theta = sum(partial_theta(d, s) for d, s in zip(parties, states, strict=True))
        penalty = REGULARISATION / 2 * sum(map(squared_norm, states))
        found.append(float(LOSS.value(theta, labels).mean()) + penalty)
    return found


@pytest.mark.parametrize("mode", list(DampingMode))
def test_the_golden_run_is_matched_in_both_damping_modes(mode):
    found = objectives(mode)
    for k, expected in GOLDEN[mode].items():
        assert found[k - 1] == pytest.approx(expected, abs=1e-10 if k <= 20 else 1e-7)


@pytest.mark.parametrize("estimator", [Estimator.SVRG, Estimator.SAGA])
def test_on_the_full_batch_variance_reduction_changes_nothing(estimator):
    assert objectives(DampingMode.FLOOR, estimator=estimator, rounds=20) == pytest.approx(
        objectives(DampingMode.FLOOR, rounds=20), abs=1e-10
    )


def test_a_party_without_labels_steps_as_one_with_labels():
    with_labels = objectives(DampingMode.FLOOR, rounds=20)
    without = objectives(DampingMode.FLOOR, rounds=20, labels_at_coordinator=True)
    assert without == pytest.approx(with_labels, abs=1e-10)
