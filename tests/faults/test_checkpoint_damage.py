"""Any damage to a checkpoint's file is found, and the one before is taken."""

import random

import pytest
import torch

from parley.party.roles import CheckpointMissing
from parley.services.party.checkpoints import ModelMissing, Store


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path)
    for k in (5, 10):
        store.save_checkpoint("run", k, {"x": torch.arange(7.0) * k, "k": torch.tensor(k)})
    store.save_model("run", {"x": torch.arange(3.0)})
    return store


def newest(tmp_path):
    return sorted((tmp_path / "runs" / "run").glob("checkpoint-*"))[-1]


def test_any_flipped_byte_of_a_checkpoint_is_found_and_the_one_before_is_left(store, tmp_path):
    assert store.checkpoints("run") == [5, 10]
    content, chance = newest(tmp_path).read_bytes(), random.Random(1)
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 1 << chance.randrange(8)
        newest(tmp_path).write_bytes(changed)
        assert store.checkpoints("run") == [5], f"byte {place} of {len(content)} was flipped"
        with pytest.raises(CheckpointMissing, match="damaged"):
            store.load_checkpoint("run", 10)


def test_a_checkpoint_that_was_cut_anywhere_is_found(store, tmp_path):
    content = newest(tmp_path).read_bytes()
    for length in range(len(content)):
        newest(tmp_path).write_bytes(content[:length])
        assert store.checkpoints("run") == [5], f"the file was cut after {length} bytes"


def test_a_damaged_model_is_never_predicted_with(store, tmp_path):
    path = tmp_path / "runs" / "run" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-40] ^= 1
    path.write_bytes(content)
    with pytest.raises((CheckpointMissing, ModelMissing)):
        store.load_model("run")
