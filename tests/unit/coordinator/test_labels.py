"""The way from a spec's label privacy to the noise that is drawn."""

import math

import numpy as np
import pytest

from parley.coordinator.evaluations import EvaluationAccess
from parley.coordinator.labels import LabelAccess, LabelsMissing, ReleasePlan
from parley.numerics.losses import ForwardCorrectedBits, ForwardCorrectedSoftmax, Softmax
from parley.party.bambi.local_role import training_loss
from parley.privacy.dataset_ledger import DatasetTerms, UnprotectedRefused
from parley.privacy.evaluations import EvaluationPolicy, open_register
from parley.privacy.noise import new_key
from parley.protocols.bambi.settings import BambiSpec
from parley.simulation.runs import scratch_ledger
from parley.spec.parsing import parse_spec
from parley.tables.loading import Labels

ROWS = np.arange(60)
SPEC = """
name: kinds
parties: [bank, shop]
split: {{lower: 0.5, upper: lower, test: 0.5}}
train: {{algorithm: bambi}}
privacy: {{labels: {{mechanism: {mechanism}, epsilon: 1, kind: {kind}}}}}
"""


def gate_of(spec):
    ids = np.array([f"{row:02d}" for row in ROWS])
    labels = Labels(ids, ROWS % 10, tuple("0123456789"))
    unlimited = DatasetTerms(epsilon=math.inf, delta=0.0)
    access = LabelAccess(spec, "run", lambda _, __: labels, scratch_ledger(), new_key(), terms=unlimited)
    return access.gate(labels, Softmax(10), ReleasePlan(lambda _: ROWS, 3, ROWS))


@pytest.mark.parametrize(
    ("mechanism", "kind", "loss"),
    [
        ("per_step", "auto", Softmax),
        ("per_step", "laplace", Softmax),
        ("per_step", "randomised_response", ForwardCorrectedSoftmax),
        ("per_step", "unary_encoding", ForwardCorrectedBits),
        ("once", "randomised_response", ForwardCorrectedSoftmax),
        ("once", "unary_encoding", ForwardCorrectedBits),
    ],
)
def test_the_kind_that_a_spec_names_is_drawn_and_coordinator_and_party_train_on_its_likelihood(mechanism, kind, loss):
    spec = parse_spec(SPEC.format(mechanism=mechanism, kind=kind))
    gate = gate_of(spec)
    assert isinstance(gate.loss, loss)
    assert type(training_loss("softmax", 10, spec.privacy.labels)) is type(gate.loss)
    first, second = gate.target(0, ROWS), gate.target(1, ROWS)
    assert np.array_equal(first, second) == (mechanism == "once")
    if kind == "randomised_response":
        assert np.array_equal(first.sum(axis=1), np.ones(len(ROWS)))


@pytest.mark.parametrize(("written", "hint"), [("{yes: 5, no: 1}", "in quotes"), ("{late: 5, paid: 1}", "a weight")])
def test_weights_of_other_classes_are_refused_with_what_yaml_makes_of_yes_and_no(written, hint):
    spec = parse_spec(
        SPEC.format(mechanism='"off"', kind="auto").replace("bambi}", f"bambi, class_weights: {written}}}")
    )
    labels = Labels(np.array(["1", "2"]), np.array([0, 1]), ("no", "yes"))
    terms = DatasetTerms(epsilon=math.inf, delta=0.0)
    access = LabelAccess(spec, "run", lambda _, __: labels, scratch_ledger(), new_key(), terms=terms)
    with pytest.raises(LabelsMissing, match=hint) as refusal:
        access.class_weights(labels, np.arange(2), spec.settings(BambiSpec).class_weights)
    assert ("quotes" in str(refusal.value)) == (hint == "in quotes")


def stopped_access(tmp_path, unprotected="allow", epsilon=None, mechanism="once"):
    """Labels of a run that its evaluations stop."""
    text = SPEC.format(mechanism=mechanism, kind="auto")
    spec = parse_spec(text.replace("test: 0.5", "test: 0.3, validation: 0.2") + "stop: {metric: validation loss}")
    labels = Labels(np.array([f"{row:03d}" for row in range(200)]), np.arange(200) % 10, tuple("0123456789"))
    register = open_register(f"sqlite:///{tmp_path / 'evaluations.db'}")
    evaluations = EvaluationAccess(register, EvaluationPolicy(epsilon=epsilon), "labels", "run", new_key())
    terms = DatasetTerms(unprotected=unprotected)
    access = LabelAccess(spec, "run", lambda _, __: labels, scratch_ledger(), new_key(), terms, evaluations)
    return access, lambda: access.evaluation(labels, np.arange(40), "validation", 3)


def test_a_run_that_exact_figures_stop_stands_in_the_account_of_the_labels(tmp_path):
    access, evaluate = stopped_access(tmp_path)
    evaluate(), evaluate()  # once more after a restart
    assert access.ledger.account("train", access.terms).unprotected_runs == ("run/stop",)
    assert access.ledger.verify_account("train")


def test_an_owner_who_releases_nothing_without_noise_lets_no_exact_figure_stop_a_run(tmp_path):
    access, evaluate = stopped_access(tmp_path, unprotected="refuse")
    with pytest.raises(UnprotectedRefused, match=r"`stop` tells parties.*evaluation_epsilon"):
        evaluate()
    assert access.ledger.datasets() == []


def test_noisy_figures_stop_a_run_at_the_cost_that_they_have_anyway(tmp_path):
    access, evaluate = stopped_access(tmp_path, unprotected="refuse", epsilon=0.5)
    assert evaluate().epsilon == 0.5
    assert access.ledger.datasets() == []


@pytest.mark.parametrize(("limit", "bins"), [("", ""), ("", ", bins: {low: 0, high: 300000}"), ("limit: 1.0e+7", "")])
def test_numbers_that_no_sum_could_reach_are_refused_before_a_run_with_what_to_declare(limit, bins):
    mechanism = f"once, epsilon: 5{bins}" if bins else '"off"'
    spec = parse_spec(f"""
name: prices
parties: [bank, shop]
split: {{lower: 0.5, upper: lower, test: 0.5}}
train: {{algorithm: glm, family: linear}}
privacy: {{aggregation: {{{limit}}}, labels: {{mechanism: "off"}}}}
""")
    if bins:
        spec = parse_spec(
            "{name: prices, parties: [bank, shop], split: {lower: 0.5, upper: lower, test: 0.5}, "
            f"train: {{algorithm: bambi, loss: squared}}, privacy: {{labels: {{mechanism: {mechanism}}}}}}}"
        )
    labels = Labels(np.array([f"{row:02d}" for row in ROWS]), 200_000.0 + ROWS, ())
    access = LabelAccess(spec, "run", lambda _, __: labels, scratch_ledger(), new_key())
    if limit:
        access.check_size(labels)
        return
    with pytest.raises(LabelsMissing, match=r"too large for a sum.*unit: 100000.*limit"):
        access.check_size(labels)
    access.check_size(Labels(labels.ids, labels.values / 1e5, ())) if not bins else None
