"""Which runs are taken for runs of 0.1.0, whose steps may have been others."""

from dataclasses import replace

import pytest

from parley.services.coordinator.earlier_runs import StepsDiffer, require_same_steps
from parley.services.coordinator.registry_tables import RunRecord
from tests.contract_suite.test_bambi import SPEC

BEGUN = RunRecord("r-1", "q-1", "r", "bambi", ("bank", "shop", "telco"), SPEC, 4, attempt=1)


def test_a_run_of_0_1_0_is_refused():
    with pytest.raises(StepsDiffer, match="r-1 began under a version"):
        require_same_steps(BEGUN)


@pytest.mark.parametrize(
    "run",
    [
        replace(BEGUN, protocol=2),
        replace(BEGUN, owner="client analyst"),  # of a build that noted no protocol yet, as 0.1.0 noted neither
        replace(BEGUN, attempt=0),
    ],
)
def test_runs_of_any_later_build_go_on(run):
    require_same_steps(run)
