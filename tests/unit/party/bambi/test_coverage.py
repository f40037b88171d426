"""What BAMBI foretells of its sums, for the owner's floors."""

import numpy as np
import pytest

from parley.party.bambi.role import coverage
from parley.party.roles import Opened
from parley.services.party.config import TableConfig
from parley.services.party.tables import TableStore
from parley.spec.parsing import parse_spec

ROWS = 100


@pytest.fixture
def store(tmp_path):
    lines = "".join(f"{row:03},{row % 7},{row % 5}\n" for row in range(ROWS))
    (tmp_path / "train.csv").write_text("id,a,b\n" + lines)
    return TableStore({"train": TableConfig(path=tmp_path / "train.csv")})


def covered(store, train: str, upper: str = "'60:80'"):
    split = f"{{lower: '0:60', upper: {upper}, test: '80:100'}}"
    spec = parse_spec(f"name: r\nparties: [a, b, c]\nsplit: {split}\ntrain: {{algorithm: bambi, {train}}}\n")
    return coverage(Opened(spec, 0, "run", "s", store.load("train"), store))


def test_a_batch_is_the_smaller_one_of_both_levels(store):
    found = covered(store, "lower: {batch: 30}, upper: {batch: 5, steps: 1}")
    assert (found.rows, found.batch, found.evaluated, found.rank) == (80, 5, 20, None)


def test_a_linear_block_has_the_rank_of_its_columns(store):
    assert covered(store, "model: {kind: identity}").rank == 2
    assert covered(store, "problem: hyper_parameters").rank == 2


def test_gradient_steps_are_counted_one_by_one_on_every_trajectory(store):
    steps = "hypergradient: zeroth_order, upper: {steps: 0}, lower: {solver: sgd, warmup_steps: 7}"
    assert covered(store, steps).sums == 14 + 1  # and a look at the held-out rows


@pytest.mark.parametrize(("rows", "batch", "share"), [(8192, 60, 1.0), (20, 20, 1 / 3), (7, 6, 1 / 9), (1, 1, 1 / 60)])
def test_an_exchange_of_local_rounds_covers_its_own_part_of_the_rows(store, rows, batch, share):
    found = covered(store, f"hypergradient: local, local: {{rows: {rows}, exchanges: 90}}", "lower")
    assert (found.batch, found.share) == (batch, pytest.approx(share))
    assert found.sums == np.ceil(90 * share) + 9  # looks at the held-out rows, every ten exchanges
