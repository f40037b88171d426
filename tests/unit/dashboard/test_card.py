"""What a model card says: what crossed, who left, what was opened and measured."""

import pytest

from parley.dashboard.card import card_html, make_card
from parley.dashboard.crossings import crossings
from parley.dashboard.views import EventView, LedgerView, RunView
from parley.spec.events import RunData, RunEvaluation, RunParty, RunStateChange, RunTotals, RunWarning, newest

SPEC = """
name: x
parties: [a, b, c, d]
train: {algorithm: fedbio, task: {kind: data_cleaning, classes: [sick, well], checked: 0.1}}
privacy: {aggregation: {recovery: false}}
"""


def card(*bodies):
    """The card of a run to which these things happened; their sentences say nothing."""
    events = [EventView(i, "", body.kind, "…", i, body.metrics, body) for i, body in enumerate(bodies)]
    metrics = {name: value for event in events for name, value in event.metrics.items()}
    fields = dict.fromkeys(RunView.__dataclass_fields__, "")
    run = RunView(**fields | {"spec_yaml": SPEC, "parties": list("abcd"), "metrics": metrics, "attempt": 1, "step": 1})
    return make_card(run, events, LedgerView([], [], 0.0, 0.0, 0.0, None, ""), [], "1")


@pytest.mark.parametrize("recovers", [False, True])
def test_shares_cross_only_in_runs_with_recovery(recovers):
    told = crossings(SPEC.replace("false", str(recovers).lower()))
    fields = [crossing.field for statement in told for crossing in statement.fields]
    shares = {"aggregation.v1.SealedShares.sealed", "aggregation.v1.DisclosedShare.share"}
    assert shares & set(fields) == (shares if recovers else set())


def test_a_party_that_left_is_named_with_its_round():
    made = card(RunStateChange(attempt=1), RunParty("c", "left", goes_on=True, round=17, remaining=3))
    assert made["left_out"] == [{"party": "c", "round": 17}]
    assert "c at round 17" in card_html(made)


def test_a_run_that_was_warned_of_says_so_with_what_to_change():
    made = card(
        RunStateChange(attempt=1), RunWarning("oscillates", "the loss jumps", "halve train.upper.optimiser.step")
    )
    assert made["warnings"] == ["the loss jumps: halve train.upper.optimiser.step"]
    assert "halve train.upper.optimiser.step" in card_html(made)
    assert "Warnings" not in card_html(card(RunStateChange(attempt=1)))


def test_a_party_that_was_taken_back_is_not():
    made = card(RunParty("c", "left", goes_on=True, round=17), RunStateChange(attempt=2, from_step=10))
    assert made["left_out"] == []
    assert "Left during the run" not in card_html(made)


def test_a_party_that_was_lost_or_warned_has_not_left():
    made = card(RunParty("a", "lost", "gone"), RunParty("b", "warned", "odd"), RunStateChange(reason="gave up"))
    assert made["left_out"] == []


def test_the_newest_table_of_each_party_is_shown():
    first, second = RunData(90, "a", 8, "ab" * 32), RunData(91, "a", 8, "cd" * 32)
    made = card(first, RunData(90, "b", 7, "ab" * 32), RunData(90, alignment="customers"), second)
    assert made["data"] == [
        {"party": "a", "rows": 91, "columns": 8, "id_sha256": "cd" * 32},
        {"party": "b", "rows": 90, "columns": 7, "id_sha256": "ab" * 32},
    ]


def test_curves_hold_what_was_measured_and_not_the_work():
    made = card(
        RunEvaluation(RunTotals(rounds=3), {"test accuracy": 0.5}),
        RunEvaluation(RunTotals(rounds=6), {"test accuracy": 0.75}),
    )
    assert made["curves"] == {"test accuracy": [(0, 0.5), (1, 0.75)]}
    assert made["crossed"]["totals"]["rounds"] == 6.0


def test_details_of_held_out_rows_are_a_matrix_and_curves_and_no_metrics_of_their_own():
    measured = {"test auc": 0.8, "test auc/low": 0.7, "test auc/high": 0.9, "test threshold": 0.3}
    measured |= {"test confusion/no/no": 60.0, "test confusion/no/yes": 10.0}
    measured |= {"test bands/0.30/rows": 60.0, "test bands/0.30/mean": 0.1, "test bands/0.30/positives": 6.0}
    measured |= {"test bands/1.00/rows": 40.0, "test bands/1.00/mean": 0.6, "test bands/1.00/positives": 20.0}
    made = card(RunEvaluation(RunTotals(), measured))
    assert set(made["metrics"]) == {"test auc", "test threshold"}
    assert made["quality"]["intervals"] == [("auc", 0.7, 0.9)]
    assert made["quality"]["curves"]["ROC"] == [(0.0, 0.0), (20 / 74, 20 / 26), (1.0, 1.0)]
    assert made["quality"]["curves"]["precision and recall"] == [(20 / 26, 0.5), (1.0, 0.26)]
    assert made["quality"]["curves"]["calibration"] == [(0.1, 0.1), (0.6, 0.5)]
    page = card_html(made)
    assert "0.7 to 0.9" in page
    assert "(above 0.3)" in page
    assert page.count("<svg") == 3


def test_an_evaluation_leaves_no_details_of_the_one_before():
    before = {"test auc": 0.6, "test bands/0.10/rows": 40.0, "bytes": 1.0}
    assert newest(before, {"test auc": 0.7, "test bands/0.20/rows": 40.0}) == {
        "test auc": 0.7,
        "test bands/0.20/rows": 40.0,
        "bytes": 1.0,
    }
    assert newest(before, {"upper loss": 0.5}) == before | {"upper loss": 0.5}
