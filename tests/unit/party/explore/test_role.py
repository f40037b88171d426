"""A party makes its figures once, in the units of its table, and tells nothing over few rows."""

import numpy as np
import pytest

from parley.party.explore.role import ExploreRole, columns_of, figures
from parley.party.explore.steps import Columns
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
