"""BAMBI's phases: whole wherever a run passes through them, and closed to a coordinator that is out of step."""

from typing import get_args

import numpy as np
import pytest

import parley.party.bambi.steps as party
from parley.coordinator.bambi.rounds import BilevelRounds
from parley.party.bambi.phases import Phase
from parley.protocols.bambi.messages import (
    Coefficients,
    CurvatureForward,
    CurvatureStep,
    DirectionalForward,
    Gradient,
    LowerForward,
    RowsForward,
    UpperForward,
)
from tests.oracle.test_bambi_pooled import federation, settings_for

SGD = {"solver": "sgd", "steps": 2, "batch": 8, "warmup_steps": 1, "final_steps": 1}
NEWTON = {"solver": "newton", "steps": 2, "warmup_steps": 1}
RUNS = [("implicit", NEWTON), ("implicit", SGD), ("zeroth_order", SGD), ("zeroth_order_local", SGD)]


def run_of(mode, lower):
    """A block of one party, and its state after each outcome and each ask of a run of two iterations."""
    settings = settings_for(
        mode, lower=lower, upper={"steps": 2}, implicit={"rounds": 2, "newton_rounds": 2, "tolerance": 0.0}
    )
    problem, blocks = federation(settings, 2)
    states, seen = [party.start(block) for block in blocks], []
    generator = BilevelRounds(problem).rounds(0, lambda report: None)
    current = next(generator)
    while True:
        addends = []
        for m, block in enumerate(blocks):
            if current.outcome is not None:
                states[m] = party.apply(block, states[m], current.outcome)
                seen.append(states[m])
            states[m], addend = party.contribute(block, states[m], current.ask)
            seen.append(states[m])
            addends.append(addend)
        try:
            current = generator.send(sum(addends))
        except StopIteration:
            return blocks[0], seen


def in_phase(name, mode, lower):
    block, seen = run_of(mode, lower)
    return block, next(state for state in seen if type(state.phase).__name__ == name)


def fields(value):
    """A phase's fields, with those of the phases in it."""
    if isinstance(value, tuple):
        for part in value:
            yield part
            yield from fields(part)


def test_a_run_passes_every_phase_and_no_field_is_ever_missing():
    states = [state for mode, lower in RUNS for state in run_of(mode, lower)[1]]
    assert {type(state.phase) for state in states} == set(get_args(Phase))
    assert not any(part is None for state in states for part in fields(state.phase))


@pytest.mark.parametrize(
    ("phase", "mode", "lower", "outcome"),
    [
        ("Ready", "zeroth_order", SGD, Gradient(theta=np.zeros((4, 8, 2)))),
        ("DescentAsked", "zeroth_order", SGD, Gradient(vartheta=np.zeros((20, 2)))),
        ("DescentAsked", "implicit", SGD, CurvatureStep(np.zeros((8, 2)), 1.0, 0.0)),
        ("Descended", "zeroth_order", SGD, Gradient(theta=np.zeros((4, 8, 2)))),
        ("UpperAsked", "zeroth_order", SGD, Gradient(theta=np.zeros((1, 20, 2)))),
        ("UpperAsked", "zeroth_order", SGD, Coefficients((0.0, 0.0, 0.0))),
        ("DirectionsAsked", "zeroth_order", SGD, Gradient(vartheta=np.zeros((20, 2)))),
        # A solution belongs to the adjoint system, and the first system of a Newton run is not that one.
        ("CurvatureAsked", "implicit", NEWTON, CurvatureStep(np.zeros((40, 2)), 1.0, 0.0, np.zeros((40, 2)))),
    ],
)
def test_an_outcome_that_the_party_does_not_wait_for_is_refused(phase, mode, lower, outcome):
    block, state = in_phase(phase, mode, lower)
    with pytest.raises(party.OutcomeUnexpected, match=f"phase {phase}: coordinator and party are out of step"):
        party.apply(block, state, outcome)


@pytest.mark.parametrize(
    ("phase", "mode", "lower", "ask"),
    [
        ("Ready", "zeroth_order", SGD, LowerForward(1, 1)),
        ("Ready", "implicit", NEWTON, LowerForward(1, 1)),
        ("Ready", "zeroth_order", SGD, UpperForward(1)),
        ("Ready", "zeroth_order", SGD, DirectionalForward(1)),
        ("Ready", "implicit", NEWTON, CurvatureForward(1, "newton", 0)),
        # The first descent is the warm-up, which perturbs nothing: there is no direction to differentiate along.
        ("Descended", "zeroth_order", SGD, UpperForward(1)),
        ("Descended", "implicit", SGD, UpperForward(1)),
        ("Linearised", "implicit", SGD, CurvatureForward(1, "newton", 0)),
        ("Linearised", "implicit", NEWTON, CurvatureForward(1, "adjoint", 0)),
        ("Differentiated", "implicit", SGD, DirectionalForward(1)),
        ("Differentiated", "zeroth_order", SGD, CurvatureForward(1, "adjoint", 0)),
    ],
)
def test_an_ask_that_needs_an_earlier_round_is_refused(phase, mode, lower, ask):
    block, state = in_phase(phase, mode, lower)
    with pytest.raises(party.OutcomeUnexpected, match=f"phase {phase}: coordinator and party are out of step"):
        party.contribute(block, state, ask)


@pytest.mark.parametrize(("mode", "lower"), RUNS)
def test_rows_can_be_asked_for_in_every_phase_and_end_it(mode, lower):
    block, seen = run_of(mode, lower)
    for state in seen:
        after, h = party.contribute(block, state, RowsForward("lower", 0, 5))
        assert (after.x is state.x, after.y is state.y, after.phase) == (True, True, party.READY)
        assert h.shape == (5 * (block.outputs - 1),)
