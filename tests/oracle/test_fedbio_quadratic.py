"""The FedBiO family against closed forms: eight heterogeneous quadratic clients, deterministic gradients."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize

from parley.experiments.fedbio_quadratic import DECAYING, LOWER, STEPS, UPPER, problem, solutions, train

CLIENTS = problem()
EXACT = solutions(CLIENTS)
FIVE = replace(STEPS, local_steps=5)


def distance(outcome, solution=EXACT.global_) -> float:
    return float(np.linalg.norm(outcome.averages.variables[:UPPER] - solution))


def test_the_closed_form_minimises_the_upper_objective():
    H = np.mean([q.H for q in CLIENTS], axis=0)

    def upper(x):
        y = np.linalg.solve(H, np.mean([q.B @ x + q.c[0] for q in CLIENTS], axis=0))
        return np.mean([q.measure(x, y).loss for q in CLIENTS])

    found = minimize(upper, np.zeros(UPPER), tol=1e-12).x
    np.testing.assert_allclose(found, EXACT.global_, atol=1e-5)
    assert np.linalg.norm(EXACT.global_) == pytest.approx(1.39, abs=0.01)


def test_the_average_of_local_hyper_gradients_vanishes_far_from_the_solution():
    assert np.linalg.norm(EXACT.naive - EXACT.global_) > 1.0


@pytest.mark.parametrize("accelerated", [False, True])
def test_with_one_local_step_the_solution_is_reached(accelerated):
    assert distance(train(CLIENTS, replace(STEPS, accelerated=accelerated), 1500)) <= 1e-8


def test_without_averaging_u_the_run_ends_at_the_naive_point():
    outcome = train(CLIENTS, replace(STEPS, average_u=False), 1500)
    assert distance(outcome, EXACT.naive) <= 1e-8


def test_with_five_local_steps_momenta_bring_the_run_five_times_closer():
    plain = distance(train(CLIENTS, FIVE, 2000))
    accelerated = distance(train(CLIENTS, replace(FIVE, accelerated=True), 2000))
    assert 5 * accelerated <= plain


def test_with_the_decaying_schedule_five_local_steps_reach_a_thousandth():
    settings = replace(FIVE, accelerated=True, schedule=DECAYING, c_nu=1.0, c_omega=1.0, c_u=1.0)
    assert distance(train(CLIENTS, settings, 20000)) <= 1e-3


def test_fedbio_takes_one_phase_per_round_and_fedbioacc_two():
    assert train(CLIENTS, FIVE, 50).phases == 10
    assert train(CLIENTS, replace(FIVE, accelerated=True), 50).phases == 20


def test_a_radius_below_the_local_solutions_biases_the_run():
    at_solution = np.linalg.solve(
        np.mean([q.H for q in CLIENTS], axis=0),
        np.mean([q.B @ EXACT.global_ + q.c[0] for q in CLIENTS], axis=0),
    )
    local_u = [np.linalg.solve(q.H, at_solution - q.a) for q in CLIENTS]
    global_u = np.linalg.solve(
        np.mean([q.H for q in CLIENTS], axis=0), at_solution - np.mean([q.a for q in CLIENTS], axis=0)
    )
    radius = 1.05 * float(np.linalg.norm(global_u))
    assert radius < max(np.linalg.norm(u) for u in local_u)
    wide, tight = train(CLIENTS, STEPS, 1500), train(CLIENTS, replace(STEPS, radius=radius), 1500)
    assert not any(state.projections for state in wide.states)
    assert any(state.projections for state in tight.states)
    assert distance(wide) <= 1e-8
    assert distance(tight) > 0.01


def test_with_local_lower_problems_momenta_halve_the_distance():
    local = replace(FIVE, lower="local")
    plain = distance(train(CLIENTS, local, 300), EXACT.local)
    accelerated = distance(train(CLIENTS, replace(local, accelerated=True), 300), EXACT.local)
    assert accelerated <= 0.5 * plain


def test_with_one_local_step_only_the_truncated_series_stands_between_local_runs_and_the_solution():
    short, long = (
        distance(train(CLIENTS, replace(STEPS, lower="local", neumann_terms=terms), 400), EXACT.local)
        for terms in (20, 80)
    )
    assert long < 0.01 * short
    assert long < 1e-4


def test_all_parties_end_with_the_average():
    outcome = train(CLIENTS, replace(FIVE, accelerated=True), 50)
    for state in outcome.states:
        np.testing.assert_array_equal(state.variables.x, outcome.averages.variables[:UPPER])
        np.testing.assert_array_equal(state.variables.y, outcome.averages.variables[UPPER : UPPER + LOWER])
