"""Runs with more parties than anybody has machines."""

import json

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from parley.cli import app
from parley.simulation.many import deal_out, party_names, simulate, with_parties
from parley.simulation.runs import holdings_of, models_of, simulation_of
from parley.spec.parsing import SpecInvalid

SPEC = {
    "name": "many", "table": "records", "parties": ["a", "b", "c"], "dtype": "float64", "evaluate_every": 0,
    "train": {
        "algorithm": "fedbio", "rounds": 1, "batch": 8, "checked_batch": 4,
        "task": {"kind": "data_cleaning", "classes": [str(label) for label in range(10)], "checked": 0.25},
    },
    "privacy": {"aggregation": {"kind": "pairwise", "fraction_bits": 36}},
}  # fmt: skip


def test_names_of_parties_are_in_the_order_of_their_blocks():
    assert party_names(1000) == sorted(party_names(1000))


def test_a_spec_has_up_to_1024_parties():
    assert len(with_parties(yaml.safe_dump(SPEC), 1024).parties) == 1024
    with pytest.raises(SpecInvalid):
        with_parties(yaml.safe_dump(SPEC), 1025)


def test_masks_between_neighbours_cancel_in_a_whole_run(tmp_path):
    """80 parties in one sum are beyond all pairs: the model is that of sums in the clear, up to the ring's rounding."""
    spec = with_parties(yaml.safe_dump(SPEC), 80)
    stores, labels = deal_out(spec, "digits", tmp_path)
    masked = simulate(spec, stores, labels)
    clear = simulation_of(spec, holdings_of(spec, stores), labels.load)
    for one, other in zip(masked.models, models_of(clear, clear.run()), strict=True):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_allclose(one[name].numpy(), other[name].numpy(), rtol=1e-6, atol=1e-6)


def test_the_command_says_what_a_round_costs(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(SPEC))
    done = CliRunner().invoke(app, ["simulate", str(path), "--parties", "4", "--limit", "120", "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["parties"], told["sampled"]) == (4, 4)
    assert told["round trips"] > 0 < told["memory"]
