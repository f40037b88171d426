"""Rows of a party on a Ray cluster of two nodes: the bits of the same shards in the party, also after a killed node."""

from functools import partial
from importlib.util import find_spec

import numpy as np
import pytest

from parley.services.party.config import ComputeConfig
from parley.services.wire.configuration import ConfigInvalid
from parley.tables.rows import LocalRows, ShardedRows
from tests.integration.ray_cluster import cluster

pytestmark = [
    pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed: pip install 'parley-fl[ray]'"),
    pytest.mark.slow,
    pytest.mark.timeout(600),
]
VALUES = np.random.default_rng(0).normal(size=(5000, 6)).astype(np.float32)
BATCH = np.random.default_rng(1).permutation(5000)[:3000]
SHARDS = 3
column_sums = partial(np.sum, axis=0)


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory):
    with cluster(tmp_path_factory.mktemp("ray"), 2) as made:
        yield made


@pytest.fixture(scope="module")
def engine(two_nodes):
    from parley.services.party.ray_rows import connect

    return connect(ComputeConfig(engine="ray", address=two_nodes.address, shards=SHARDS, minimum_rows=2000), 1)


@pytest.fixture(scope="module")
def rows(engine):
    return engine.rows(VALUES, "float32")


def network():
    from parley.numerics.streams import stream
    from parley.party.bambi.models import build_model

    model = build_model("mlp", 6, 3, (8,), "tanh")
    return model, model.initial(stream(0, "x"))


def test_a_small_batch_stays_in_the_party(rows):
    assert np.array_equal(rows.map(np.negative, BATCH[:1999]), -VALUES[BATCH[:1999]])
    assert not rows._actors


def test_shards_of_the_cluster_give_the_bits_of_shards_in_the_party(rows):
    here = ShardedRows(VALUES, "float32", shards=SHARDS)
    assert rows.fold(column_sums, BATCH).tobytes() == here.fold(column_sums, BATCH).tobytes()
    assert sorted(rows._actors) == [0, 1, 2]
    assert np.array_equal(rows.map(np.negative, BATCH), -VALUES[BATCH])
    exact = partial(np.sum, axis=0, dtype=np.float64)
    np.testing.assert_allclose(rows.fold(exact, BATCH), LocalRows(VALUES).fold(exact, BATCH), rtol=1e-6)


def test_an_error_of_a_function_is_raised_here(rows):
    with pytest.raises(np.exceptions.AxisError):
        rows.fold(partial(np.sum, axis=5), BATCH)


def test_embeddings_and_gradients_have_the_same_bits_when_a_node_is_killed(rows, two_nodes):
    import ray

    from parley.party.bambi.shard_work import differentiate, embed

    model, x = network()
    factors = np.random.default_rng(2).normal(size=(len(BATCH), 3)).astype(np.float32)

    def work(kept):
        gradient = differentiate(kept, model, x, BATCH, factors).numpy()
        return embed(kept, model, x[None], BATCH).tobytes() + gradient.tobytes()

    first, again, expected = work(rows), work(rows), work(ShardedRows(VALUES, "float32", shards=SHARDS))
    assert first == again == expected
    nodes = {shard: ray.get(actor.node.remote()) for shard, actor in rows._actors.items()}
    assert len(set(nodes.values())) == 2
    before, lost = dict(rows._actors), two_nodes.list_all_nodes()[-1]
    two_nodes.remove_node(lost, allow_graceful=False)
    assert work(rows) == expected
    moved = {shard for shard in before if rows._actors[shard] is not before[shard]}
    assert moved == {shard for shard, node in nodes.items() if node == lost.node_id}
    assert not rows._given_up


def test_a_cluster_that_does_not_answer_is_named_at_once():
    from parley.services.party.ray_rows import connect

    with pytest.raises(ConfigInvalid, match=r"no Ray cluster answers at `compute.address` 127\.0\.0\.1:9 "):
        connect(ComputeConfig(engine="ray", address="127.0.0.1:9"), 1)
