"""Where specs differ."""

import yaml

from parley.spec.comparison import differences

CONTENT = {"name": "one", "parties": ["a", "b", "c"], "train": {"algorithm": "bambi", "upper": {"steps": 5}}}


def text(**changes):
    return yaml.safe_dump(CONTENT | changes)


def test_specs_that_say_the_same_differ_in_nothing():
    assert differences([text(), text(seed=0)]) == {}


def test_each_field_that_differs_has_a_value_for_every_spec():
    other = {"algorithm": "bambi", "upper": {"steps": 9}}
    assert differences([text(), text(seed=3), text(train=other)]) == {
        "seed": [0, 3, 0],
        "train.upper.steps": [5, 5, 9],
    }


def test_fields_of_other_algorithms_are_none_elsewhere():
    other = {"algorithm": "asysqn", "labels_at": "coordinator"}
    found = differences([text(), text(train=other)])
    assert found["train.algorithm"] == ["bambi", "asysqn"]
    assert found["train.labels_at"] == [None, "coordinator"]
