"""Bodies of events survive the registry's JSON and the wire."""

import math

import pytest

from parley.contracts.run.v1 import run_pb2
from parley.services.wire.event_codec import body_of, set_body
from parley.spec.events import (
    BODIES,
    RunData,
    RunEvaluation,
    RunParty,
    RunPrivacy,
    RunProgress,
    RunStateChange,
    RunTotals,
    RunWarning,
    from_json,
    measured,
    to_json,
)

TOTALS = RunTotals(12, 1 << 40, 7, 2.5)
EXAMPLES = [
    RunStateChange(attempt=2, from_step=40),
    RunStateChange(reason="bank refused", totals=TOTALS),
    RunStateChange(left_out=("bank", "shop"), totals=TOTALS),
    RunProgress(TOTALS, checkpoint=10),
    RunProgress(TOTALS, measured={"upper loss": 0.25}),
    RunEvaluation(TOTALS, {"test accuracy": 0.75, "test loss": math.inf}),
    RunPrivacy(math.inf, 1e-6, math.inf, 3, 2, "ab" * 32),
    RunParty("bank", "lost", "gone", goes_on=True),
    RunParty("bank", "left", goes_on=True, round=17, remaining=3),
    RunParty("bank", "warned", "column 3 is constant"),
    RunData(100, "bank", 8, "cd" * 32),
    RunData(90, alignment="customers"),
    RunWarning("oscillates", "the loss jumps", "halve the step"),
]


@pytest.mark.parametrize("body", EXAMPLES, ids=repr)
def test_a_body_comes_back_as_it_was(body):
    assert from_json(body.kind, to_json(body)) == body
    event = run_pb2.RunEvent()
    set_body(event, body)
    assert body_of(run_pb2.RunEvent.FromString(event.SerializeToString())) == body


def test_every_body_is_among_the_examples():
    assert {type(body) for body in EXAMPLES} == set(BODIES.values())


def test_every_body_of_the_message_is_written_and_read():
    arms = set()
    for body in EXAMPLES:
        event = run_pb2.RunEvent()
        set_body(event, body)
        arms.add(event.WhichOneof("body"))
    assert arms == {field.name for field in run_pb2.RunEvent.DESCRIPTOR.oneofs_by_name["body"].fields}


def test_an_event_of_0_1_0_has_no_body_and_shows_what_it_measured():
    event = run_pb2.RunEvent(kind="evaluation")
    set_body(event, None)
    assert body_of(event) is None
    assert measured(None, {"test accuracy": 0.5, "rounds": 3.0, "bytes": 9.0}) == {"test accuracy": 0.5}


def test_totals_are_not_among_what_was_measured():
    body = RunEvaluation(TOTALS, {"test accuracy": 0.75})
    assert measured(body, body.metrics) == {"test accuracy": 0.75}
    assert body.metrics == {
        "test accuracy": 0.75,
        "rounds": 12.0,
        "bytes": float(1 << 40),
        "label releases": 7.0,
        "seconds": 2.5,
    }
