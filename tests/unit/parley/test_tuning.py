"""What a search may try, what it may spend, and that it goes on where it was."""

from types import SimpleNamespace

import pytest
import yaml

from parley.client import RequestRefused
from parley.tuning import (
    BudgetSpent,
    Choice,
    LabelCosts,
    NotTunable,
    choice_of,
    gradient_spec,
    is_differentiable,
    metric_for,
    search,
    with_values,
)

SPEC = """
name: tuned
parties: [bank, shop]
split: {lower: 0.5, upper: 0.2, validation: 0.2, test: 0.1}
train: {algorithm: bambi, model: {kind: identity}, regularisation: 0.1}
privacy: {labels: {mechanism: %s, epsilon: 2}}
"""


def test_a_search_is_a_range_or_a_list():
    assert choice_of("train.regularisation=0.001..1:log") == Choice("train.regularisation", (), 0.001, 1.0, log=True)
    assert choice_of("train.lower.steps=1..5") == Choice("train.lower.steps", (), 1, 5, whole=True)
    assert choice_of("train.loss=softmax,logistic").options == ("softmax", "logistic")
    assert choice_of("train.model.out=8,16").options == (8, 16)


@pytest.mark.parametrize("text", ["train.steps", "a=", "a=1..b", "a=2..1", "a=0..1:log", "a=1..2:cube"])
def test_what_is_no_search_is_told(text):
    with pytest.raises(NotTunable):
        choice_of(text)


def test_values_go_where_their_field_is_and_make_sections_that_are_missing():
    changed = yaml.safe_load(with_values(SPEC % "once", {"train.regularisation": 0.5, "train.lower.steps": 3}))
    assert changed["train"]["regularisation"] == 0.5
    assert changed["train"]["lower"] == {"steps": 3}
    with pytest.raises(NotTunable, match="has no fields"):
        with_values(SPEC % "once", {"name.first": 1})


def test_the_regularisation_of_a_linear_lower_problem_is_tuned_by_its_gradient():
    found = choice_of("train.regularisation=0.01..1:log")
    assert is_differentiable(SPEC % "once", [found])
    assert not is_differentiable(SPEC % "once", [choice_of("train.lower.steps=1..5")])
    assert not is_differentiable((SPEC % "once").replace("identity", "mlp"), [found])
    train = yaml.safe_load(gradient_spec(SPEC % "once", found))["train"]
    assert (train["problem"], train["regularisation"]) == ("hyper_parameters", pytest.approx(0.1))


def test_noise_that_is_drawn_once_is_paid_for_once():
    costs, spec = LabelCosts(3.0), SPEC % "once"
    for _ in range(5):
        assert costs.prepared(spec) == spec
        costs.charge(spec, 2.0)
    assert costs.spent == 2.0
    with pytest.raises(BudgetSpent, match=r"costs ε 1.5, and 1 of 3 is left"):
        costs.prepared(with_values(spec, {"privacy.labels.epsilon": 1.5}))


def test_noise_of_each_step_adds_up_and_a_trial_may_spend_what_is_left():
    costs, spec = LabelCosts(10.0), SPEC % "per_step"
    assert yaml.safe_load(costs.prepared(spec))["privacy"]["labels"]["budget"] == 10.0
    costs.charge(spec, 7.0)
    assert yaml.safe_load(costs.prepared(spec))["privacy"]["labels"]["budget"] == 3.0
    costs.charge(spec, 3.0)
    with pytest.raises(BudgetSpent, match="ε 10 is spent"):
        costs.prepared(spec)


def test_labels_without_noise_have_no_budget():
    with pytest.raises(NotTunable, match="costs more than any budget"):
        LabelCosts(5.0).prepared(SPEC % '"off"')


def test_test_rows_are_not_for_choosing():
    assert metric_for(SPEC % "once", None) == "validation loss"
    with pytest.raises(NotTunable, match="no longer tested"):
        metric_for(SPEC % "once", "test auc")
    with pytest.raises(NotTunable, match="validation"):
        metric_for("split: {lower: 0.5, test: 0.5}", None)


class Coordinator:
    """Answers a start as a coordinator does: one run for each request id; the loss is (x − 0.3)², or a refusal."""

    def __init__(self, epsilon=2.0):
        self.runs, self.epsilon, self.refuse = {}, epsilon, False

    def start(self, spec, request_id):
        if self.refuse:
            raise RequestRefused("UNAVAILABLE", "not now")
        if request_id not in self.runs:
            x = yaml.safe_load(spec)["train"]["regularisation"]
            metrics = {"validation loss": (x - 0.3) ** 2}
            report = SimpleNamespace(mechanism="once", pure_epsilon=self.epsilon, pld_epsilon=0.0)
            run = SimpleNamespace(
                run_id=f"run-{len(self.runs)}",
                state="COMPLETED",
                reason="",
                metrics=metrics,
                steps=1,
                watch=lambda: iter(()),
                ledger=lambda: SimpleNamespace(report=report),
            )
            run.refresh = lambda: run
            self.runs[request_id] = run
        return self.runs[request_id]


X = [choice_of("train.regularisation=0.0..1.0")]


def test_a_search_finds_a_good_value_and_goes_on_where_it_was(tmp_path):
    there = Coordinator()
    first = search(there, SPEC % "once", X, trials=4, study=tmp_path / "study.db")
    assert len(first.trials) == len(there.runs) == 4
    both = search(there, SPEC % "once", X, trials=15, study=tmp_path / "study.db")
    assert [one.run_id for one in both.trials[:4]] == [one.run_id for one in first.trials]
    assert len(there.runs) == 15
    assert both.best is not None
    assert both.best.score == min(one.score for one in both.trials if one.score is not None)
    assert both.best.score < 0.02
    assert both.epsilon == 2.0, "drawn once"


def test_a_trial_that_was_interrupted_is_asked_for_again_under_its_own_id(tmp_path):
    there, asked = Coordinator(), []
    real = there.start

    def interrupted(spec, request_id):
        asked.append(request_id)
        real(spec, request_id)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return real(spec, request_id)

    there.start = interrupted
    with pytest.raises(KeyboardInterrupt):
        search(there, SPEC % "once", X, trials=3, study=tmp_path / "study.db")
    found = search(there, SPEC % "once", X, trials=3, study=tmp_path / "study.db")
    assert asked[2] == asked[1]
    assert len(found.trials) == len(there.runs) == 3


def test_a_search_ends_when_nothing_gets_better_or_the_budget_is_spent(tmp_path):
    patient = search(Coordinator(), SPEC % "once", X, trials=50, patience=5, study=tmp_path / "a.db")
    assert len(patient.trials) < 50
    assert "no better" in patient.ended
    spent = search(Coordinator(4.0), SPEC % "per_step", X, trials=50, budget=10.0, study=tmp_path / "b.db")
    assert len(spent.trials) == 3
    assert "is spent" in spent.ended
    assert spent.epsilon == 12.0, "a stand-in that spends more than it was left; a coordinator refuses that"


def test_a_refused_trial_is_told_and_the_next_one_is_tried(tmp_path):
    there = Coordinator()
    there.refuse = True
    found = search(there, SPEC % "once", X, trials=2, study=tmp_path / "study.db")
    assert found.best is None
    assert [one.outcome for one in found.trials] == ["not now [UNAVAILABLE]"] * 2


def test_a_list_of_values_is_tried_to_its_end_and_nothing_twice(tmp_path):
    listed = [choice_of("train.regularisation=0.1,0.2,0.3,0.4")]
    first = search(Coordinator(), SPEC % "once", listed, trials=4, study=tmp_path / "a.db")
    assert sorted(one.values["train.regularisation"] for one in first.trials) == [0.1, 0.2, 0.3, 0.4]
    more = search(Coordinator(), SPEC % "once", listed, trials=9, study=tmp_path / "b.db")
    assert (len(more.trials), more.ended) == (4, "every combination is tried")


def test_a_spec_that_is_refused_whatever_is_tried_ends_the_search(tmp_path):
    there = Coordinator()
    there.refuse = True
    found = search(there, SPEC % "once", X, trials=20, study=tmp_path / "study.db")
    assert (len(found.trials), found.ended) == (2, "refused whatever is tried: not now [UNAVAILABLE]")
    there.refuse = False
    assert search(there, SPEC % "once", X, trials=5, study=tmp_path / "study.db").best is not None
