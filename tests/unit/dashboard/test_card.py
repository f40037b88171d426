"""What a model card says of recovery: what crossed for it, and who left."""

import pytest

from parley.dashboard.card import card_html, make_card
from parley.dashboard.crossings import crossings
from parley.dashboard.views import EventView, LedgerView, RunView

SPEC = """
name: x
parties: [a, b, c, d]
train: {algorithm: fedbio, task: {kind: data_cleaning, classes: [sick, well], checked: 0.1}}
privacy: {aggregation: {recovery: false}}
"""


def card(*messages):
    events = [EventView(i, "", kind, message, i, {}) for i, (kind, message) in enumerate(messages)]
    fields = dict.fromkeys(RunView.__dataclass_fields__, "")
    run = RunView(**fields | {"spec_yaml": SPEC, "parties": list("abcd"), "metrics": {}, "attempt": 1, "step": 1})
    return make_card(run, events, LedgerView([], [], 0.0, 0.0, 0.0, None, ""), [], "1")


@pytest.mark.parametrize("recovers", [False, True])
def test_shares_cross_only_in_runs_with_recovery(recovers):
    fields = [crossing.field for crossing in crossings(SPEC.replace("false", str(recovers).lower()))]
    shares = {"aggregation.v1.SealedShares.sealed", "aggregation.v1.DisclosedShare.share"}
    assert shares & set(fields) == (shares if recovers else set())


def test_a_party_that_left_is_named_with_its_round():
    told = card(("state", "started at iteration 0"), ("party", "c left at round 17; going on with 3"))
    assert told["left_out"] == [{"party": "c", "round": 17}]
    assert "c at round 17" in card_html(told)


def test_a_party_that_was_taken_back_is_not():
    told = card(("party", "c left at round 17; going on with 3"), ("state", "resumed from iteration 10"))
    assert told["left_out"] == []
    assert "Left during the run" not in card_html(told)
