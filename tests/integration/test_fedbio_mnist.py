"""Ten parties clean MNIST as real processes; slow, and only where the data is."""

import os
from pathlib import Path

import pytest

from parley.experiments.fedbio_cleaning import FEDBIO_ACC, ROUNDS, clean, clients, load_digits
from parley.experiments.fedbio_federation import clean_by_processes

DATA = Path(os.environ.get("PARLEY_DATA", Path(__file__).parents[2] / ".." / "shared" / "data"))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not (DATA / "mnist").is_dir(), reason="MNIST is not there; set PARLEY_DATA to its folder"),
]


def test_under_pairwise_masks_ten_processes_find_what_the_simulation_finds(tmp_path):
    digits = load_digits(DATA)
    parts = clients(digits, rho=0.95)
    cleaned, metrics = clean_by_processes(parts, digits, tmp_path)
    assert cleaned.test_error <= 0.20
    assert cleaned.auc >= 0.95
    evaluations_checkpoints_and_end = ROUNDS // 50 + (ROUNDS - 1) // 100 + 1
    assert metrics["rounds"] == 2 * ROUNDS + evaluations_checkpoints_and_end
    simulated = clean(parts, digits, FEDBIO_ACC)
    assert cleaned.test_error == pytest.approx(simulated.test_error, abs=1e-3)
    assert cleaned.auc == pytest.approx(simulated.auc, abs=1e-4)
