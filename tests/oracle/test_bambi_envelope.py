"""`implicit.envelope`: where both levels have the same rows, the direct term alone against the pooled lower optimum."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from pydantic import ValidationError

import parley.party.bambi.steps as party_bambi
from parley.coordinator.bambi.program import BambiProgram
from parley.party.bambi.phases import Linearised, UpperAsked
from parley.party.bambi.role import BambiRole
from parley.privacy.release import OutcomeGate
from parley.protocols.bambi.codec import PROTOCOL
from parley.protocols.bambi.settings import BambiSpec
from parley.simulation import Simulation
from parley.spec.rows import RowSets
from tests.oracle.pooled_bambi import relative_error
from tests.oracle.test_bambi_pooled import federation, pooled, settings_for, train

SAME = RowSets(np.arange(40), np.arange(40), np.arange(0))
ENVELOPE = {"envelope": True}


def on_rows(rows, **implicit):
    problem, blocks = federation(settings_for("implicit", implicit=implicit), 3)
    if rows is None:
        return problem, blocks
    plan = replace(problem.plan, rows=rows)
    return replace(problem, plan=plan), [replace(block, rows=rows) for block in blocks]


def test_x_steps_along_the_slope_of_the_lower_optimum():
    problem, blocks = on_rows(SAME, **ENVELOPE)
    before = [party_bambi.start(block) for block in blocks]
    after = train(problem, blocks)
    moved = [b.x - a.x for b, a in zip(before, after, strict=True)]
    oracle = pooled(problem, blocks, before)
    zero = [torch.from_numpy(state.y) for state in before]
    direct, _ = oracle.upper_gradients(oracle.solve_lower(1, zero), 1)
    assert relative_error(moved, direct) < 1e-6

    def optimum(distance):
        oracle.x = [b.x + distance * way for b, way in zip(before, moved, strict=True)]
        return float(oracle.g(oracle.x, oracle.solve_lower(1, zero), SAME.lower))

    slope = (optimum(1e-5) - optimum(-1e-5)) / 2e-5
    assert slope == pytest.approx(sum(float(way @ way) for way in moved), rel=1e-5)


def test_the_rounds_of_the_adjoint_system_are_spared():
    asked = []
    for implicit in ({}, ENVELOPE):
        problem, blocks = on_rows(SAME, rounds=4, tolerance=0.0, **implicit)
        asked.append(rounds_of(problem, blocks))
    assert asked[0] - asked[1] == 4 * problem.settings.upper.steps


def rounds_of(problem, blocks):
    program = BambiProgram(problem, OutcomeGate(lambda _: True))
    return Simulation(PROTOCOL, program, [BambiRole(block) for block in blocks]).run().rounds


def test_on_different_rows_no_bit_changes():
    with_it, without = (train(*on_rows(None, **implicit)) for implicit in (ENVELOPE, {}))
    for one, other in zip(with_it, without, strict=True):
        assert torch.equal(one.x, other.x)
        assert np.array_equal(one.y, other.y)


def test_a_scale_that_is_no_share_is_refused():
    _, blocks = on_rows(SAME, **ENVELOPE)
    state = party_bambi.start(blocks[0])
    phase = UpperAsked(1, Linearised(None, None), torch.zeros(40, 3), state.x, SAME.upper)
    with pytest.raises(party_bambi.OutcomeMisshapen, match="at most"):
        party_bambi._upper_gradient(blocks[0], state._replace(phase=phase), phase, np.zeros((40, 2)), 1.5)


@pytest.mark.parametrize(
    ("train", "envelope"),
    [
        ({}, True),
        ({"implicit": {"newton_rounds": 3}}, True),
        ({"implicit": {"rounds": 4}}, False),
        ({"lower": {"solver": "sgd"}}, False),
        ({"problem": "hyper_parameters"}, False),
        ({"problem": "joint"}, False),
        ({"hypergradient": "local"}, False),
    ],
)
def test_only_a_spec_that_leaves_the_system_to_us_gets_it(train, envelope):
    assert BambiSpec.model_validate({"algorithm": "bambi", **train}).implicit.envelope is envelope


def test_it_goes_with_newton_s_steps_only():
    with pytest.raises(ValidationError, match="Newton"):
        BambiSpec.model_validate({"algorithm": "bambi", "lower": {"solver": "sgd"}, "implicit": ENVELOPE})
