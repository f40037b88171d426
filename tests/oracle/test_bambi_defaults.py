"""A spec that names the task and the mode, beside one level (`parley reproduce bambi-sweep` has more tables)."""

import pytest

from parley.experiments.bambi_sweep import Task, accuracy, coupled

LOST = 0.01
"""How far below one level no mode may end."""


@pytest.fixture(scope="module")
def one_level():
    return accuracy(Task(coupled), "joint", 2, 1)["accuracy"]


@pytest.mark.parametrize("mode", ["implicit", "local"])
def test_with_default_settings_no_mode_loses_to_one_level(mode, one_level):
    """`implicit` with the system of the adjoint lost three points here."""
    assert accuracy(Task(coupled), mode, 2, 1)["accuracy"] >= one_level - LOST
