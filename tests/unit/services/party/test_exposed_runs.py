"""What a session would expose: from which rows, and with whom."""

from types import SimpleNamespace

import numpy as np
import pytest
import yaml

from parley.party.roles import Coverage, Opened
from parley.services.party.exposed_runs import asked_of
from parley.spec.parsing import parse_spec
from parley.tables.loading import Table

TABLE = Table(np.array(["a", "b"]), np.zeros((2, 1)), ["x"], "train")
ROWS = Coverage(rows=60, batch=30, sums=1, drawn="30 of 60")
CLEANING = {
    "algorithm": "fedbio",
    "task": {"kind": "data_cleaning", "classes": ["0", "1"], "checked": "checked"},
}


def exposed(covered=ROWS, run="run", train=CLEANING, parties=("bank", "shop", "telco", "grocer"), **changes):
    content = {"name": "exposed", "parties": list(parties), "train": train, **changes}
    opened = Opened(parse_spec(yaml.safe_dump(content)), 0, run, "session", TABLE, SimpleNamespace())
    reads = SimpleNamespace(digests={"table train": "digest"}, further={})
    return asked_of(opened, covered, reads).exposure


@pytest.mark.parametrize(
    "change",
    [
        {"covered": Coverage(rows=60, batch=31, sums=1, drawn="31 of 60")},
        {"train": CLEANING | {"task": CLEANING["task"] | {"checked": "others"}}},
        {"train": CLEANING | {"parties_per_round": 3}},
        {"privacy": {"aggregation": {"recovery": True}}},
    ],
)
def test_another_choice_of_rows_or_of_parties_is_told_apart(change):
    assert exposed(**change).drawn != exposed().drawn


def test_the_same_choice_is_the_same_in_every_run_unless_parties_may_be_lost():
    assert exposed(run="other", train=CLEANING | {"gamma": 0.1}, seed=9).drawn == exposed().drawn
    lossy = {"privacy": {"aggregation": {"recovery": True}}}
    assert exposed(run="other", **lossy).drawn != exposed(**lossy).drawn
    sampled = {"train": CLEANING | {"parties_per_round": 3}}
    assert exposed(seed=9, **sampled).drawn != exposed(**sampled).drawn, "the seed samples others"


def test_an_algorithm_that_does_not_say_which_rows_counts_all_of_its_settings():
    silent = Coverage(rows=60, batch=30, sums=1)
    assert exposed(silent, train=CLEANING | {"gamma": 0.1}).drawn != exposed(silent).drawn
    assert exposed(silent, train={"algorithm": "bambi"}).drawn == "", "every row has values of its own"


def test_a_partner_that_reads_another_table_is_another_partner():
    other = exposed(parties=("bank", "shop", {"name": "telco", "table": "spring"}))
    assert other.partners == ("bank", "shop", "telco: spring")
    assert exposed(parties=("bank", "shop", "telco"), table="train").partners == ("bank", "shop", "telco")
