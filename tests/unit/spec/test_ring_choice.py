"""Which ring a run sums in, where its spec leaves it open."""

import pytest
import yaml

from parley.spec.parsing import SpecInvalid, parse_spec


def bits_of(parties=3, train=None, aggregation=None, **fields):
    text = {
        "name": "ring",
        "parties": [f"party{n}" for n in range(parties)],
        "train": {"algorithm": "bambi"} | (train or {}),
        "privacy": {"aggregation": aggregation or {}},
    }
    return parse_spec(yaml.safe_dump(text | fields)).privacy.aggregation.resolved


@pytest.mark.parametrize("train", [{}, {"problem": "joint"}, {"loss": "logistic"}])
def test_a_network_that_learns_classes_sums_in_32_bits(train):
    assert bits_of(train=train) == (32, 16, 2.0**10)


@pytest.mark.parametrize(
    "fields",
    [
        {"dtype": "float64"},
        {"parties": 32},
        {"aggregation": {"fraction_bits": 44}},
        {"aggregation": {"limit": 2.0**16}},
        {"aggregation": {"ring_bits": 64}},
        {"train": {"problem": "hyper_parameters"}},
        {"train": {"model": {"kind": "identity"}}},
        {"train": {"loss": "squared"}, "privacy": {"labels": {"mechanism": "off"}}},
        {"train": {"hypergradient": "zeroth_order", "lower": {"solver": "sgd"}}},
        {"train": {"algorithm": "asysqn"}},
    ],
    ids=str,
)
def test_where_exactness_is_asked_for_or_needed_sums_have_64_bits(fields):
    assert bits_of(**fields)[0] == 64


def test_what_was_chosen_survives_a_round_trip():
    spec = parse_spec(yaml.safe_dump({"name": "r", "parties": ["a", "b"], "train": {"algorithm": "bambi"}}))
    assert parse_spec(yaml.safe_dump(spec.model_dump(mode="json"))) == spec


def test_16_bits_are_for_sums_of_logits_alone():
    joint = {"problem": "joint"}
    assert bits_of(train=joint, aggregation={"ring_bits": 16}) == (16, 7, 32.0)
    for train in ({}, {"problem": "hyper_parameters"}, {"algorithm": "asysqn"}):
        with pytest.raises(SpecInvalid, match="two or three digits"):
            bits_of(train=train, aggregation={"ring_bits": 16})
    with pytest.raises(SpecInvalid, match="does not fit a ring of 16 bits"):
        bits_of(parties=8, train=joint, aggregation={"ring_bits": 16})
