"""A configuration file that cannot be used is message with its line, in words, and with what was probably meant."""

import pytest

from parley.services.coordinator.config import CoordinatorConfig
from parley.services.party.config import PartyConfig
from parley.services.wire.configuration import ConfigInvalid, load_config

PARTY = """\
name: bank
identity: certificates/bank
state: state
tables:
  train:
    path: bank.csv
    id: customer
policy:
  coordinators: [hub]
  algorithms: [bambi]
  aggregations: [pairwise]
  tables: [train]
threads: 2
"""
COORDINATOR = """\
name: hub
identity: certificates/hub
state: state
parties:
  bank: {address: "localhost:7700"}
labels:
  train: {path: labels.csv}
"""


def refused(tmp_path, text, kind=PartyConfig):
    path = tmp_path / "bank.yaml"
    path.write_text(text)
    with pytest.raises(ConfigInvalid) as refusal:
        load_config(path, kind)
    return str(refusal.value).removeprefix(str(path))


@pytest.mark.parametrize(
    ("old", "new", "line", "text"),
    [
        ("algorithms: [bambi]", "algorithms: [bambii]", 10, "policy.algorithms: 'bambii' is no algorithm"),
        ("algorithms: [bambi]", "algorithms: [bambii]", 10, "did you mean `bambi`?"),
        ("[pairwise]", "[pairwize]", 11, "did you mean `pairwise`?"),
        ("tables: [train]", "tables: [tarin]", 12, "did you mean `train`?"),
        ("tables: [train]", "tabels: [train]", 12, "no such field: did you mean `tables`?"),
        ("    id: customer", "    id_column: customer", 7, "did you mean `id`?"),
        ("threads: 2", "threads: two", 13, "must be a whole number, not 'two'"),
        ("threads: 2", "thread: 2", 13, "did you mean `threads`?"),
        ("name: bank", "nmae: bank", 1, "no such field: did you mean `name`?"),
        ("    path: bank.csv\n", "    path: bank.csv\n    format: cvs\n", 7, "did you mean `csv`?"),
        ("    path: bank.csv\n", "    path: bank.csv\n    query: SELECT 1\n", 7, "belongs to a database"),
        ("threads: 2", "metrics_listen: 9100", 13, "must be text"),
    ],
)
def test_a_mistake_in_a_partys_configuration_is_told_with_its_line_and_what_was_meant(tmp_path, old, new, line, text):
    assert old in PARTY
    message = refused(tmp_path, PARTY.replace(old, new))
    assert message.startswith(f":{line}: ")
    assert text in message
    assert "Input should" not in message


def test_every_mistake_is_told_at_once(tmp_path):
    message = refused(tmp_path, PARTY.replace("threads: 2", "threads: 0").replace("[bambi]", "[bambo]"))
    assert ":10: " in message
    assert ":13: " in message


def test_a_missing_field_is_named(tmp_path):
    message = refused(tmp_path, PARTY.replace("state: state\n", ""))
    assert "state: missing; this field must be written" in message


def test_a_coordinators_configuration_is_told_alike(tmp_path):
    text = COORDINATOR + "web: {lisen: '127.0.0.1:8443'}\n"
    assert refused(tmp_path, text, CoordinatorConfig).startswith(":8: web.lisen: no such field: did you mean `listen`?")


def test_classes_are_named_in_their_order_and_truth_values_asked_for_again(tmp_path):
    path = tmp_path / "coordinator.yaml"
    path.write_text(COORDINATOR + "  a: {path: a.csv, classes: [ok, fraud]}\n  b: {path: a.csv, classes: [1, 0]}\n")
    labels = load_config(path, CoordinatorConfig).labels
    assert (labels["a"].classes, labels["b"].classes) == (["ok", "fraud"], ["1", "0"])
    text = COORDINATOR + "  a: {path: a.csv, classes: [no, yes]}\n"
    assert "put them in quotes" in refused(tmp_path, text, CoordinatorConfig)


def test_what_is_no_yaml_is_told_with_its_line(tmp_path):
    assert refused(tmp_path, PARTY + "extra: [1\n").startswith(":15: not YAML")
    assert "a configuration is a mapping of fields" in refused(tmp_path, "- bank\n")


def test_a_key_that_is_written_twice_is_refused(tmp_path):
    assert refused(tmp_path, PARTY + "name: other\n").startswith(":14: name: written twice")


def test_anchors_may_be_used_in_a_configuration(tmp_path):
    path = tmp_path / "bank.yaml"
    path.write_text(
        PARTY.replace("  train:\n    path: bank.csv", "  fresh: &columns\n    path: bank.csv").replace(
            "policy:", "  train:\n    <<: *columns\n    path: other.csv\npolicy:"
        )
    )
    tables = load_config(path, PartyConfig).tables
    assert tables["train"].id == "customer"
    assert tables["train"].path == str(tmp_path / "other.csv")


def test_an_anchor_that_holds_itself_is_refused_not_followed_for_ever(tmp_path):
    assert refused(tmp_path, PARTY + "extra: &loop [*loop]\n").startswith(":14: extra: no such field")
