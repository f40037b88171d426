from pathlib import Path

import numpy as np
import pytest

from parley.experiments.hgp_personalisation import (
    CLASSES,
    METHODS,
    MissingData,
    Scale,
    UnknownMethod,
    measure,
    mixing_of,
    run,
    split_parties,
)
from parley.numerics.networks import check_strongly_connected
from parley.numerics.streams import stream

SCALE = Scale(parties=6, rows=900, train_steps=1, outer_steps=1, networks=("RandD",))


def drawn():
    draw = stream(0, "images")
    return draw.integers(0, 256, size=(1000, 28, 28)).astype(np.uint8), draw.integers(0, CLASSES, size=1000)


def test_every_chosen_row_goes_to_exactly_one_part_of_one_party():
    images, labels = drawn()
    parties = split_parties(images, labels, SCALE, seed=0)
    parts = [part for party in parties for part in (party.training, party.validation, party.test)]
    assert sum(len(part.labels) for part in parts) == 900
    assert all(len(part.features) == len(part.labels) for part in parts)
    rows = np.concatenate([part.features for part in parts])
    assert len(np.unique(rows, axis=0)) == 900


@pytest.mark.parametrize("name", ["FC", "FixU", "RandU", "RandD"])
def test_the_sparse_networks_are_connected_at_both_sizes(name):
    for parties in (12, 100):
        mixing = mixing_of(name, parties, seed=0)
        check_strongly_connected(mixing.plan, window=mixing.window, steps=100)


def test_missing_data_is_refused_with_the_place_where_it_was_looked_for(tmp_path: Path):
    with pytest.raises(MissingData, match="--data"):
        run(True, None)
    with pytest.raises(MissingData, match="emnist"):
        run(True, tmp_path)


def test_every_method_can_be_chosen_and_gives_accuracies():
    images, labels = drawn()
    parties = split_parties(images, labels, SCALE, seed=0)
    for method in METHODS:
        found = measure(method, "RandD", parties, SCALE)
        assert 0.0 <= found.bottom_decile <= found.mean <= 0.2  # images of noise: nothing can be learnt


def test_an_unknown_method_is_refused_with_those_that_there_are():
    with pytest.raises(UnknownMethod, match="Local, SGP, HGP-MTL, HGP-PL"):
        measure("FedProx", "RandD", [], SCALE)
