"""Local rounds, driven in one process, against the same recursion on the pooled data by autograd."""

import numpy as np
import pytest
import scipy.optimize
import torch
import yaml
from threadpoolctl import threadpool_limits

from parley.numerics.combinations import best_combination
from parley.numerics.losses import ForwardCorrectedSoftmax, Logistic, Softmax
from parley.protocols.bambi.columns import reduced, widened
from parley.protocols.bambi.messages import LocalForward, LocalWork
from parley.simulation.runs import Holding, simulation_of
from parley.spec.parsing import parse_spec
from parley.tables.loading import Labels, Table
from tests.oracle.pooled_bambi import relative_error
from tests.oracle.pooled_local import trained

ROWS = 240


@pytest.fixture(autouse=True)
def one_thread():
    """As in a party: matrices this small lose more to a second thread than they gain."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with threadpool_limits(1):
        yield
    torch.set_num_threads(before)


def spec_of(**changes):
    train = {
        "algorithm": "bambi",
        "hypergradient": "local",
        "regularisation": 1e-3,
        "message": "full",
        "model": {"kind": "mlp", "hidden": [6], "out": 4, "activation": "tanh"},
        "local": {"exchanges": 9, "epochs": 3, "minibatch": 32} | changes,
    }
    text = {
        "name": "local",
        "seed": 4,
        "dtype": "float64",
        "parties": ["a", "b", "c"],
        "split": {"lower": 0.8, "upper": "lower", "test": 0.2},
        "train": train,
        "privacy": {"labels": {"mechanism": "off"}, "aggregation": {"fraction_bits": 50, "limit": 256.0}},
        "evaluate_every": 0,
        "checkpoint_every": 0,
    }
    return parse_spec(yaml.safe_dump(text))


def coupled(seed=3):
    """Only the three blocks together tell the class."""
    draw = np.random.default_rng(seed)
    score, second, third = draw.standard_normal((3, ROWS, 3))
    return [score + 2 * second - 4 * third, second, third], score.argmax(axis=1)


def separate(seed=3):
    """Every block nearly tells the class by itself."""
    draw = np.random.default_rng(seed)
    labels = draw.integers(3, size=ROWS)
    return [2 * np.eye(3)[labels] + 0.5 * draw.standard_normal((ROWS, 3)) for _ in range(3)], labels


def simulated(spec, blocks, labels, sums="clear"):
    """Model tensors of every party, and (batch, K, weights) of each exchange."""
    ids = np.array([f"{row:04}" for row in range(len(labels))])
    known = Labels(ids, labels.astype(np.int64), tuple("012"))
    columns = [[f"c{n}" for n in range(a.shape[1])] for a in blocks]
    holdings = [Holding(Table(ids, a, names, "train")) for a, names in zip(blocks, columns, strict=True)]
    simulation, asks, chosen = simulation_of(spec, holdings, lambda _, __: known, sums=sums), [], []

    def watch(current, _):
        if isinstance(current.outcome, LocalWork):
            chosen.append((asks[-1].batch, current.outcome.steps, list(current.outcome.weights)))
        if isinstance(current.ask, LocalForward):
            asks.append(current.ask)

    states = simulation.run(watch=watch).states
    return [role.model_tensors(state) for role, state in zip(simulation.roles, states, strict=True)], chosen


@pytest.mark.parametrize("sums", ["clear", "protected"])
@pytest.mark.parametrize("data", [coupled, separate])
@pytest.mark.parametrize("rows", [8192, 64])
def test_local_rounds_are_the_same_recursion_on_pooled_data(data, rows, sums):
    spec, (blocks, labels) = spec_of(rows=rows), data()
    ours, chosen = simulated(spec, blocks, labels, sums)
    named, y, expected = trained(spec, blocks, labels)
    assert [entry[:2] for entry in chosen] == [entry[:2] for entry in expected]
    np.testing.assert_allclose(
        np.concatenate([entry[2] for entry in chosen]), np.concatenate([entry[2] for entry in expected]), atol=1e-5
    )
    pooled = [part | {"y": own} for part, own in zip(named, y, strict=True)]
    for mine, exact in zip(ours, pooled, strict=True):
        exact = {name if name == "y" else f"embedding.{name}": tensor for name, tensor in exact.items()}
        assert relative_error([mine[name] for name in sorted(exact)], [exact[name] for name in sorted(exact)]) < 1e-6


def test_both_paces_are_met():
    """The recursion above is compared where the run stays and searches, and where it goes on to new rows."""
    slow, fast = simulated(spec_of(), *coupled())[1], simulated(spec_of(rows=64), *separate())[1]
    assert any(len(weights) == 2 for _, _, weights in slow)
    assert min(steps for _, steps, _ in slow) < slow[0][1]
    assert len({batch for batch, _, _ in fast}) > 2


@pytest.mark.parametrize("parties", [2, 5])
@pytest.mark.parametrize("seed", range(20))
def test_amplified_by_the_number_of_parties_no_local_work_raises_the_joint_loss(parties, seed):
    """Whatever each party does to lower what it sees: the loss is convex in h."""
    draw = np.random.default_rng(seed)
    loss, target = Softmax(4), np.eye(4)[draw.integers(4, size=30)]
    h = 2 * draw.standard_normal((30, 4))
    moves = []
    while len(moves) < parties:
        move = draw.standard_normal((30, 4)) - 3 * loss.gradient(h, target) * 30 * draw.random()
        if loss.value(h + parties * move, target) <= loss.value(h, target):
            moves.append(move)
    assert loss.value(h + sum(moves), target) <= loss.value(h, target)


@pytest.mark.parametrize(
    ("loss", "columns"), [(Softmax(3), 3), (Logistic(), 1), (ForwardCorrectedSoftmax(0.1 + 0.7 * np.eye(3)), 3)]
)
def test_the_best_combination_is_where_a_general_minimiser_ends(loss, columns):
    draw = np.random.default_rng(1)
    h, *moves = draw.standard_normal((3, 50, columns))
    target = np.eye(3)[draw.integers(3, size=50)] if columns == 3 else draw.integers(2, size=(50, 1)).astype(float)
    found = best_combination(loss, h, moves, target)
    exact = scipy.optimize.minimize(
        lambda c: loss.value(h + c[0] * moves[0] + c[1] * moves[1], target), np.zeros(2), tol=1e-12
    )
    np.testing.assert_allclose(found, exact.x, atol=1e-4)


def test_moves_that_point_the_same_way_or_nowhere_are_no_obstacle():
    draw = np.random.default_rng(2)
    h, move = draw.standard_normal((2, 20, 3))
    target = np.eye(3)[draw.integers(3, size=20)]
    assert np.isfinite(best_combination(Softmax(3), h, [move, move], target)).all()
    assert best_combination(Softmax(3), h, [np.zeros_like(h)], target) == pytest.approx(0)


def test_the_last_class_is_left_out_and_no_gradient_misses_it():
    h, target = np.random.default_rng(0).standard_normal((5, 4)), np.eye(4)[[0, 1, 2, 3, 0]]
    assert reduced(h, 3).shape == (5, 3)
    np.testing.assert_allclose(Softmax(4).gradient(widened(reduced(h, 3), 4), target), Softmax(4).gradient(h, target))
