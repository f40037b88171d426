"""Every attack succeeds where nothing protects, and stays within its bound where something does."""

import json
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from parley.attacks import protections
from parley.attacks.averages import explained, rows_of_batches
from parley.attacks.columns import residual, told_apart
from parley.attacks.findings import bounded, unbounded
from parley.attacks.membership import advantage, chance, infer_membership, most_advantage
from parley.attacks.oracles import figures_in
from parley.attacks.stand_in import NoStandIn, stand_in
from parley.attacks.suite import ATTACKS, AttackUnknown, attack, subject_of
from parley.cli import app
from parley.spec.parsing import parse_spec

LINEAR = """
name: linear
table: train
parties: [a, b, c]
split: {{lower: 0.8, upper: lower, test: 0.2}}
dtype: float64
train:
  algorithm: bambi
  problem: hyper_parameters
  loss: softmax
  upper: {{steps: 3, batch: null}}
  lower: {{steps: 1}}
privacy:
  labels: {{mechanism: "{mechanism}", epsilon: {epsilon}}}
"""
AVERAGES = """
name: averages
table: records
parties: [north, south, west]
train:
  algorithm: fedbio
  accelerated: false
  rounds: 12
  local_steps: 1
  batch: {batch}
  checked_batch: {batch}
  task: {{kind: data_cleaning, classes: ["0", "1", "2", "3", "4", "5"], checked: checked}}
"""


def linear(mechanism="once", epsilon=1.0):
    return LINEAR.format(mechanism=mechanism, epsilon=epsilon)


def found(text, *names):
    return {finding.attack: finding for finding in attack(parse_spec(text), names)}


def test_labels_are_read_off_where_nothing_protects_them_and_guessed_within_the_cap_otherwise():
    exact = found(linear("off"), "labels")["label inference"]
    assert (exact.verdict, exact.value) == ("open", 1.0)
    for mechanism in ("once", "per_step"):
        noisy = found(linear(mechanism), "labels")["label inference"]
        assert noisy.verdict == "within"
        assert noisy.margin >= 0


def test_a_label_read_off_a_metric_is_stopped():
    findings = found(linear(), "metrics")
    assert findings["accuracy of one row"].verdict == "stopped"
    assert findings["difference of two accuracies"].verdict == "stopped"
    assert findings["labels from an exact loss"].verdict == "within"


def test_sums_of_linear_blocks_confirm_a_column_and_two_runs_give_one_away():
    findings = found(linear(), "columns", "differencing")
    assert findings["column confirmed by projection"].verdict == "open"
    assert findings["column confirmed by projection"].value > 0.9
    assert findings["column from two runs"].value > 0.99


GLM = """
name: glm
parties: [a, b, c]
train: {algorithm: glm, family: logistic}
privacy: {labels: {mechanism: once, epsilon: 1}}
"""


def test_mixtures_of_columns_confirm_a_guessed_one():
    findings = found(GLM, "columns", "differencing")
    assert findings["column confirmed by projection"].value > 0.9
    assert findings["column from two runs"].value > 0.99


@pytest.mark.parametrize("epsilon", [1, 4])
def test_of_noised_rows_sums_tell_no_more_than_the_noise_allows(epsilon):
    text = f"{linear()}  features: {{kind: once, epsilon: {epsilon}, bound: 3}}\n"
    findings = found(text, "columns", "differencing")
    told, two = findings["column confirmed by projection"], findings["column from two runs"]
    assert (told.verdict, two.verdict) == ("within", "within")
    assert told.bound < 0.95
    assert told.value < 0.75
    assert two.value < two.bound < 0.75


def test_of_noised_sums_columns_are_told_no_better_than_the_noise_allows():
    steps = "hypergradient: zeroth_order\n  lower: {solver: sgd, warmup_steps: 8}"
    text = linear().replace("lower: {steps: 1}", steps).replace("steps: 3", "steps: 1")
    text += "  features: {kind: per_sum, epsilon: 4, bound: 3, step_bound: 3}\n"
    findings = found(text, "columns", "differencing")
    told, two = findings["column confirmed by projection"], findings["column from two runs"]
    assert (told.verdict, two.verdict) == ("within", "within")
    assert told.value < told.bound < 0.95
    assert two.value < two.bound < 1.0


def test_values_are_told_apart_where_sums_are_of_rows_without_noise():
    columns = np.random.default_rng(0).standard_normal((300, 2))
    finding = told_apart(columns @ np.array([[1.0, 2.0], [0.5, -1.0]]), columns, 0.5, 0.3)
    assert (finding.verdict, finding.value) == ("beyond", 1.0)


def test_averages_over_single_rows_hold_them_and_over_many_do_not():
    assert found(AVERAGES.format(batch=1), "inversion")["gradient inversion on averages"].value > 0.99
    assert found(AVERAGES.format(batch=64), "inversion")["gradient inversion on averages"].verdict == "within"


def test_as_many_averages_as_rows_give_rows_and_labels_away_where_the_model_hardly_moves():
    """Whatever the floor of a batch is: the threat model says so, and that `record_privacy` bounds it."""
    small = "rounds: 12\n  warm_rounds: 0\n  gamma: 1.0e-6\n  eta: 1.0e-6"
    spec = parse_spec("dtype: float64" + AVERAGES.format(batch=10).replace("rounds: 12", small))
    with subject_of(spec, rows=20) as made_up:
        train = made_up.spec.train
        many, few = (
            rows_of_batches(replace(made_up, spec=made_up.spec.model_copy(update={"train": longer})))
            for longer in (train.model_copy(update={"rounds": rounds}) for rounds in (150, 40))
        )
        tables = [pq.read_table(made_up.folder / f"{each.name}-records.parquet").to_pydict() for each in spec.parties]
    values = np.concatenate([made_up.features[each.name] for each in spec.parties])
    labels = np.array([int(label) for table in tables for label in table["label"]])

    def likeness(added) -> list[float]:
        own = added[np.arange(len(labels)), :, labels]
        return [abs(np.corrcoef(mine, true)[0, 1]) for mine, true in zip(own, values, strict=True)]

    # a row adds its values, times 1/C for every class but its own: there times 1/C − 1, the other way
    assert (np.abs(np.einsum("rcj,rc->rj", many, values)).argmax(axis=1) == labels).all()
    assert min(likeness(many)) > 0.99
    assert max(likeness(few)) < 0.99  # fewer equations than rows: `sums_per_row` below parties × batch × local_steps


def test_members_are_told_by_averages_and_no_better_than_record_privacy_allows(tmp_path):
    """A few rows with random labels are learnt by heart, and under noise they are not.

    The rows of the private run would be told apart as well as here by luck once in five thousand times.
    """
    text = AVERAGES.format(batch=40).replace("rounds: 12", "rounds: 60\n  gamma: 3\n  eta: 0.001")
    text = text.replace("checked: checked}", "checked: 0.1}")
    open_, private = (
        infer_membership(stand_in(parse_spec(f"{text}{extra}evaluate_every: 0\n"), tmp_path, rows=40))[0]
        for extra in ("", "  record_privacy: {epsilon: 1, noise: 45, clip: 4}\n")
    )
    most = most_advantage(1.0, 1e-6)
    assert open_.value > most > private.value
    assert (open_.verdict, private.verdict) == ("open", "within")


def test_no_error_tells_a_private_figure():
    assert found(linear(), "errors")["figures in errors"].verdict == "within"
    assert figures_in("a term is 4711.25, tau is 0.5", 0.5) == ["4711.25"]


def test_a_name_that_is_no_attack_and_a_model_that_cannot_be_made_up_are_refused(tmp_path):
    with pytest.raises(AttackUnknown, match="choose among labels"):
        list(attack(parse_spec(linear()), ("everything",)))
    images = linear().replace("problem: hyper_parameters", "model: {kind: cnn, image_shape: [4, 4]}")
    with pytest.raises(NoStandIn, match="cnn"):
        stand_in(parse_spec(images), tmp_path)


def test_a_finding_beyond_its_bound_and_one_without_a_bound_are_told_apart():
    assert bounded("a", "party", "", 0.9, 0.8, "ε").verdict == "beyond"
    assert bounded("a", "party", "", 0.7, 0.8, "ε").margin == pytest.approx(0.1)
    assert unbounded("a", "party", "", 0.9, 0.5, "do").remedy == "do"
    assert unbounded("a", "party", "", 0.4, 0.5, "do").verdict == "within"


def test_the_command_prints_a_line_for_each_attack_and_strict_fails_on_what_is_open(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text(linear("off"))
    runner = CliRunner()
    usual = runner.invoke(app, ["attack", str(path), "--only", "labels,errors", "--json", str(tmp_path / "rows.json")])
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert (usual.exit_code, [row["verdict"] for row in rows]) == (0, ["open"] * 3 + ["within"] * 3)
    assert [row["ours"] for row in rows if row["case"] == "label inference × spec"] == [1.0, 1.0, 0.0]
    assert runner.invoke(app, ["attack", str(path), "--only", "labels", "--strict"]).exit_code == 1
    assert runner.invoke(app, ["doctor", "--strict"]).exit_code == 2
    strict = runner.invoke(app, ["doctor", "--strict", str(path)])
    assert strict.exit_code == 1
    assert "label inference" in strict.output


def test_all_protections_are_attacked_with_a_row_for_what_is_recovered_the_bound_and_the_excess(tmp_path, monkeypatch):
    few = [case for case in protections.cases() if case.setting in ("labels: off", "labels: once, ε = 1")]
    monkeypatch.setattr(protections, "cases", lambda: few)
    result = CliRunner().invoke(app, ["attack", "all", "--quick", "--json", str(tmp_path / "rows.json")])
    assert result.exit_code == 0, result.output
    made = json.loads((tmp_path / "rows.json").read_text())
    found = {(row["case"], row["metric"]): row["ours"] for row in made["rows"]}
    assert made["name"] == "all"
    assert {metric for _, metric in found} == {"recovered", "bound", "excess over bound"}
    assert found["label inference × labels: off", "recovered"] == 1.0
    assert found["label inference × labels: once, ε = 1", "bound"] < 0.6
    assert found["accuracy of one row × minimum_evaluation: 20", "bound"] == 0.0
    assert max(share for (_, metric), share in found.items() if metric == "excess over bound") <= 0
    assert CliRunner().invoke(app, ["attack", "all", "--only", "labels"]).exit_code == 2


def test_every_attack_is_in_the_table_of_protections():
    named = {name for case in protections.cases() for name in case.names}
    assert named | {"metrics"} == ATTACKS.keys()


def test_distances_are_those_of_the_formulas():
    rng = np.random.default_rng(1)
    span = rng.standard_normal((50, 5))
    assert residual(span, span @ np.arange(5.0)) < 1e-9
    assert residual(span, rng.standard_normal(50)) > 0.5
    rows = rng.standard_normal((3, 8))
    assert explained(rows.T @ rng.standard_normal((3, 3)), rows) == pytest.approx(np.ones(3))
    assert advantage(np.zeros(10), np.ones(10)) == 1.0
    assert chance(100, 100) == pytest.approx(0.3035, abs=1e-4)
