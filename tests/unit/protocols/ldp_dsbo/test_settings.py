"""Which classes and tasks a spec of LDP-DSBO may ask for."""

import pytest
import yaml

from parley.party.ldp_dsbo.objectives import Bounds
from parley.party.ldp_dsbo.role import settings_of
from parley.party.ldp_dsbo.softmax import SoftmaxBounds
from parley.protocols.ldp_dsbo.settings import LdpDsboSpec
from parley.spec.parsing import SpecInvalid, parse_spec


def bounds_of(columns=("a", "b"), **train):
    content = {"algorithm": "ldp_dsbo", "epsilon": 9, **train}
    run = parse_spec(yaml.safe_dump({"name": "one", "parties": ["north", "east", "south"], "train": content}))
    return settings_of(run.settings(LdpDsboSpec), run.seed, columns).bounds


def test_more_than_two_classes_are_softmax_regression():
    assert isinstance(bounds_of(classes=["no", "yes"]), Bounds)
    found = bounds_of(classes=[0, 1, 2], task={"kind": "hyper_parameters", "initial": -6.5})
    assert isinstance(found, SoftmaxBounds)
    assert (found.features, found.classes, found.enforced.initial) == (2, 3, -6.5)


@pytest.mark.parametrize(
    ("train", "words"),
    [
        ({"classes": ["0"]}, "classes"),
        ({"classes": ["0", "1", "0"]}, "a class is named twice"),
        ({"classes": ["0", "1", "2"], "task": {"kind": "meta_learning", "tasks": 2}}, "has two classes, not 3"),
    ],
)
def test_classes_that_cannot_be_learnt_are_refused(train, words):
    with pytest.raises(SpecInvalid, match=words):
        bounds_of(**train)
