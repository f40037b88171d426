"""Rounds to a target on a9a, on a simulated clock: eight parties that never wait, one of them slow."""

import os
from pathlib import Path

import numpy as np
import pytest

from parley.experiments.asysqn_federation import OPTIMUM
from parley.experiments.asysqn_simulation import CASES, read_libsvm, rounds_to_targets, simulate, split_columns
from parley.numerics.gradient_estimators import as_features

DATA = Path(os.environ.get("PARLEY_DATA", Path(__file__).parents[3] / "shared" / "data"))
A9A = DATA / "libsvm" / "a9a.svm.xz"


@pytest.mark.skipif(not A9A.exists(), reason="a9a is not here; point PARLEY_DATA at a folder with libsvm/a9a.svm.xz")
@pytest.mark.parametrize(
    ("case", "to_1e3", "to_1e4"),
    [
        pytest.param("AsySQN-SVRG", 1000, 4000, marks=pytest.mark.slow),
        pytest.param("AsySQN-SAGA", 1300, 4500, marks=pytest.mark.slow),
        ("SynSQN-SVRG", 120, 360),
    ],
)
def test_quasi_newton_parties_reach_both_targets_on_a9a_within_the_reference_rounds(case, to_1e3, to_1e4):
    columns = split_columns(*read_libsvm(A9A, columns=123), count=8)
    watch = rounds_to_targets(CASES[case], columns, optimum=OPTIMUM, most_rounds=to_1e4)
    assert watch.reached[1e-3] <= to_1e3
    assert watch.reached[1e-4] <= to_1e4


def test_two_simulations_with_one_seed_end_with_the_same_bits_and_another_seed_with_others():
    rng = np.random.default_rng(0)
    features, labels = rng.standard_normal((300, 9)), np.where(rng.random(300) < 0.5, 1.0, -1.0)
    columns = split_columns(as_features(features), labels, count=3)
    train = CASES["AsySQN-SVRG"] | {"batch": 32, "steps": 100}

    def end(seed):
        outcome, _ = simulate(train, columns, [1.0, 1.0, 0.4], seed=seed)
        return np.concatenate([state.state.weights for state in outcome.states])

    assert np.array_equal(end(0), end(0))
    assert not np.array_equal(end(0), end(1))


def test_a_party_at_two_fifths_of_the_speed_makes_two_fifths_of_the_steps():
    rng = np.random.default_rng(0)
    features, labels = rng.standard_normal((100, 8)), np.where(rng.random(100) < 0.5, 1.0, -1.0)
    columns = split_columns(as_features(features), labels, count=4)
    train = CASES["AsySQN-SAGA"] | {"batch": 16, "steps": 700}
    outcome, _ = simulate(train, columns, [1.0, 1.0, 1.0, 0.4], jitter=0.0)
    fast, slow = np.mean([state.state.steps for state in outcome.states[:3]]), outcome.states[3].state.steps
    assert slow / fast == pytest.approx(0.4, abs=0.03)
