"""Names of AsySQN's batches: the same rows for whoever derives them, today and in every later version."""

import numpy as np
import pytest

from parley.numerics.gradient_estimators import Estimator, as_features
from parley.numerics.linear_losses import loss_named
from parley.party.asysqn import steps as party_asysqn
from parley.party.asysqn.block import Block
from parley.protocols.asysqn.batches import batch_rows, next_rows, snapshots_before, watched_rows
from parley.protocols.asysqn.messages import AllRows, Batch


def test_the_rows_of_an_asysqn_batch_stay_what_they_are():
    assert batch_rows(7, "north", Batch(2, 9), rows=50, size=6).tolist() == [2, 10, 19, 27, 39, 48]
    assert batch_rows(7, None, Batch(2, 9), rows=50, size=6).tolist() == [4, 15, 38, 40, 45, 48]
    assert watched_rows(7, np.arange(10, 60), 5).tolist() == [18, 34, 36, 38, 43]


def test_a_batch_as_large_as_the_table_is_the_table():
    assert batch_rows(7, "north", Batch(0, 3), rows=50, size=60).tolist() == list(range(50))
    assert watched_rows(7, np.arange(10, 60), None).tolist() == list(range(10, 60))


def test_a_party_draws_its_neighbours_batch_as_the_neighbour_does():
    features = as_features(np.ones((50, 2)))
    names = ["north", "east"]
    settings = party_asysqn.Settings(seed=7, batch_size=6)
    data = [party_asysqn.PartyData(name, features) for name in names]
    blocks = [Block(settings, each, features, features, loss_named("logistic"), None, names) for each in data]
    state = party_asysqn.start(data[0])
    own = party_asysqn.propose_batch(settings, data[0], state)
    assert own.tolist() == blocks[1].row_numbers(0, Batch(0, 0)).tolist()
    assert own.tolist() != blocks[1].row_numbers(1, Batch(0, 0)).tolist()


@pytest.mark.parametrize("estimator", list(Estimator))
def test_the_step_alone_tells_how_many_snapshots_came_before_it(estimator):
    snapshots = steps = since = 0
    while steps < 20:
        name = next_rows(estimator, 4, snapshots=snapshots, steps=steps, steps_since=since)
        if isinstance(name, AllRows):
            snapshots, since = snapshots + 1, 0
            continue
        assert name == Batch(snapshots_before(estimator, 4, steps), steps)
        steps, since = steps + 1, since + 1
