"""A mistake in a spec is sentence with its line, in words, and with what was probably meant."""

import pytest

from parley.protocols.bambi.settings import BambiSpec
from parley.protocols.fedbio.settings import FedbioSpec
from parley.spec.parsing import check_spec

SPEC = """\
name: digits
parties: [bank, shop, telco]
split: {lower: 0.6, upper: 0.2, test: 0.2}
train:
  algorithm: bambi
  loss: softmax
  model:
    kind: mlp
    hidden: [64]
  upper:
    steps: 20
  lower:
    solver: newton
privacy:
  aggregation:
    kind: pairwise
    minimum_parties: 3
  labels:
    epsilon: 3
"""


def problems_of(*changes):
    text = SPEC
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return check_spec(text)


def only(*changes):
    (problem,) = problems_of(*changes)
    return problem


def test_what_the_owner_of_a_table_sets_is_said_to_be_the_owners():
    problem = only(("split:", "standardise: true\nsplit:"))
    assert problem.field == "standardise"
    assert "`tables` of the party's configuration" in problem.message


def test_a_list_with_a_wrong_item_is_not_called_too_short_as_well():
    problem = only(("[bank, shop, telco]", "[{name: bank, standardise: true}]"))
    assert problem.field == "parties.0.standardise"
    assert only(("[bank, shop, telco]", "[]")).message == "needs at least 1 entries, and has 0"


@pytest.mark.parametrize(
    ("old", "new", "field", "line", "meant"),
    [
        ("    steps: 20", "    stepz: 20", "train.upper.stepz", 11, "steps"),
        ("  loss: softmax", "  regularization: 1", "train.regularization", 6, "regularisation"),
        ("split:", "spilt:", "spilt", 3, "split"),
        ("    epsilon: 3", "    epsilom: 3", "privacy.labels.epsilom", 19, "epsilon"),
        ("    minimum_parties: 3", "    minimum-parties: 3", "privacy.aggregation.minimum-parties", 17,
         "minimum_parties"),
    ],
)  # fmt: skip
def test_a_field_that_is_misspelt_is_told_with_the_one_that_was_meant(old, new, field, line, meant):
    problem = only((old, new))
    assert (problem.field, problem.line) == (field, line)
    assert f"no such field: did you mean `{meant}`?" in problem.message


def test_a_field_in_the_wrong_section_is_told_where_it_belongs():
    problem = only(("  loss: softmax", "  epsilon: 3"))
    assert "it belongs in `privacy.labels`" in problem.message
    problem = only(("  loss: softmax", "  steps: 3"))
    assert "it belongs in `train.upper` or `train.lower`" in problem.message


def test_a_field_like_no_other_is_told_with_those_that_there_are():
    problem = only(("    solver: newton", "    xyzzy: 1"))
    names = "solver, steps, batch, optimiser, averaging, warmup_steps, final_steps"
    assert f"no such field; there are {names}" in problem.message


@pytest.mark.parametrize(
    ("old", "new", "field", "line", "meant"),
    [
        ("algorithm: bambi", "algorithm: bambii", "train.algorithm", 5, "did you mean `bambi`?"),
        ("algorithm: bambi", "algoritm: bambi", "train.algorithm", 4, "is it `algoritm` that should be `algorithm`?"),
        ("kind: pairwise", "kind: pairwize", "privacy.aggregation.kind", 16, "did you mean `pairwise`?"),
        ("loss: softmax", "loss: SoftMax", "train.loss", 6, "did you mean `softmax`?"),
        ("solver: newton", "solver: quick", "train.lower.solver", 13, "must be newton or sgd, not 'quick'"),
    ],
)
def test_a_word_that_is_misspelt_is_told_with_the_one_that_was_meant(old, new, field, line, meant):
    problem = only((old, new))
    assert (problem.field, problem.line) == (field, line)
    assert meant in problem.message


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("steps: 20", "steps: many", "must be a whole number, not 'many'"),
        ("steps: 20", "steps: 2.5", "must be a whole number, not 2.5"),
        ("steps: 20", "steps: -1", "must be at least 0, not -1"),
        ("epsilon: 3", "epsilon: 0", "must be more than 0, not 0"),
        ("epsilon: 3", "epsilon: 1000", "must be at most 100, not 1000"),
        ("epsilon: 3", "epsilon: .inf", "must be a finite number"),
        ("[bank, shop, telco]", "bank", "must be a list, such as [a, b]"),
        ("[bank, shop, telco]", "[]", "needs at least 1"),
        ("name: digits", "name: [1]", "must be text"),
        ("name: digits", "name: my run", "may hold letters, digits, dots, dashes and underscores"),
        ("    kind: pairwise\n    minimum_parties: 3", "    - pairwise", "must be a section of fields"),
    ],
)
def test_no_mistake_is_told_in_the_words_of_a_library(old, new, message):
    sentence = only((old, new)).message
    assert message in sentence
    assert "Input should" not in sentence


@pytest.mark.parametrize(
    ("changes", "field", "line", "message"),
    [
        ([("minimum_parties: 3", "minimum_parties: 5")], "privacy.aggregation.minimum_parties", 17, "lists 3"),
        ([("minimum_parties: 3", "minimum_parties: 5")], "privacy.aggregation.minimum_parties", 17, "line 2"),
        ([("kind: pairwise\n    minimum_parties: 3", "kind: two_tree"), (", telco", "")],
         "privacy.aggregation.kind", 16, "three parties"),
        ([("epsilon: 3", "epsilon: 3\n    budget: 1")], "privacy.labels.budget", 20, "does not cover"),
        ([("  loss: softmax", "  hypergradient: zeroth_order")], "train.hypergradient", 6, "gradient steps"),
        ([("kind: mlp", "kind: linear")], "train.model.hidden", 9, "has no hidden layers"),
        ([("hidden: [64]", "hidden: [0]")], "train.model.hidden", 9, "between 1 and 65536"),
        ([("kind: pairwise", "ring_bits: 32\n    fraction_bits: 30")], "privacy.aggregation.fraction_bits", 17, "ring"),
        ([("loss: softmax", "loss: squared")], "privacy.labels", 18, "regression"),
        ([("telco]", "bank]")], "parties", 2, "listed twice"),
        ([("minimum_parties: 3", "threshold: 2")], "privacy.aggregation.threshold", 17, "belongs to"),
        ([("minimum_parties: 3", "recovery: true")], "privacy.aggregation.recovery", 17, "recovery is for"),
        ([("test: 0.2", "test: 0.9")], "split", 3, "add up to"),
    ],
)  # fmt: skip
def test_fields_that_contradict_each_other_are_told_with_their_lines(changes, field, line, message):
    problem = only(*changes)
    assert (problem.field, problem.line) == (field, line)
    assert message in problem.message


def test_fields_of_an_algorithm_that_contradict_the_rest_are_told_with_their_lines():
    text = """\
name: rows
parties: [a, b, c]
train:
  algorithm: fedbio
  task: {kind: data_cleaning, classes: [x, y], checked: checked}
  parties_per_round: 4
"""
    (problem,) = check_spec(text)
    assert (problem.field, problem.line) == ("train.parties_per_round", 6)


@pytest.mark.parametrize("hidden", ["64", "[64]"])
def test_one_hidden_layer_may_be_written_as_a_number(hidden):
    from parley.spec.parsing import parse_spec

    spec = parse_spec(SPEC.replace("hidden: [64]", f"hidden: {hidden}"))
    assert spec.settings(BambiSpec).model.hidden == (64,)


def test_one_hidden_layer_of_a_cleaning_task_may_be_written_as_a_number():
    from parley.spec.parsing import parse_spec

    text = (
        "name: x\nparties: [a, b]\ntrain:\n  algorithm: fedbio\n"
        "  task: {kind: data_cleaning, classes: [x, y], checked: 0.1, hidden: 8}\n"
    )
    assert parse_spec(text).settings(FedbioSpec).task.hidden == (8,)
