"""What a spec of a generalised linear model may say, and what it says of a run."""

import numpy as np
import pytest

from parley.protocols.glm.messages import GlmRound, Solution
from parley.protocols.manifest import statements_of
from parley.spec.parsing import SpecInvalid, parse_spec

SPEC = """
name: glm
parties: [a, b, c]
train: {{algorithm: glm{train}}}
privacy: {{labels: {labels}}}
"""


def parse(train="", labels='{mechanism: "off"}'):
    return parse_spec(SPEC.format(train=train, labels=labels))


@pytest.mark.parametrize(
    ("train", "labels", "told"),
    [
        (", family: poisson", "{mechanism: once}", "regression targets"),
        ("", "{mechanism: per_step}", "released once"),
        (", penalty: {l1_ratio: 0.5}", '{mechanism: "off"}', "strength"),
        (", family: tweedie, power: 2.5", '{mechanism: "off"}', "power"),
    ],
)
def test_what_cannot_be_done_is_refused_with_a_remedy(train, labels, told):
    with pytest.raises(SpecInvalid, match=told):
        parse(train, labels)


def test_labels_are_protected_unless_the_spec_says_otherwise():
    assert parse_spec("name: glm\nparties: [a, b, c]\ntrain: {algorithm: glm}\n").privacy.labels.mechanism == "once"


def test_whatever_was_solved_for_waits_for_the_label_ledger():
    assert GlmRound("design", first=0, count=5).label_release is None
    assert GlmRound("checkpoint", 1, solution=Solution(np.zeros(2))).label_release == 0
    assert GlmRound("shrink", solution=Solution(np.zeros(2)), tie=1.0).label_release == 0


def test_what_leaves_is_said_for_the_run_at_hand():
    plain = " ".join(statement.text for statement in statements_of(parse()))
    assert "covariance" in plain
    assert "Labels are not protected" in plain
    shrunk = " ".join(
        s.text for s in statements_of(parse(", penalty: {strength: 1, l1_ratio: 1}", "{mechanism: once}"))
    )
    assert "how alike any two rows are" in shrunk
    assert "covariance" not in shrunk
    assert "ε = 3" in shrunk
