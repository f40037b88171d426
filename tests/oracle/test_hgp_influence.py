"""The influence of training rows against retraining without them."""

import pytest

from parley.experiments.hgp_influence import estimate_influence
from parley.party.hgp.steps import Form


@pytest.mark.parametrize("seed", [0, 1])
def test_predicted_influence_matches_retraining_in_sign_scale_and_order(seed):
    influence = estimate_influence(seed, rounds=300, push_steps=10, form=Form.TRACK, trained=False)
    assert influence.r2 >= 0.98
    assert 0.95 <= influence.slope <= 1.1
    assert influence.f1 == 1.0


def test_without_consensus_the_estimate_is_off_in_scale():
    """One round of one push step: the signs may survive, the scale does not."""
    influence = estimate_influence(0, rounds=1, push_steps=1, form=Form.REINIT, trained=False)
    assert influence.r2 < 0.5
