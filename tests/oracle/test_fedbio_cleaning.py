"""The data-cleaning claim on MNIST itself, at the hardest noise level; slow, and only where the data is."""

import os
from pathlib import Path

import numpy as np
import pytest

from parley.experiments.fedbio_cleaning import CERTAIN, FEDBIO_ACC, clean, clients, load_digits
from parley.experiments.horizontal_baselines import fedavg

DATA = Path(os.environ.get("PARLEY_DATA", Path(__file__).parents[2] / ".." / "shared" / "data"))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (DATA / "mnist").is_dir(), reason="MNIST is not there; set PARLEY_DATA to its folder"),
]


def test_at_95_percent_noise_cleaning_learns_what_fedavg_does_not_and_points_at_the_wrong_labels():
    digits = load_digits(DATA)
    parts = clients(digits, rho=0.95)
    objectives = [part.objective for part in parts]
    model = fedavg(
        objectives,
        [np.full(objective.upper_size, CERTAIN) for objective in objectives],
        np.zeros(objectives[0].lower_size),
        rounds=300,
        local_steps=5,
        gamma=0.5,
        seed=0,
    )
    assert np.mean(objectives[0].predict(model, digits.test) != digits.test_labels) >= 0.38
    cleaned = clean(parts, digits, FEDBIO_ACC)
    assert cleaned.test_error <= 0.20
    assert cleaned.auc >= 0.95


def test_each_party_validates_one_class_and_shares_no_row():
    digits = load_digits(DATA)
    parts = clients(digits, rho=0.4)
    for m, part in enumerate(parts):
        assert set(part.objective.validation_labels) == {m}
        assert len(part.objective.validation_labels) == 50
        assert part.corrupted.mean() == pytest.approx(0.4 * 0.9, abs=0.03)
