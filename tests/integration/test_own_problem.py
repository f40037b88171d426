"""Problems of one's own between real processes: they learn, they pay for what they read, and strangers are refused."""

import numpy as np
import pytest
import sqlalchemy as sa
import yaml

from parley.client import RequestRefused
from parley.commands.variables import kept_variables
from parley.privacy.ledger import Ledger
from tests.integration.conftest import spec

SHIPPED = "parley.numerics.problems."


def own(own, **changes):
    content = yaml.safe_load(
        spec(
            table="cancer",
            train__problem="own",
            train__own=own,
            train__loss="logistic",
            train__regularisation=0.01,
            train__upper={"steps": 4, "batch": None, "optimiser": {"kind": "adam", "step": 0.2}},
            train__lower={"steps": 1, "warmup_steps": 2},
            **changes,
        )
    )
    del content["train"]["model"]
    return yaml.safe_dump(content)


def test_both_sides_of_a_problem_learn_together_with_an_attribute_that_is_paid_for_apart(client, federation):
    """The attribute here is the label itself, out of the same table: noise that is drawn once is paid for once."""
    sides = {
        "label_side": {"path": f"{SHIPPED}fairness:FairScores", "options": {"price": 0.5}},
        "party_side": {"path": f"{SHIPPED}feature_selection:FeatureGates"},
        "attribute": "cancer",
    }
    run = client.start(own(sides))
    found = run.result()
    assert found["test accuracy"] > 0.8
    assert 0 <= found["gap between groups"] <= 1.5
    accounts = Ledger(
        sa.create_engine(f"sqlite:///{federation.directory / 'state' / 'coordinator' / 'coordinator.db'}")
    )
    for account in (run.run_id, f"{run.run_id}/cancer"):
        entry, _ = accounts.newest(account)
        assert entry.epsilon == pytest.approx(5)


def test_what_the_label_side_has_learned_is_read_on_its_own_host(client, federation):
    side = {"path": f"{SHIPPED}sample_weights:SampleWeights"}
    run = client.start(own({"label_side": side}, checkpoint_every=3))
    run.result()
    found = kept_variables(run.run_id, federation.directory / "coordinator.yaml")["logits"]
    assert found.shape == (569,)
    assert len(np.unique(found)) > 100, "the lower rows have moved"
    assert 1 / (1 + np.exp(-found.mean())) == pytest.approx(run.metrics["mean weight"], abs=0.1)


def test_code_that_the_coordinator_s_owner_has_not_listed_is_refused(client):
    with pytest.raises(RequestRefused, match=r"coordinator does not allow problems from 'os:system'.*PROBLEM_REFUSED"):
        client.start(own({"label_side": {"path": "os:system"}}))


def test_code_that_a_party_s_owner_has_not_listed_is_refused(client):
    with pytest.raises(RequestRefused, match="party does not allow problems from 'os:system'"):
        client.start(own({"party_side": {"path": "os:system"}}))


def test_options_that_a_problem_does_not_take_are_refused(client):
    side = {"path": f"{SHIPPED}class_weights:ClassWeights", "options": {"speed": 3}}
    with pytest.raises(RequestRefused, match=r"correct `options`.*PROBLEM_REFUSED"):
        client.start(own({"label_side": side}))
