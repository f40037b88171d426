"""A party makes its figures once, in the units of its table, and tells nothing over few rows."""

import numpy as np
import pytest
import torch

from parley.party.explore.role import STRONGEST, ExploreRole, columns_of, figures
from parley.party.explore.steps import OF_A_BIN, SUMMARY, Columns
from parley.party.roles import Opened
from parley.protocols.explore.messages import ExploreRound, ReleasedLabels
from parley.protocols.explore.settings import ExploreSpec
from parley.protocols.tensor.codec import MessageInvalid
from parley.services.party.tables import TableStore
from parley.spec.parsing import parse_spec
from parley.tables.loading import Table
from parley.tables.preprocessing import Declared, apply, fit

VALUES = np.random.default_rng(0).normal(50, 10, (100, 2))
LABELS = ReleasedLabels(np.tile([0, 1], 50).astype(np.uint8))
SPEC = parse_spec("name: e\nparties: [a, b, c]\ntrain: {algorithm: explore}\n")


def role(against=True):
    columns = Columns(VALUES, VALUES[:30], np.array([0.0, np.nan]), np.array([[-1.0, 1.0]] * 2))
    return ExploreRole(columns, ExploreSpec(algorithm="explore", bins=3, against_label=against))


def test_figures_are_told_by_column_and_name_and_those_that_are_not_there_are_not():
    party = role()
    state = party.plan(party.begin(None), ExploreRound("finish", 1, LABELS)).state
    found = {(one.column, one.figure): one.value for one in figures(party.model_tensors(state), ["x", "y"])}
    assert found["x", "rows"] == 100
    assert found["x", "mean"] == pytest.approx(VALUES[:, 0].mean())
    assert {("x", "missing share"), ("x", "psi"), ("x", "iv"), ("x", "bin 3 woe")} <= found.keys()
    assert ("y", "missing share") not in found  # too few were missing
    assert ("x", "bin 3 up to") not in found


ONE_ROW = ReleasedLabels((np.arange(100) == 17).astype(np.uint8))
"""What a coordinator sends that asks in which bins row 17 is."""


@pytest.mark.parametrize(
    ("against", "labels"),
    [(True, None), (False, LABELS), (True, ReleasedLabels(LABELS.classes[:7])), (True, ONE_ROW)],
)
def test_labels_come_as_the_spec_says_or_not_at_all(against, labels):
    party = role(against)
    with pytest.raises(MessageInvalid):
        party.plan(party.begin(None), ExploreRound("finish", 1, labels))


def test_labels_come_once():
    party = role()
    kept = party.plan(party.begin(None), ExploreRound("checkpoint", 1, LABELS)).state
    with pytest.raises(MessageInvalid, match="first round"):
        party.plan(kept, ExploreRound("finish", 1, LABELS))


def test_scaled_and_filled_columns_are_told_in_the_units_of_the_table():
    raw = VALUES.copy()
    raw[:30, 0], raw[:3, 1] = np.nan, np.nan
    table = Table(np.array([f"{row:03}" for row in range(100)]), raw, ["x", "y"], "train")
    scaled = apply(fit(Declared("mean", scale="standard"), table, np.arange(100)), table)
    found = columns_of(Opened(SPEC, 0, "run", "session", scaled, TableStore({})))
    assert found.reference[:, 1].mean() == pytest.approx(np.nanmean(raw[:, 1]), rel=0.05)
    assert found.missing[0] == 0.3
    assert np.isnan(found.missing[1])


class Ideal:
    """Releases without noise."""

    def __init__(self, added=0.0):
        self.added, self.seen = added, None

    def release(self, counts):
        self.seen = counts
        return counts + self.added


def noised_role(counts, values=VALUES, low=0.0, high=100.0, cell=20):
    columns = Columns(values, values[:30], np.zeros(2), np.array([[low, high]] * 2))
    settings = ExploreSpec(algorithm="explore", bins=3, smallest_cell=cell, against_label=True)
    return ExploreRole(columns, settings, counts)


def told_by(party):
    state = party.plan(party.begin(None), ExploreRound("finish", 1, LABELS)).state
    return {(one.column, one.figure): one.value for one in figures(party.model_tensors(state), ["x", "y"])}


def test_figures_of_noisy_counts_are_those_of_the_counts_and_nothing_else():
    counts = Ideal()
    found = told_by(noised_role(counts))
    edges = [found["x", f"bin {number} up to"] for number in (1, 2)]
    inside = np.searchsorted(edges, VALUES[:, 0])
    shares = np.bincount(inside) / 100
    assert [found["x", f"bin {number} share"] for number in (1, 2, 3)] == pytest.approx(shares)
    zero, one = (np.bincount(inside[LABELS.classes == c]) / 50 for c in (0, 1))
    assert found["x", "iv"] == pytest.approx(np.sum((zero - one) * np.log(zero / one)))
    assert {figure for _, figure in found if not figure.startswith("bin ")} == {"rows", "psi", "iv"}
    assert counts.seen.sum() == 2 * 130  # each row is in one cell of each column


def test_a_row_moves_two_cells_of_each_column_by_one_whatever_it_becomes():
    counts, moved = Ideal(), Ideal()
    told_by(noised_role(counts))
    other = VALUES.copy()
    other[50] = [-1e300, 1e300]
    told_by(noised_role(moved, other))
    changed = np.abs(moved.seen - counts.seen)
    assert changed.max() == 1
    assert changed.sum(axis=(1, 2)).tolist() == [2, 2]


@pytest.mark.parametrize("added", [-40.0, -1.0, 0.0, 3.0])
def test_no_bin_of_noisy_counts_has_fewer_rows_than_a_cell_unless_it_is_alone(added):
    found = told_by(noised_role(Ideal(added), cell=30))
    shares = [value for (column, name), value in found.items() if column == "x" and name.endswith("share")]
    assert 1 <= len(shares) <= 3
    assert sum(shares) == pytest.approx(1)
    total = 100 + 2 * 64 * added
    assert len(shares) == 1 or min(shares) * total >= 30
    assert np.isfinite(list(found.values())).all()


def test_what_carries_no_noise_is_refused_beside_noisy_counts():
    with pytest.raises(ValueError, match="no noise on correlations"):
        parse_spec(
            "name: e\nparties: [a, b, c]\ntrain: {algorithm: explore, correlations: true}\n"
            "privacy: {features: {kind: counts}}\n"
        )
    with pytest.raises(ValueError, match="makes none"):
        parse_spec("name: e\nparties: [a, b, c]\ntrain: {algorithm: glm}\nprivacy: {features: {kind: counts}}\n")


def test_of_very_many_correlations_the_strongest_of_each_column_are_told():
    width = STRONGEST + 30
    values = np.linspace(-0.3, 0.5, 2 * width).reshape(2, width)
    values[0, 0], values[1, 1] = np.nan, np.nan  # a column with itself
    others = np.array([(0, 1), (0, 2), *((1, number) for number in range(1, width - 1))])
    kept = {
        "summary": torch.full((2, len(SUMMARY)), torch.nan),
        "bins": torch.full((2, 3, len(OF_A_BIN)), torch.nan),
        "correlations": torch.tensor(values),
        "inflation": torch.full((2,), torch.nan),
        "correlated places": torch.arange(2),
        "correlated others": torch.tensor(others),
        "correlated parties": torch.tensor(list(b"bank\nshop"), dtype=torch.uint8),
    }
    found = [one for one in figures(kept, ["age", "town=Oslo"]) if one.figure.startswith("correlation with")]
    for column, row in zip(("age", "town=Oslo"), values, strict=True):
        told = [abs(one.value) for one in found if one.column == column]
        assert sorted(told) == sorted(np.abs(row[~np.isnan(row)]))[-STRONGEST:]
