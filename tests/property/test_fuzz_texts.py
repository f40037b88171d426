"""Specs, configuration files and checkpoints: any text and any bytes are read, or refused with one named error."""
# ruff: noqa: PT017 (an input may also be right, and then nothing is raised)

import random

import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.party.roles import CheckpointMissing
from parley.services.coordinator.config import CoordinatorConfig
from parley.services.party.checkpoints import ModelMissing, Store
from parley.services.party.config import PartyConfig
from parley.services.wire.configuration import ConfigInvalid, load_config
from parley.spec.parsing import SpecInvalid, parse_spec
from parley.testing.mutation import damaged
from tests.faults.cases import CASES, spec_of
from tests.faults.specs import mutated_spec
from tests.property.examples import FUZZ_EXAMPLES

seeds = st.integers(0, 2**63)


@given(text=st.text(max_size=400))
@settings(max_examples=FUZZ_EXAMPLES, deadline=None)
def test_any_text_is_a_spec_or_is_refused_with_its_mistakes(text):
    try:
        parse_spec(text)
    except SpecInvalid as invalid:
        assert invalid.problems


@given(seed=seeds)
@settings(max_examples=FUZZ_EXAMPLES, deadline=None)
def test_a_changed_spec_is_read_or_refused_with_its_mistakes(seed):
    chance = random.Random(seed)
    text = mutated_spec(spec_of(chance.choice(list(CASES))), chance)
    try:
        parse_spec(text)
    except SpecInvalid as invalid:
        assert all(problem.message for problem in invalid.problems)


PARTY = yaml.safe_dump(
    {
        "name": "bank",
        "identity": "certificates/bank",
        "state": "state/bank",
        "tables": {"train": {"path": "bank.parquet"}},
        "policy": {"coordinators": ["coordinator"]},
    }
)
COORDINATOR = yaml.safe_dump(
    {
        "name": "coordinator",
        "identity": "certificates/coordinator",
        "state": "state",
        "parties": {"bank": {"address": "localhost:1"}},
        "labels": {"train": {"path": "labels.csv"}},
    }
)


@pytest.mark.parametrize(("text", "kind"), [(PARTY, PartyConfig), (COORDINATOR, CoordinatorConfig)])
@given(seed=seeds)
@settings(max_examples=FUZZ_EXAMPLES, deadline=None)
def test_any_configuration_file_is_read_or_refused_by_name(text, kind, seed, tmp_path_factory):
    chance = random.Random(seed)
    path = tmp_path_factory.getbasetemp() / "fuzzed.yaml"
    if chance.random() < 0.5:
        path.write_text(mutated_spec(text, chance), encoding="utf-8")
    else:
        path.write_bytes(damaged(text.encode(), chance))
    try:
        load_config(path, kind)
    except ConfigInvalid as invalid:
        assert str(path) in str(invalid)


@given(seed=seeds)
@settings(max_examples=FUZZ_EXAMPLES, deadline=None)
def test_a_checkpoint_with_any_damage_is_passed_over_for_the_one_before(seed, tmp_path_factory):
    chance = random.Random(seed)
    store = Store(tmp_path_factory.mktemp("state"))
    tensors = {"x": torch.arange(6.0), "k": torch.tensor(5)}
    for k in (5, 10):
        store.save_checkpoint("run", k, tensors)
    assert store.checkpoints("run") == [5, 10]
    newest = next(iter(store._root.glob("runs/run/checkpoint-*10.safetensors")))
    whole = newest.read_bytes()
    newest.write_bytes(damaged(whole, chance))
    if newest.read_bytes() != whole:
        assert store.checkpoints("run") == [5]
        with pytest.raises(CheckpointMissing, match="damaged"):
            store.load_checkpoint("run", 10)


def test_every_single_byte_of_a_checkpoint_is_covered_by_its_checksum(tmp_path):
    store = Store(tmp_path)
    store.save_checkpoint("run", 5, {"x": torch.arange(3.0), "k": torch.tensor(5)})
    path = next(iter(tmp_path.glob("runs/run/*.safetensors")))
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert store.checkpoints("run") == []


def test_a_model_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ModelMissing, match="let the run finish"):
        Store(tmp_path).load_model("nothing")


def test_a_run_belongs_to_the_coordinator_that_began_it_first(tmp_path):
    store = Store(tmp_path)
    assert store.owner("run") is None
    store.claim("run", "ours")
    store.claim("run", "theirs")
    assert store.owner("run") == "ours"
