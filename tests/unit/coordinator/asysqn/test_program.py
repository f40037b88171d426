"""What the label holder charges for the slopes that a party asks for."""

import numpy as np
import pytest

from parley.coordinator.asysqn.program import LabelHolder
from parley.coordinator.labels import LabelAccess
from parley.numerics.streams import stream
from parley.privacy.dataset_ledger import DatasetTerms
from parley.privacy.ledger import open_ledger
from parley.protocols.asysqn.messages import AllRows, Batch
from parley.protocols.tensor.codec import MessageInvalid
from parley.spec.rows import divide
from parley.spec.run import RunSpec
from parley.tables.loading import Labels

ROWS, SIZE = 40, 8
LAST_STEP = 2**32 - 2
"""The largest step whose label release is still numbered within its requester's own range."""


@pytest.fixture
def ledger():
    return open_ledger("sqlite://")


@pytest.fixture
def holder(ledger):
    spec = RunSpec.model_validate(
        {
            "name": "slopes",
            "table": "table",
            "parties": ["north", "east", "south"],
            "split": {"lower": f"0:{ROWS}", "upper": "lower", "test": 0.0},
            "train": {"algorithm": "asysqn", "estimator": "sgd", "labels_at": "coordinator", "batch": SIZE},
            "privacy": {
                "aggregation": {"kind": "pairwise"},
                "labels": {"mechanism": "per_step", "epsilon": 1, "budget": 1000},
            },
        }
    )
    ids = np.array([f"{row:02d}" for row in range(ROWS)])
    labels = Labels(ids, np.arange(ROWS) % 2, ("no", "yes"))
    access = LabelAccess(spec, "run-1", lambda *_: labels, ledger, b"k" * 32, DatasetTerms(1000.0, 0.0))
    return LabelHolder(spec, access, labels, divide(spec.split, ROWS, stream(spec.seed, "split")))


@pytest.mark.parametrize("requester", [0, 1, None])
@pytest.mark.parametrize("step", [LAST_STEP + 1, 2**32, 2**33 + 5])
def test_a_step_beyond_the_requesters_own_label_releases_is_refused_and_charges_nobody(holder, ledger, requester, step):
    with pytest.raises(MessageInvalid, match="step"):
        holder.derivative(requester, Batch(0, step), np.zeros(SIZE))
    assert not ledger.entries("run-1")


def test_the_last_step_that_can_be_numbered_is_answered_and_charged_to_its_own_rows(holder, ledger):
    derivative = holder.derivative(1, Batch(0, LAST_STEP), np.zeros(SIZE))
    assert derivative.values.shape == (SIZE,)
    assert holder.is_paid(derivative.label_release)
    assert derivative.label_release // 2**32 == 2, "the second party's own releases"
    assert ledger.entries("run-1")


def test_steps_and_the_snapshot_of_one_party_are_releases_of_their_own(holder):
    asked = [(0, AllRows()), (1, AllRows()), (0, Batch(0, 3)), (1, Batch(0, 3)), (None, Batch(0, 3))]
    sizes = [ROWS if isinstance(rows, AllRows) else SIZE for _, rows in asked]
    releases = [
        holder.derivative(requester, rows, np.zeros(size)).label_release
        for (requester, rows), size in zip(asked, sizes, strict=True)
    ]
    assert len(set(releases)) == len(asked)
