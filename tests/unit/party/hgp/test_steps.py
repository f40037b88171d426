import numpy as np
import pytest

from parley.experiments.hgp_parties import Given, Mixing, OneIteration, hyper_gradients, train, walk, whole
from parley.experiments.synthetic_clients import synthetic_clients
from parley.numerics.bilevel_costs import (
    class_mask,
    curvature_products,
    hessian_product,
    inner_gradient,
    jacobian_product,
    mixture,
    outer_gradients,
    regularised_logistic,
    weighted_samples,
)
from parley.numerics.networks import NetworkKind, NetworkPlan, NotStronglyConnected
from parley.numerics.push_sum import Mass
from parley.numerics.streams import stream
from parley.party.hgp.steps import (
    Diverged,
    Hgp,
    InvalidHgp,
    StepMismatch,
    Training,
    begin_hyper_gradient,
    begin_training,
    hyper_gradient_step,
    train_step,
)

CLIENT = synthetic_clients(1, clients=1)[0]
ROWS = (CLIENT.features, CLIENT.labels, CLIENT.validation_features, CLIENT.validation_labels)


def linear(x, inputs):
    return inputs @ x.reshape(5, 3)


COSTS = {
    "regularised": (regularised_logistic(*ROWS), np.full(5, 0.1)),
    "weighted": (weighted_samples(*ROWS, weight_decay=0.01), np.ones(100)),
    "mask": (
        class_mask(linear, 15, ROWS[0], ROWS[1], classes=3, weight_decay=0.01, hyper_decay=0.01),
        np.array([0.3, -0.2, 0.1]),
    ),
    "mixture": (
        mixture(linear, 15, ROWS[0], ROWS[1], components=2, weight_decay=0.01, hyper_decay=0.01),
        np.array([0.3, -0.2]),
    ),
}


@pytest.mark.parametrize("name", COSTS)
def test_products_agree_with_finite_differences_of_the_inner_gradient(name):
    cost, hyper = COSTS[name]
    x = stream(0, "point").normal(size=cost.model_size)
    u = stream(1, "direction").normal(size=cost.model_size)
    shift = 1e-6

    def slope(direction_x, direction_hyper):
        ahead = inner_gradient(cost, x + shift * direction_x, hyper + shift * direction_hyper)
        behind = inner_gradient(cost, x - shift * direction_x, hyper - shift * direction_hyper)
        return (ahead - behind) / (2 * shift)

    hessian, jacobian = curvature_products(cost, x, hyper, u)
    np.testing.assert_allclose(hessian, slope(u, np.zeros_like(hyper)), atol=1e-7)
    for j in range(min(3, cost.hyper_size)):
        unit = np.eye(cost.hyper_size)[j]
        np.testing.assert_allclose(jacobian[j], slope(np.zeros_like(x), unit) @ u, atol=1e-7)


def test_a_batch_of_all_rows_is_the_full_cost():
    cost, hyper = COSTS["weighted"]
    x = np.ones(5)
    everything = np.arange(100)
    np.testing.assert_allclose(inner_gradient(cost, x, hyper, everything), inner_gradient(cost, x, hyper), atol=1e-15)


def test_a_party_that_hears_nothing_and_sends_nothing_runs_the_local_neumann_series():
    cost, hyper = COSTS["regularised"]
    x = np.full(5, 0.5)
    settings = Hgp(rounds=3, push_steps=2, step_size=0.7)
    state = begin_hyper_gradient(cost, x, hyper)
    for _ in range(settings.steps + 1):
        state, portions = hyper_gradient_step(cost, settings, x, hyper, 0, state, {}, ())
        assert portions == {}

    u, v = outer_gradients(cost, x, hyper)
    for _ in range(3):
        v = v - 0.7 * jacobian_product(cost, x, hyper, u)
        u = u - 0.7 * hessian_product(cost, x, hyper, u)
    np.testing.assert_allclose(state.v, v, atol=1e-14)


def test_the_jacobian_and_the_hessian_take_different_rows_in_a_mini_batch():
    cost, hyper = COSTS["weighted"]
    x = np.full(5, 0.5)
    settings = Hgp(rounds=1, push_steps=1, step_size=1.0, batch_size=10)
    state = begin_hyper_gradient(cost, x, hyper)
    u = state.mass.z
    for _ in range(2):
        state, _ = hyper_gradient_step(cost, settings, x, hyper, 0, state, {}, ())
    touched = np.flatnonzero(state.v)
    assert len(touched) == 10
    same_rows = u - hessian_product(cost, x, hyper, u, touched)
    assert not np.allclose(state.mass.z, same_rows)


def test_a_training_step_descends_along_the_partys_own_gradient_and_splits_equally():
    cost, hyper = COSTS["regularised"]
    settings = Training(steps=1, learning_rate=0.5)
    state, portions = train_step(cost, settings, hyper, 0, begin_training(np.ones(5)), {}, (1, 2))
    expected = np.ones(5) - 0.5 * inner_gradient(cost, np.ones(5), hyper)
    for mass in (state.mass, portions[1], portions[2]):
        np.testing.assert_allclose(mass.z, expected / 3)
        assert mass.weight == pytest.approx(1 / 3)


def test_the_learning_rate_falls_at_each_milestone():
    settings = Training(steps=10, learning_rate=1.0, milestones=(3, 6), decay=0.1)
    assert [settings.rate(step) for step in (0, 2, 3, 6)] == pytest.approx([1.0, 1.0, 0.1, 0.01])


def test_the_same_seed_gives_the_same_bits_and_counts_the_same_traffic():
    costs, hypers = [COSTS["regularised"][0]] * 3, [np.full(5, 0.1)] * 3
    mixing = Mixing(NetworkPlan(NetworkKind.RANDOM_DIRECTED, size=3, seed=2))
    settings = Training(steps=20, learning_rate=0.5, batch_size=10)
    tasks = [Given(cost, np.zeros(5), hyper) for cost, hyper in zip(costs, hypers, strict=True)]
    ends = [walk(tasks, mixing, OneIteration(inner=settings), [whole("train", settings)]) for _ in range(2)]
    (first, sent), (second, again) = ends
    assert [state.x.tobytes() for state in first] == [state.x.tobytes() for state in second]
    assert sent == again
    assert sent["peer bytes"] > sent["peer messages"] * 8 * 6


def test_a_step_size_beyond_the_stability_limit_is_reported_as_such():
    cost, hyper = COSTS["regularised"]
    mixing = Mixing(NetworkPlan(NetworkKind.FULLY_CONNECTED, size=2))
    with pytest.raises(Diverged, match=r"grows instead of shrinking.*Lower it"):
        hyper_gradients([cost] * 2, mixing, Hgp(2000, 1, 50.0), [np.ones(5)] * 2, [hyper] * 2)


def test_a_learning_rate_that_is_too_large_is_reported_as_such():
    cost, hyper = COSTS["regularised"]
    mixing = Mixing(NetworkPlan(NetworkKind.FULLY_CONNECTED, size=2))
    with pytest.raises(Diverged, match=r"inner problem diverged.*train\.inner\.learning_rate"):
        train([cost] * 2, mixing, Training(steps=2000, learning_rate=500.0), [np.ones(5)] * 2, [hyper] * 2)


def test_a_network_that_is_not_connected_is_refused_before_anything_is_sent():
    cost, hyper = COSTS["regularised"]
    plan = NetworkPlan(NetworkKind.EDGE_LIST, size=2, edges=(((0, 1),),))
    with pytest.raises(NotStronglyConnected, match="member 1"):
        hyper_gradients([cost] * 2, Mixing(plan), Hgp(1, 1, 1.0), [np.ones(5)] * 2, [hyper] * 2)


def test_portions_before_the_first_step_are_refused():
    cost, hyper = COSTS["regularised"]
    state = begin_hyper_gradient(cost, np.ones(5), hyper)
    with pytest.raises(StepMismatch, match="before the first step"):
        hyper_gradient_step(cost, Hgp(1, 1, 1.0), np.ones(5), hyper, 0, state, {1: Mass(np.ones(5), 0.5)}, ())


@pytest.mark.parametrize(
    "arguments",
    [(0, 1, 1.0), (1, 0, 1.0), (1, 1, 0.0), (1, 1, float("nan"))],
)
def test_impossible_settings_are_refused(arguments):
    with pytest.raises(InvalidHgp):
        Hgp(*arguments)
