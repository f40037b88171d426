"""A quick, seeded part of every campaign; `make torture` runs them at full length."""

import pytest

from tests.faults.disturbances import SCENARIOS
from tests.faults.fuzz_inputs import input_campaign
from tests.faults.fuzz_services import fuzz_campaign
from tests.faults.kills import kill_campaign

QUICK = ("repeated_skipped_and_swapped_messages", "damaged_checkpoint", "changed_ledger", "full_disk")
"""Scenarios that restart at most one process; the others are marked slow."""

KILLS = 8
"""`make torture` kills more often."""


@pytest.mark.timeout(1800)
def test_runs_with_a_random_kill_end_with_the_bits_and_the_ledger_of_undisturbed_ones(tmp_path):
    tally = kill_campaign(tmp_path, kills=KILLS, seed=1)
    assert tally.failures == []
    assert tally.counts["kills"] == KILLS
    assert tally.counts["runs resumed"] > KILLS, "most kills hit their runs"


@pytest.mark.timeout(900)
def test_services_answer_or_refuse_by_name_whatever_any_role_sends(tmp_path):
    tally = fuzz_campaign(tmp_path, messages=500, seed=1)
    assert tally.failures == []
    assert tally.counts["refused"] > 100
    assert tally.counts["sessions found unchanged"] > 0


def test_decoders_and_the_spec_parser_take_or_refuse_any_input():
    assert input_campaign(messages=2000, specs=200, seed=1).failures == []


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(scenario, id=scenario.__name__, marks=() if scenario.__name__ in QUICK else pytest.mark.slow)
        for scenario in SCENARIOS
    ],
)
def test_a_failure_is_survived_and_leaves_the_same_bits(stage, scenario):
    scenario(stage)
