"""What a spec may say about label noise."""

import pytest
from pydantic import ValidationError

from parley.spec.protection import LabelPrivacySpec


@pytest.mark.parametrize("kind", ["auto", "randomised_response", "unary_encoding", "laplace"])
def test_every_kind_of_noise_can_be_drawn_for_each_release(kind):
    assert LabelPrivacySpec(mechanism="per_step", kind=kind).kind == kind


def test_a_regression_s_labels_have_bins_and_no_kind():
    labels = LabelPrivacySpec.model_validate({"kind": "unary_encoding", "bins": {"low": 0, "high": 1}})
    with pytest.raises(ValueError, match="leave it out"):
        labels.check_kind(real=True)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [({"mechanism": "once", "kind": "laplace"}, "per_step"), ({"mechanism": "off", "kind": "laplace"}, "leave `kind`")],
)
def test_a_kind_that_would_not_be_drawn_is_refused(given, sentence):
    with pytest.raises(ValidationError, match=sentence):
        LabelPrivacySpec.model_validate(given)
