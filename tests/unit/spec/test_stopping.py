"""What a spec may ask of early stopping."""

import pytest
import yaml

from parley.spec.parsing import SpecInvalid, parse_spec
from parley.spec.run import LEAST_CHECKPOINTS

VERTICAL = {"algorithm": "bambi", "upper": {"steps": 50}}


def spec_of(train=VERTICAL, **changes):
    content = {"name": "one", "parties": ["a", "b", "c"], "train": train, "stop": {"metric": "test loss"}}
    return parse_spec(yaml.safe_dump(content | changes))


def test_every_evaluation_has_a_checkpoint_to_go_back_to():
    assert spec_of(evaluate_every=7).checkpoint_every == 7
    assert spec_of().checkpoint_every == 10
    assert spec_of(stop=None).checkpoint_every == 25


def test_checkpoints_are_kept_back_to_the_one_that_may_be_the_best():
    stop = {"metric": "test loss", "patience": 4}
    assert spec_of(evaluate_every=6, checkpoint_every=2, stop=stop).kept_checkpoints == LEAST_CHECKPOINTS + 12
    assert spec_of(stop=None).kept_checkpoints == LEAST_CHECKPOINTS


LDP = {"algorithm": "ldp_dsbo", "classes": ["0", "1"], "epsilon": 9, "iterations": 6, "noise": {"sigma": 20.0}}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"evaluate_every": 10, "checkpoint_every": 25}, "multiple of checkpoint_every"),
        ({"evaluate_every": 0}, "multiple of checkpoint_every"),
        ({"stop": {"metric": "validation loss"}}, "split.validation"),
        ({"train": {"algorithm": "asysqn", "steps": 9, "labels_at": "coordinator"}}, "synchronous"),
        ({"train": LDP}, "evaluates nothing"),
        ({"stop": {"patience": 0}}, "patience"),
    ],
)
def test_what_cannot_work_is_refused_with_the_remedy(changes, sentence):
    with pytest.raises(SpecInvalid, match=sentence):
        spec_of(**changes)


def test_rows_that_nothing_is_measured_on_are_refused():
    train = {
        "algorithm": "fedbio",
        "rounds": 5,
        "task": {"kind": "data_cleaning", "classes": ["0", "1"], "checked": 0.2},
    }
    with pytest.raises(SpecInvalid, match=r"split.validation.*fedbio"):
        spec_of(train, stop=None, split={"lower": 0.5, "upper": 0.2, "test": 0, "validation": 0.2})
