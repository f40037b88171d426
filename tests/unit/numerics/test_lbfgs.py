import numpy as np
import pytest

from parley.numerics.lbfgs import (
    Curvature,
    Damping,
    DampingMode,
    Scale,
    UnsuitableMemory,
    damp,
    direction,
    initial_scale,
    remember,
)

S = np.array([1.0, 2.0, -1.0])


def test_an_empty_memory_leaves_the_gradient_as_it_is():
    assert np.array_equal(direction(Curvature(), S), S)


@pytest.mark.parametrize("mode", list(DampingMode))
def test_the_newest_pair_satisfies_the_secant_equation(mode):
    damping = Damping(mode=mode)
    memory = Curvature()
    for seed in range(4):
        rng = np.random.default_rng(seed)
        memory = remember(damping, memory, rng.standard_normal(5), rng.standard_normal(5))
    newest = memory.pairs[-1]
    assert direction(memory, newest.damped) == pytest.approx(newest.step, rel=1e-9)


def test_on_a_quadratic_with_conjugate_steps_the_memory_becomes_the_inverse_hessian():
    hessian = np.diag([1.0, 4.0, 9.0])
    memory = Curvature()
    for axis in np.eye(3):
        memory = remember(Damping(), memory, axis, hessian @ axis)
    assert direction(memory, np.array([1.0, 1.0, 1.0])) == pytest.approx([1.0, 1 / 4, 1 / 9])


def test_the_memory_forgets_the_oldest_pair_beyond_its_size():
    memory = Curvature()
    for length in (1.0, 2.0, 3.0):
        memory = remember(Damping(memory=2), memory, length * S, S)
    assert [pair.step[0] for pair in memory.pairs] == [2.0, 3.0]


def test_remembering_leaves_the_older_memory_as_it_was():
    before = remember(Damping(), Curvature(), S, S)
    remember(Damping(), before, 2 * S, 3 * S)
    assert len(before.pairs) == 1
    assert before.gamma == 1.0


@pytest.mark.parametrize("curvature", [-100.0, -1.0, 0.0, 1e-6])
def test_floor_damping_lifts_curvature_to_three_tenths_of_delta(curvature):
    damped = damp(S, curvature * S, floor=0.01)
    assert float(S @ damped) == pytest.approx(0.3 * 0.01 * float(S @ S))


def test_curvature_above_the_floor_is_left_untouched():
    assert np.array_equal(damp(S, 0.5 * S, floor=0.01), 0.5 * S)


def test_eq12_damps_towards_gamma_where_floor_leaves_a_skewed_pair_alone():
    skewed = np.array([6.0, 0.1, 6.0])  # sᵀȳ = 0.2 is far below 0.3 γ sᵀs, and above 0.3 δ sᵀs
    floor = remember(Damping(mode=DampingMode.FLOOR), Curvature(), S, skewed).pairs[0]
    eq12 = remember(Damping(mode=DampingMode.EQ12), Curvature(), S, skewed).pairs[0]
    gamma = float(skewed @ skewed) / float(S @ skewed)
    assert np.array_equal(floor.damped, skewed)
    assert float(S @ eq12.damped) == pytest.approx(0.3 * gamma * float(S @ S))


@pytest.mark.parametrize(
    ("difference", "expected"),
    [(2.0 * S, 2.0), (1e-9 * S, 0.01), (-S, 0.01), (0.0 * S, 0.01), (1e12 * S, 1e8)],
)
def test_gamma_follows_the_curvature_between_delta_and_its_cap(difference, expected):
    assert initial_scale(Damping(), S, difference) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("step", "difference"),
    [(np.zeros(3), S), (1e-16 * S, S), (S, np.array([np.nan, 0, 0])), (np.array([np.inf, 0, 0]), S)],
)
def test_a_pair_without_information_is_skipped_and_counted(step, difference):
    before = remember(Damping(), Curvature(), S, 2 * S)
    after = remember(Damping(), before, step, difference)
    assert after.pairs == before.pairs
    assert after.gamma == before.gamma
    assert after.skipped == 1


@pytest.mark.parametrize("wrong", [{"memory": 0}, {"delta": 0.0}, {"delta": 1.0, "gamma_max": 0.5}])
def test_settings_out_of_range_are_refused_by_name(wrong):
    with pytest.raises(UnsuitableMemory, match="choose memory"):
        Damping(**wrong)


def test_a_steep_direction_that_has_left_the_memory_is_not_taken_for_a_flat_one():
    """Along flat directions γ_k falls to the floor; the largest curvature in memory stays."""
    steep, flat = np.array([1.0, 0.0, 0.0]), np.array([0.0, 1.0, 0.0])
    unseen = np.array([0.0, 0.0, 1.0])
    for scale, longest in ((Scale.LAST, 100.0), (Scale.LARGEST, 1.0)):
        damping = Damping(scale=scale)
        memory = remember(damping, Curvature(), steep, 1.0 * steep)
        memory = remember(damping, memory, flat, 1e-4 * flat)
        assert np.linalg.norm(direction(memory, unseen)) == pytest.approx(longest)
