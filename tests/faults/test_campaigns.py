"""A quick, seeded part of every campaign. Those with real processes are marked slow; `make torture` runs them all."""

import pytest

from tests.faults.disturbances import SCENARIOS
from tests.faults.fuzz_inputs import input_campaign
from tests.faults.fuzz_services import fuzz_campaign
from tests.faults.kills import kill_campaign


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_runs_with_a_random_kill_end_with_the_bits_and_the_ledger_of_undisturbed_ones(tmp_path):
    tally = kill_campaign(tmp_path, kills=20, seed=1)
    assert tally.failures == []
    assert tally.counts["kills"] == 20
    assert tally.counts["runs resumed"] > 0, "no kill hit a run: choose another seed"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_services_answer_or_refuse_by_name_whatever_any_role_sends(tmp_path):
    tally = fuzz_campaign(tmp_path, messages=500, seed=1)
    assert tally.failures == []
    assert tally.counts["refused"] > 100


def test_decoders_and_the_spec_parser_take_or_refuse_any_input():
    assert input_campaign(messages=2000, specs=200, seed=1).failures == []


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_a_failure_is_survived_and_leaves_the_same_bits(stage, scenario):
    scenario(stage)
