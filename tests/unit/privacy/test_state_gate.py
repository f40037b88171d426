"""The gate of LDP-DSBO: what it charges, what it refuses, and what it never sends twice."""

from dataclasses import replace

import numpy as np
import pytest

from parley.party.ldp_dsbo.objectives import Bounds
from parley.party.ldp_dsbo.steps import LdpDsbo, privacy_plan
from parley.privacy.ldp_accounting import Decay, Schedules, laplace_scales, losses
from parley.privacy.ldp_states import StateDraft
from parley.privacy.ledger import BudgetExhausted, LedgerConflict, open_ledger
from parley.privacy.noise import KeyedNoise
from parley.privacy.release import StateGate

SIZE, STEPS = 3, 5
BOUNDS = Bounds(row_l1=1.0, row_max=0.4, x_low=-8.0, x_high=-5.0, y_max=30.0, z_max=4.0)
SETTINGS = LdpDsbo(
    Schedules(Decay(0.01, 0.95), Decay(1.0, 0.87), Decay(0.5, 0.75)), laplace_scales(1.0, 0.8, 0.76, 0.6), BOUNDS, 20
)
PLAN = privacy_plan(SETTINGS, SIZE, -0.6)
COST = float(losses(PLAN, STEPS - 1).sum())
DRAFT = StateDraft(np.ones(SIZE), np.zeros(SIZE), np.full(SIZE, 2.0), 1)


def gate(directory, run="a", run_limit=100.0, limit=100.0):
    ledger = open_ledger(f"sqlite:///{directory / 'party.db'}")
    made = StateGate(
        ledger,
        KeyedNoise(bytes(32)),
        run,
        PLAN,
        size=SIZE,
        iterations=STEPS,
        run_limit=run_limit,
        limit=limit,
        neighbours=("east",),
    )
    return made, ledger


def test_a_step_is_charged_once_and_its_replay_is_the_same_bytes(tmp_path):
    made, ledger = gate(tmp_path)
    made.open()
    first, again = made.release(DRAFT).content, gate(tmp_path)[0].release(DRAFT).content
    np.testing.assert_array_equal(first.noised_x, again.noised_x)
    assert not np.array_equal(first.noised_x, DRAFT.x)
    (entry,) = ledger.entries("a")
    assert entry.epsilon == pytest.approx(losses(PLAN, 1).sum(), rel=1e-9)


def test_another_state_never_leaves_under_the_noise_of_a_step_that_was_sent(tmp_path):
    made, ledger = gate(tmp_path)
    made.open()
    made.release(DRAFT)
    with pytest.raises(LedgerConflict, match="never under other terms"):
        made.release(replace(DRAFT, x=DRAFT.x + 1e-6))
    assert len(ledger.entries("a")) == 1


def test_a_run_over_its_limit_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(BudgetExhausted, match="past the limit"):
        gate(tmp_path, run_limit=COST * 0.99)
    made, _ = gate(tmp_path, run_limit=COST * 1.01)
    made.open()


def test_runs_add_up_towards_the_partys_limit(tmp_path):
    gate(tmp_path, limit=COST * 1.5)[0].open()
    with pytest.raises(BudgetExhausted, match="on top of the"):
        gate(tmp_path, run="b", limit=COST * 1.5)
    gate(tmp_path, limit=COST * 1.5)[0].open()  # a resumed run finds what was set aside for it
