"""Files of tensors open in any program that reads safetensors, and no damage to them passes."""

import hashlib

import pytest
import safetensors.torch
import torch
from safetensors import safe_open

from parley.party.roles import CheckpointMissing
from parley.services.party.checkpoints import Store


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path)


def folder(tmp_path):
    return tmp_path / "runs" / "run"


def test_a_saved_model_is_a_safetensors_file_that_the_official_library_loads(store, tmp_path):
    store.save_model("run", {"y": torch.arange(6.0).reshape(2, 3)})
    path = folder(tmp_path) / "model.safetensors"
    torch.testing.assert_close(safetensors.torch.load_file(path)["y"], torch.arange(6.0).reshape(2, 3))
    with safe_open(path, framework="np") as file:
        assert file.keys() == ["y"]
        assert len(file.metadata()["sha256"]) == 64


def test_a_checkpoint_is_a_safetensors_file_too(store, tmp_path):
    store.save_checkpoint("run", 7, {"x": torch.ones(3, dtype=torch.float64)})
    (path,) = folder(tmp_path).glob("checkpoint-*.safetensors")
    assert safetensors.torch.load_file(path)["x"].dtype is torch.float64


def test_the_same_tensors_give_the_same_bytes(store, tmp_path):
    contents = []
    for _ in range(2):
        store.save_model("run", {"b": torch.ones(2), "a": torch.zeros(5)})
        contents.append((folder(tmp_path) / "model.safetensors").read_bytes())
    assert contents[0] == contents[1]


def test_a_model_of_an_earlier_version_with_its_digest_at_the_end_still_loads(store, tmp_path):
    data = safetensors.torch.save({"y": torch.arange(4.0)})
    folder(tmp_path).mkdir(parents=True)
    path = folder(tmp_path) / "model.safetensors"
    path.write_bytes(data + hashlib.sha256(data).digest())
    torch.testing.assert_close(store.load_model("run")["y"], torch.arange(4.0))
    path.write_bytes(data[:-1] + b"?" + hashlib.sha256(data).digest())
    with pytest.raises(CheckpointMissing, match="damaged"):
        store.load_model("run")


def test_a_safetensors_file_that_nobody_sealed_is_not_taken_for_a_model(store, tmp_path):
    folder(tmp_path).mkdir(parents=True)
    (folder(tmp_path) / "model.safetensors").write_bytes(safetensors.torch.save({"y": torch.arange(4.0)}))
    with pytest.raises(CheckpointMissing, match="damaged"):
        store.load_model("run")


@pytest.mark.parametrize(
    "header", [b"", b"[]", b'{"__metadata__": 7}', b'{"__metadata__": {"sha256": 7}}', b"{" * 4000, b"\xff\xfe"]
)
def test_a_header_that_makes_no_sense_is_damage_not_a_crash(store, tmp_path, header):
    folder(tmp_path).mkdir(parents=True)
    path = folder(tmp_path) / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(CheckpointMissing, match="damaged"):
        store.load_model("run")
