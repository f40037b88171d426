import numpy as np
import pytest

from parley.privacy.ldp_accounting import (
    Constants,
    Decay,
    InvalidConstants,
    LdpPlan,
    NoiseDecaysTooFast,
    Oracle,
    Schedules,
    guarantee,
    laplace_scales,
    losses,
    sensitivities,
    unmet_rates,
)

UNIT = Constants(1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
PAPER_STEPS = Schedules(Decay(0.05, 0.95), Decay(0.05, 0.87), Decay(0.02, 0.75))


def papers_plan(agent, constants=UNIT, sigma=1.0, **changes):
    noise = laplace_scales(sigma, 0.8 + 0.01 * agent, 0.76 + 0.01 * agent, 0.6 + 0.01 * agent)
    return LdpPlan(constants.recursion(), PAPER_STEPS, noise, self_weight=-0.6, **changes)


@pytest.mark.parametrize(
    ("agent", "iterations", "expected"),
    [(1, 1, 0.909721), (1, 10, 4.083622), (1, 100, 5.533979), (10, 100, 6.600638)],
)
def test_unit_constants_give_the_known_budgets(agent, iterations, expected):
    assert guarantee(papers_plan(agent), iterations).epsilon == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("agent", "expected"), [(1, 3.8), (10, 4.3)])
def test_renyi_composition_gives_the_known_approximate_budgets(agent, expected):
    assert guarantee(papers_plan(agent), 100, delta=1e-6).approximate_epsilon == pytest.approx(expected, abs=0.05)


@pytest.mark.parametrize(("agent", "expected"), [(1, 7.8), (10, 11.2)])
def test_the_budget_of_the_history_oracle_stays_bounded_over_a_hundred_thousand_steps(agent, expected):
    assert guarantee(papers_plan(agent), 100_000).epsilon == pytest.approx(expected, abs=0.05)


def test_the_budget_of_mini_batches_grows_with_the_run():
    plan = papers_plan(1, oracle=Oracle.MINIBATCH)
    short, long = (guarantee(plan, iterations).epsilon for iterations in (100, 1000))
    assert short > guarantee(papers_plan(1), 100).epsilon
    assert long > 3 * short


def test_a_unit_that_is_in_fewer_mini_batches_spends_less_and_one_in_none_spends_nothing():
    plan = papers_plan(1, oracle=Oracle.MINIBATCH)
    always = losses(plan, 50).sum()
    sometimes = losses(plan, 50, np.arange(50) % 5 == 0).sum()
    assert 0 < sometimes < 0.4 * always
    assert losses(plan, 50, np.zeros(50, dtype=bool)).sum() == 0


def test_one_record_of_fifty_costs_much_less_than_the_whole_step():
    whole = guarantee(papers_plan(1), 100).epsilon
    record = guarantee(papers_plan(1, unit_weight=1 / 50), 100).epsilon
    assert record == pytest.approx(whole / 50, rel=0.15)


def test_twice_the_noise_halves_the_pure_budget():
    assert guarantee(papers_plan(3, sigma=2.0), 40).epsilon == pytest.approx(guarantee(papers_plan(3), 40).epsilon / 2)


def test_a_difference_never_exceeds_what_two_bounded_updates_can_make():
    wild = Constants(1.0, 1.0, 1e6, 1e6, 1e6, 1e6, 1.0)
    rule = wild.recursion()
    listed = sensitivities(papers_plan(1, wild), 30)
    ceiling = np.zeros(3)
    for t in range(30):
        ceiling = 0.4 * ceiling + PAPER_STEPS.at(t) * 2 * rule.largest
        assert (listed[t] <= ceiling * (1 + 1e-12)).all()


def test_an_epsilon_above_a_hundred_is_called_vacuous():
    printed = Constants(5000.0, 5000.0, 1e5, 1e5, 1e6, 1e5, 200.0)
    verdict = guarantee(papers_plan(1, printed), 100)
    assert verdict.vacuous
    assert "vacuous" in str(verdict)
    assert not guarantee(papers_plan(1), 100).vacuous


@pytest.mark.parametrize("field", ["x", "y", "z"])
def test_noise_that_decays_as_fast_as_the_steps_is_refused(field):
    rates = {"x": 0.8, "y": 0.76, "z": 0.6}
    rates[field] = {"x": 0.95, "y": 0.87, "z": 0.75}[field]
    noise = laplace_scales(1.0, rates["x"], rates["y"], rates["z"])
    with pytest.raises(NoiseDecaysTooFast, match=f"noise on {field}"):
        LdpPlan(UNIT.recursion(), PAPER_STEPS, noise, self_weight=-0.6)


def test_impossible_numbers_are_refused():
    with pytest.raises(InvalidConstants, match="z_norm"):
        Constants(1, 1, 1, 1, 1, 1, float("inf"))
    with pytest.raises(InvalidConstants, match="w_ii"):
        LdpPlan(UNIT.recursion(), PAPER_STEPS, laplace_scales(1.0, 0.8, 0.7, 0.6), self_weight=0.6)
    with pytest.raises(InvalidConstants, match="unit"):
        papers_plan(1, unit_weight=0.0)
    with pytest.raises(InvalidConstants, match="3 steps of 5"):
        losses(papers_plan(1, oracle=Oracle.MINIBATCH), 5, np.ones(3, dtype=bool))


def test_the_papers_rates_for_a_nonconvex_problem_meet_its_theorem():
    steps = Schedules(Decay(1.0, 0.615), Decay(1.0, 0.60375), Decay(1.0, 0.4))
    noise = Schedules(Decay(1.0, 0.61125), Decay(1.0, 0.6), Decay(1.0, 0.398125))
    assert unmet_rates(steps, noise) == []


@pytest.mark.parametrize(
    ("x", "y", "z", "unmet"),
    [
        (0.45, 0.6, 0.398, ["ς_x > 1/2", "2ς_x > v_z + v_y", "2ς_x > 2v_z + 1 − v_x"]),
        (0.611, 0.45, 0.398, ["2ς_y > v_z + v_y", "2ς_y > 2v_z + 1 − v_x", "2ς_y > v_y + 1 − v_x"]),
        (0.611, 0.6, 0.3, ["2ς_z > v_z + 1 − v_x", "2ς_z > v_y"]),
    ],
)
def test_noise_that_decays_too_slowly_to_converge_is_named(x, y, z, unmet):
    steps = Schedules(Decay(1.0, 0.615), Decay(1.0, 0.60375), Decay(1.0, 0.4))
    assert unmet_rates(steps, Schedules(Decay(1.0, x), Decay(1.0, y), Decay(1.0, z))) == unmet
