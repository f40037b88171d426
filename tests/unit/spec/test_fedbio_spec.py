import pytest

from spec.fedbio import FedbioSpec
from spec.parsing import check_spec, parse_spec

CLEANING = "task: {kind: data_cleaning, classes: [sick, well], checked: checked}"


def text(train=CLEANING, privacy="{}", parties="[a, b, c]"):
    return f"name: x\nparties: {parties}\nprivacy: {privacy}\ntrain:\n  algorithm: fedbio\n" + "\n".join(
        f"  {line}" for line in train.splitlines()
    )


def test_cleaning_runs_fedbio_acc_with_the_papers_constants_unless_told_otherwise():
    train = parse_spec(text()).settings(FedbioSpec)
    steps = train.step_sizes
    assert train.has_momenta
    assert (steps.eta, steps.gamma, steps.tau, steps.delta, steps.offset, steps.momentum) == (
        200, 1, 0.01, 30, 10000, 0.2,
    )  # fmt: skip


def test_a_step_that_is_written_replaces_only_its_own_default():
    steps = parse_spec(text(CLEANING + "\naccelerated: false\neta: 7")).settings(FedbioSpec).step_sizes
    assert (steps.eta, steps.gamma, steps.offset) == (7, 0.5, None)


def test_a_constant_step_is_one_number():
    steps = parse_spec(text(CLEANING + "\ndelta: 0.5")).settings(FedbioSpec).step_sizes
    assert (steps.delta, steps.offset) == (0.5, None)


def test_a_representation_is_learned_without_momenta_for_stability():
    train = parse_spec(text("task: {kind: hyper_representation}")).settings(FedbioSpec)
    assert not train.has_momenta


def test_a_run_names_every_table_that_it_reads():
    task = "task: {kind: data_cleaning, classes: [sick, well], checked: seen, test: held, truth: right}"
    assert parse_spec(text(task)).tables_of(1) == ("train", "seen", "held", "right")
    assert parse_spec(text(CLEANING.replace("checked: checked", "checked: 0.1"))).tables_of(1) == ("train",)


def test_classes_may_be_numbers_but_not_truth_values():
    spec = parse_spec(text(CLEANING.replace("[sick, well]", "[0, 1]")))
    assert spec.settings(FedbioSpec).task.classes == ("0", "1")
    problems = check_spec(text(CLEANING.replace("[sick, well]", "[no, yes]")))
    assert "in quotes" in problems[0].message


@pytest.mark.parametrize(
    ("train", "privacy", "field", "message"),
    [
        (CLEANING + "\nparties_per_round: 1", "{}", "", "no sum over fewer than 2 opens"),
        (CLEANING + "\nparties_per_round: 2", "{aggregation: {minimum_parties: 3}}", "", "fewer than 3"),
        (CLEANING + "\nparties_per_round: 2", "{aggregation: {kind: two_tree}}", "", "pairwise"),
        (CLEANING + "\nparties_per_round: 4", "{}", "", "the run has 3"),
        (CLEANING.replace("checked: checked", "checked: 2"), "{}", "train.task", "share between 0 and 1"),
        (CLEANING.replace("[sick, well]", "[sick, sick]"), "{}", "train.task", "listed twice"),
        (CLEANING.replace("checked: checked", "cheked: x"), "{}", "train.task.checked", "missing"),
        ("task: {kind: cluster}", "{}", "train.task", "data_cleaning"),
    ],
)
def test_what_cannot_work_is_refused_where_it_stands(train, privacy, field, message):
    problems = check_spec(text(train, privacy))
    assert any(problem.field == field and message in problem.message for problem in problems), problems
