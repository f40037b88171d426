import pytest

from parley.privacy.dropout import check_threshold
from parley.privacy.shamir import ThresholdImpossible
from parley.protocols.fedbio.settings import FedbioSpec
from parley.spec.parsing import check_spec, parse_spec

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


@pytest.mark.parametrize(
    ("train", "warm"),
    [
        (CLEANING, 270),
        (CLEANING + "\nrounds: 1", 0),
        (CLEANING + "\nwarm_rounds: 0", 0),
        (CLEANING + "\nrounds: 30\nwarm_rounds: 30", 30),
        (CLEANING + "\naccelerated: false\nlocal_steps: 1\nrecord_privacy: {}", 0),
        ("task: {kind: hyper_representation}", 0),
    ],
)
def test_nine_tenths_of_the_rounds_of_cleaning_are_warm_unless_told_otherwise(train, warm):
    assert parse_spec(text(train)).settings(FedbioSpec).warm == warm


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
        (CLEANING + "\nparties_per_round: 1", "{}", "train.parties_per_round", "no sum over fewer than 2 opens"),
        (
            CLEANING + "\nparties_per_round: 2",
            "{aggregation: {minimum_parties: 3}}",
            "train.parties_per_round",
            "fewer than 3",
        ),
        (
            CLEANING + "\nparties_per_round: 2",
            "{aggregation: {kind: two_tree}}",
            "privacy.aggregation.kind",
            "pairwise",
        ),
        (CLEANING + "\nparties_per_round: 4", "{}", "train.parties_per_round", "the run has 3"),
        (CLEANING.replace("checked: checked", "checked: 2"), "{}", "train.task.checked", "share between 0 and 1"),
        (CLEANING.replace("[sick, well]", "[sick, sick]"), "{}", "train.task.classes", "one twice"),
        (CLEANING.replace("checked: checked", "cheked: x"), "{}", "train.task.checked", "missing"),
        ("task: {kind: cluster}", "{}", "train.task.kind", "data_cleaning"),
    ],
)
def test_what_cannot_work_is_refused_where_it_stands(train, privacy, field, message):
    problems = check_spec(text(train, privacy))
    assert any(problem.field == field and message in problem.message for problem in problems), problems


TEN = "[" + ", ".join(f"h{i}" for i in range(10)) + "]"


@pytest.mark.parametrize(("parties", "needed"), [("[a, b, c, d]", 3), ("[a, b, c, d, e]", 4), (TEN, 6)])
def test_recovery_takes_the_smallest_threshold_that_withstands_one_colluder(parties, needed):
    spec = parse_spec(text(privacy="{aggregation: {recovery: true}}", parties=parties))
    count = len(spec.parties)
    assert spec.privacy.aggregation.needed(spec.sampled, count) == needed
    check_threshold(needed, count, 1)
    with pytest.raises(ThresholdImpossible):
        check_threshold(needed - 1, count, 1)


def test_an_evaluation_over_all_parties_needs_more_survivors_than_a_sampled_round():
    spec = parse_spec(text(CLEANING + "\nparties_per_round: 4", "{aggregation: {recovery: true}}", TEN))
    needed = spec.privacy.aggregation.needed
    assert (needed(spec.sampled, 4), needed(spec.sampled, 10)) == (3, 6)


@pytest.mark.parametrize(
    ("train", "aggregation", "parties", "message"),
    [
        (CLEANING, "{recovery: true}", "[a, b]", "it takes 4 parties to lose one"),
        (CLEANING, "{recovery: true}", "[a, b, c]", "it takes 4 parties to lose one"),
        (CLEANING + "\nparties_per_round: 3", "{recovery: true}", TEN, "it takes 4 parties to lose one"),
        (CLEANING, "{recovery: true, threshold: 5}", TEN, "take at least 6"),
        (CLEANING, "{recovery: true, threshold: 10}", TEN, "lower threshold"),
        (CLEANING, "{recovery: true, minimum_parties: 10}", TEN, "lower threshold or minimum_parties"),
        (CLEANING, "{recovery: true, kind: two_tree}", TEN, "take `kind: pairwise`"),
        (CLEANING, "{recovery: true, kind: plain}", TEN, "take `kind: pairwise`"),
        (CLEANING, "{threshold: 6}", TEN, "belongs to `recovery: true`"),
    ],
)
def test_a_recovery_that_cannot_hold_is_refused_with_what_to_do(train, aggregation, parties, message):
    problems = check_spec(text(train, f"{{aggregation: {aggregation}}}", parties))
    assert any(message in problem.message for problem in problems), problems


def test_recovery_is_refused_where_every_partys_columns_are_needed():
    vertical = f"name: x\nparties: {TEN}\nprivacy: {{aggregation: {{recovery: true}}}}\ntrain: {{algorithm: bambi}}"
    assert any("holds columns" in problem.message for problem in check_spec(vertical)), check_spec(vertical)


TUNING = "task: {kind: hyper_parameters, classes: [sick, well]}"


def test_coefficients_are_tuned_with_momenta_and_without_warm_rounds():
    train = parse_spec(text(TUNING)).settings(FedbioSpec)
    assert train.has_momenta
    assert train.warm == 0
    assert train.task.coefficients == "columns"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("initial: 2", "begin below highest"),
        ("validation: 1.5", "a share between 0 and 1"),
        ("classes: [sick, sick]", "lists one twice"),
        ("classes: [yes, no]", "truth values"),
    ],
)
def test_coefficients_that_cannot_be_tuned_are_refused(change, said):
    task = TUNING[:-1] + f", {change}}}" if "classes" not in change else f"task: {{kind: hyper_parameters, {change}}}"
    assert said in str(check_spec(text(task)))


def test_record_privacy_is_not_given_to_tuned_coefficients():
    found = check_spec(text(TUNING + "\naccelerated: false\nlocal_steps: 1\nrecord_privacy: {}"))
    assert "data_cleaning" in str(found)
