"""Which specs a party opens sessions for: approved ones, and one for each run."""

import numpy as np
import pytest
import torch

from parley.contracts.party.v1 import party_service_pb2 as pb
from parley.party.explore.steps import Columns, explore
from parley.protocols.explore.messages import ReleasedLabels
from parley.protocols.tensor.codec import MessageInvalid
from parley.services.party.approvals import ApprovalMissing, Approvals
from parley.services.party.config import PartyConfig
from parley.services.party.policy import PolicyRefused
from parley.services.party.preprocessing import to_keep
from parley.services.party.servicer import PartyServicer
from parley.services.party.sessions import SpecDiffers
from parley.services.wire.certificates import create_authority, issue
from parley.services.wire.routes import Routes
from parley.spec.digests import spec_digest
from parley.spec.parsing import parse_spec

SPEC = """
name: small
table: train
parties: [bank, shop]
train: {algorithm: bambi, upper: {steps: 1}}
"""


@pytest.fixture
def party(tmp_path):
    """Makes a party with a table, under a policy."""
    create_authority(tmp_path / "authority", "test")
    identity = issue(tmp_path / "authority", "bank", "party", ["localhost"])
    (tmp_path / "state").mkdir()
    floors = {"minimum_parties": 2, "minimum_evaluation": 1}
    (tmp_path / "train.csv").write_text("id,a,b\n" + "".join(f"{row},{row % 7},{row % 5}\n" for row in range(40)))

    def make(**policy):
        return PartyServicer(
            PartyConfig(
                name="bank",
                identity=identity,
                state=tmp_path / "state",
                tables={"train": {"path": tmp_path / "train.csv"}},
                policy={"coordinators": ("hub",), "algorithms": ("bambi", "explore"), **floors, **policy},
            ),
            Routes(identity, tmp_path / "sockets"),
        )

    return make


def opening(text=SPEC, **fields):
    return pb.OpenSessionRequest(run_id="run", session_id="s", spec_yaml=text, purpose=pb.PURPOSE_TRAIN, **fields)


def test_a_party_that_requires_approval_opens_what_its_owner_has_approved_and_nothing_else(party, tmp_path):
    servicer, digest = party(approval="required"), spec_digest(parse_spec(SPEC))
    with pytest.raises(ApprovalMissing, match=digest):
        servicer._prepared(opening(), "hub")
    Approvals(tmp_path / "state").approve(digest)
    assert servicer._prepared(opening(), "hub").agreement.spec_digest.hex() == digest
    with pytest.raises(ApprovalMissing):
        servicer._prepared(opening(SPEC.replace("steps: 1", "steps: 2")), "hub")


def test_a_run_that_has_begun_keeps_its_spec(party):
    servicer = party()
    session = servicer._prepared(opening(), "hub")
    servicer._store.save_spec("run", session.agreement.spec_digest.hex())
    servicer._prepared(opening(SPEC.replace("name: small", "name: small # the same")), "hub")
    with pytest.raises(SpecDiffers, match="start a new run"):
        servicer._prepared(opening(SPEC.replace("steps: 1", "steps: 2")), "hub")


def test_a_run_whose_spec_this_version_reads_differently_is_told_so(party):
    servicer = party()
    servicer._store.save_spec("run", "0" * 64)
    servicer._store.save_spec_yaml("run", SPEC)
    with pytest.raises(SpecDiffers, match="reads it differently from the version that the run began with"):
        servicer._prepared(opening(), "hub")


@pytest.mark.parametrize("fields", [{"ids": ["3"]}, {"table": "train"}])
def test_a_session_that_trains_takes_no_rows_of_the_coordinators_choice(party, fields):
    with pytest.raises(MessageInvalid, match="takes no ids"):
        party()._prepared(opening(**fields), "hub")


RANGES = np.array([[-1.0, 1.0]] * 2)
"""Where noised counts are made, which these explorations have none of."""
BINNED = SPEC.replace("table: train", "table: train\nbinned_by: explored-1")


def keep_exploration(servicer, coordinator="hub"):
    """What a run of `algorithm: explore` leaves at a party."""
    values = np.array([[row % 7, row % 5] for row in range(40)], dtype=np.float64)
    classes = np.array([row % 3 == 0 for row in range(40)], dtype=np.uint8)
    made = explore(Columns(values, values[:0], np.zeros(2), RANGES), 3, 5, ReleasedLabels(classes, 0.0))
    store, table = servicer._store, servicer._prepared(opening(), "hub").opened.table
    store.claim("explored-1", coordinator)
    store.save_algorithm("explored-1", "explore")
    store.save_preprocessing("explored-1", to_keep(table).to_json())
    store.save_model("explored-1", {"summary": torch.tensor(made.summary), "bins": torch.tensor(made.bins)})
    return made.bins[:, :, 2]


def test_a_run_that_names_an_exploration_sees_weights_of_evidence(party):
    servicer = party()
    weights = keep_exploration(servicer)
    table = servicer._prepared(opening(BINNED), "hub").opened.table
    assert list(table.columns) == ["a", "b"]
    for column in range(2):
        assert set(np.unique(table.features[:, column])) <= set(weights[column])
        assert len(np.unique(table.features[:, column])) > 1
    assert to_keep(table).bins


def test_bins_of_another_coordinators_run_or_of_none_are_refused(party):
    servicer = party()
    with pytest.raises(PolicyRefused, match="has nothing of run explored-1"):
        servicer._prepared(opening(BINNED), "hub")
    keep_exploration(servicer, "other")
    with pytest.raises(PolicyRefused, match="another coordinator"):
        servicer._prepared(opening(BINNED), "hub")
