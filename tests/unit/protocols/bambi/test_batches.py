"""Names of BAMBI's batches: the same rows for whoever derives them, today and in every later version."""

import numpy as np
import pytest

import parley.coordinator.bambi.problem as coordinator_bambi
from parley.protocols.bambi.batches import lower_rows, upper_rows
from parley.protocols.bambi.settings import BambiSpec
from parley.spec.rows import RowSets

SETS = RowSets(np.arange(40), np.arange(40, 60), np.arange(0))


def bambi(solver):
    lower = {"solver": solver, "batch": 5}
    return BambiSpec.model_validate({"algorithm": "bambi", "lower": lower, "upper": {"batch": 5}})


def test_the_rows_of_a_bambi_batch_stay_what_they_are():
    assert lower_rows(bambi("sgd"), SETS, 5, 3, 4).tolist() == [12, 17, 20, 29, 37]
    assert upper_rows(bambi("sgd"), SETS, 5, 3).tolist() == [45, 47, 50, 51, 53]
    assert lower_rows(bambi("newton"), SETS, 5, 0, 9).tolist() == [9, 18, 24, 30, 34]


@pytest.mark.parametrize("solver", ["sgd", "newton"])
def test_the_coordinator_charges_the_rows_that_the_parties_read(solver):
    settings = bambi(solver)
    plan = coordinator_bambi.Plan(settings, SETS, seed=5)
    for k, t in [(0, 0), (1, 0), (1, 3), (2, 1)]:
        assert plan.lower_rows(k, t).tolist() == lower_rows(settings, SETS, 5, k, t).tolist()
        assert plan.upper_rows(k).tolist() == upper_rows(settings, SETS, 5, k).tolist()
