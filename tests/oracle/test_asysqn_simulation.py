"""Rounds to a target on a9a, on a simulated clock: eight parties that never wait, one of them slow."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from parley.experiments.asysqn_simulation import (
    A9A_OPTIMUM,
    CASES,
    asynchronous_rounds,
    read_libsvm,
    rounds_to_targets,
    split_columns,
)
from parley.numerics.gradient_estimators import as_features

DATA = Path(os.environ.get("PARLEY_DATA", Path(__file__).parents[3] / "shared" / "data"))
A9A = DATA / "libsvm" / "a9a.svm.xz"


@pytest.mark.skipif(not A9A.exists(), reason="a9a is not here; point PARLEY_DATA at a folder with libsvm/a9a.svm.xz")
@pytest.mark.parametrize(
    ("case", "to_1e3", "to_1e4"), [("AsySQN-SVRG", 1000, 4000), ("AsySQN-SAGA", 1300, 4500), ("SynSQN-SVRG", 120, 360)]
)
def test_quasi_newton_parties_reach_both_targets_on_a9a_within_the_reference_rounds(case, to_1e3, to_1e4):
    federation = split_columns(*read_libsvm(A9A, columns=123), count=8)
    watch = rounds_to_targets(CASES[case], federation, optimum=A9A_OPTIMUM, most_rounds=to_1e4)
    assert watch.reached[1e-3] <= to_1e3
    assert watch.reached[1e-4] <= to_1e4


def test_two_simulations_with_one_seed_end_with_the_same_bits_and_another_seed_with_others():
    rng = np.random.default_rng(0)
    features, labels = rng.standard_normal((300, 9)), np.where(rng.random(300) < 0.5, 1.0, -1.0)
    federation = split_columns(as_features(features), labels, count=3)
    settings = replace(CASES["AsySQN-SVRG"], batch_size=32)

    def end(seed):
        steps = asynchronous_rounds(replace(settings, seed=seed), federation, [1.0, 1.0, 0.4])
        *_, states = (next(steps) for _ in range(100))
        return np.concatenate([state.weights for state in states])

    assert np.array_equal(end(0), end(0))
    assert not np.array_equal(end(0), end(1))


def test_a_party_at_two_fifths_of_the_speed_makes_two_fifths_of_the_steps():
    rng = np.random.default_rng(0)
    features, labels = rng.standard_normal((100, 8)), np.where(rng.random(100) < 0.5, 1.0, -1.0)
    federation = split_columns(as_features(features), labels, count=4)
    steps = asynchronous_rounds(replace(CASES["AsySQN-SAGA"], batch_size=16), federation, [1.0, 1.0, 1.0, 0.4])
    *_, states = (next(steps) for _ in range(700))
    fast, slow = np.mean([state.steps for state in states[:3]]), states[3].steps
    assert slow / fast == pytest.approx(0.4, abs=0.03)
