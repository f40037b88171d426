"""`parley tune` on a federation of real processes: one run by its gradient, or a search that goes on where it was."""

import json

import pytest
import yaml
from typer.testing import CliRunner

from parley.cli import app

SPEC = """
name: tuned
table: cancer
seed: 4
parties: [bank, shop, telco]
split: {lower: 0.4, upper: 0.2, validation: 0.2, test: 0.2}
train:
  algorithm: bambi
  loss: logistic
  model: {kind: identity}
  regularisation: 0.01
  upper: {steps: 2, batch: null, optimiser: {step: 0.1}}
  lower: {batch: null, warmup_steps: 1}
  implicit: {rounds: 3, newton_rounds: 3}
privacy: {labels: {mechanism: once, epsilon: 5}}
evaluate_every: 1
"""
GAMMA = "train.regularisation=0.001..1:log"


@pytest.fixture
def tune(federation, tmp_path):
    spec = tmp_path / "spec.yaml"
    spec.write_text(SPEC)

    def call(*options):
        place = ["--address", federation.addresses["coordinator"], "--identity", str(federation.identity("client"))]
        done = CliRunner().invoke(app, ["tune", str(spec), *place, "--json", *map(str, options)])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    return call


def test_a_search_shares_one_draw_of_the_labels_and_goes_on_where_it_was(tune, client, tmp_path):
    first = tune("--over", GAMMA, "--by", "search", "--trials", 2, "--budget", 5)
    assert [one["outcome"] for one in first["trials"]] == ["completed"] * 2
    more = tune("--over", GAMMA, "--by", "search", "--trials", 3, "--budget", 5, "--out", tmp_path / "best.yaml")
    assert [one["run_id"] for one in more["trials"][:2]] == [one["run_id"] for one in first["trials"]]
    assert more["epsilon"] == 5
    assert more["best"]["score"] == min(one["score"] for one in more["trials"])
    chosen = yaml.safe_load((tmp_path / "best.yaml").read_text())["train"]["regularisation"]
    assert chosen == more["best"]["values"]["train.regularisation"]
    measured = client.run(more["best"]["run_id"]).metrics["validation loss"]
    assert measured == more["best"]["score"]


def test_another_epsilon_is_another_draw_and_the_budget_ends_the_search(tune):
    found = tune("--over", "privacy.labels.epsilon=4,4.5", "--trials", 9, "--budget", 5, "--seed", 1)
    assert "is left" in found["ended"]
    assert found["epsilon"] <= 5
    assert len({one["values"]["privacy.labels.epsilon"] for one in found["trials"]}) == 1


def test_regularisation_of_a_linear_model_is_tuned_by_one_run(tune):
    found = tune("--over", GAMMA)
    assert {row["party"] for row in found["coefficients"]} == {"bank", "shop", "telco"}
    assert all(row["coefficient"] > 0 for row in found["coefficients"])
