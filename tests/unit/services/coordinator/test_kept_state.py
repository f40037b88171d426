"""The coordinator's own state of a checkpoint is whole, or it is not used."""

import pytest
import sqlalchemy as sa

from parley.services.coordinator.registry import Registry, StateMissing
from parley.services.coordinator.registry_tables import RunRecord
from parley.spec.events import RunProgress, RunTotals


@pytest.fixture
def engine():
    return sa.create_engine("sqlite://", poolclass=sa.pool.StaticPool)


@pytest.fixture
def registry(engine):
    registry = Registry(engine)
    registry.create(RunRecord("run", "request", "x", "asysqn", ("a",), "name: x", steps=9))
    for checkpoint in (3, 6):
        body, kept = RunProgress(RunTotals(), checkpoint), b'{"rounds": %d}' % checkpoint
        registry.change("run", body, "checkpoint", checkpoint=checkpoint, kept=kept)
    return registry


def test_any_flipped_bit_of_what_was_kept_is_found_and_the_state_before_is_left(registry, engine):
    with engine.connect() as connection:
        whole = connection.exec_driver_sql("SELECT content FROM kept WHERE checkpoint = 6").scalar_one()
    assert registry.kept("run", 6) == b'{"rounds": 6}'
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 1 << place % 8
        with engine.begin() as connection:
            connection.exec_driver_sql("UPDATE kept SET content = ? WHERE checkpoint = 6", (bytes(changed),))
        with pytest.raises(StateMissing, match="damaged"):
            registry.kept("run", 6)
        assert registry.kept("run", 3) == b'{"rounds": 3}'


def test_a_checkpoint_of_which_nothing_was_kept_is_named(registry):
    with pytest.raises(StateMissing, match="nothing was kept"):
        registry.kept("run", 4)
