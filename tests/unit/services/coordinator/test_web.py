"""What a program learns over HTTP of a refusal."""

import pytest

from parley.dashboard.views import Refused
from parley.services.coordinator.fleet import PartyLost, PartyRefused
from parley.services.coordinator.web import refusals_as_http


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (PartyRefused("bank", "ROWS_DIFFER", "no such row"), 409, "ROWS_DIFFER"),
        (PartyRefused("bank", "TOO_MANY_ROWS_ASKED", "ask more slowly"), 429, "TOO_MANY_ROWS_ASKED"),
        (PartyLost("bank", "is away"), 503, "PARTY_UNREACHABLE"),
    ],
)
def test_a_refusal_has_the_status_that_programs_act_on(error, status, reason):
    with pytest.raises(Refused) as refused, refusals_as_http():
        raise error
    assert (refused.value.status, refused.value.reason) == (status, reason)
