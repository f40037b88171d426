"""What a run that tunes regularisation has found is shown by party and column, as far as each party's policy goes."""

import json

import numpy as np
import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner

from parley.cli import app
from parley.services.party.tensor_files import seal
from parley.splitting import split_dataset
from parley.testing.federations import ForkedFederation

PARTIES = ("bank", "shop", "telco")
SHARES = {"bank": "columns", "shop": "party", "telco": "nothing"}
SPEC = """
name: tuned
dtype: float64
parties: [bank, shop, telco]
train:
  algorithm: bambi
  problem: hyper_parameters
  loss: logistic
  coefficients: {by}
  regularisation: 0.01
  upper: {{steps: 5, batch: null, optimiser: {{kind: adam, step: 0.3}}}}
  lower: {{warmup_steps: 2}}
evaluate_every: 0
"""


@pytest.fixture(scope="module")
def tuning(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tuning")
    split_dataset("breast_cancer", PARTIES, folder / "data", standardise=True)
    tables = {name: {"train": {"path": folder / "data" / f"{name}.parquet"}} for name in PARTIES}
    policies = {name: {"coefficients": shared} for name, shared in SHARES.items()}
    labels = {"train": {"path": folder / "data" / "labels.parquet"}}
    with ForkedFederation(folder, tables, labels, policies=policies) as local:
        yield local


@pytest.fixture(scope="module")
def runs(tuning):
    with tuning.connect() as client:
        found = {by: client.start(SPEC.format(by=by)) for by in ("feature", "party")}
        for run in found.values():
            run.result()
        yield found


def exact(tuning, run, party):
    """Coefficients as the party's own model has them."""
    model = load_file(tuning.directory / "state" / party / "runs" / run.run_id / "model.safetensors")
    return np.exp(model["coefficients"].numpy())


def test_a_party_that_shares_columns_shows_each_by_name_as_a_coefficient(tuning, runs):
    bank = runs["feature"].coefficients()["bank"]
    assert list(bank.columns) == [
        "mean_radius", "mean_texture", "mean_perimeter", "mean_area", "mean_smoothness", "mean_compactness",
        "mean_concavity", "mean_concave_points", "mean_symmetry", "mean_fractal_dimension", "(intercept)",
    ]  # fmt: skip
    values = np.array(list(bank.columns.values()))
    np.testing.assert_allclose(values, exact(tuning, runs["feature"], "bank"), rtol=6e-3)
    assert (values > 0).all(), "coefficients, not their logarithms"
    assert all(float(f"{value:.3g}") == value for value in values), "three digits leave, no more"


def test_a_party_that_keeps_its_columns_says_so_and_sends_nothing_of_them(runs):
    found = runs["feature"].coefficients()
    assert found["shop"].columns == {}
    assert "keeps the coefficients of its columns" in found["shop"].kept
    assert found["telco"].columns == {}
    assert "keeps its coefficients" in found["telco"].kept


def test_one_coefficient_of_a_whole_party_leaves_unless_the_policy_keeps_it(tuning, runs):
    found = runs["party"].coefficients()
    for party in ("bank", "shop"):
        assert found[party].whole == pytest.approx(exact(tuning, runs["party"], party)[0], rel=6e-3)
        assert found[party].columns == {}
    assert found["telco"].whole is None


def test_what_was_told_of_a_run_is_told_again_whatever_becomes_of_its_model(tuning, runs):
    """A coordinator that has a run finish again, with a solution of its choice, would solve for the party's columns."""
    before = runs["feature"].coefficients()["bank"].columns
    path = tuning.directory / "state" / "bank" / "runs" / runs["feature"].run_id / "model.safetensors"
    kept = path.read_bytes()
    model = load_file(path)
    try:
        path.write_bytes(seal(model | {"coefficients": model["coefficients"] + 1}))
        assert runs["feature"].coefficients()["bank"].columns == before
    finally:
        path.write_bytes(kept)


def invoke(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return result.stdout


def where(tuning):
    return "--address", tuning.addresses["coordinator"], "--identity", tuning.identity("client")


def test_the_command_shows_them_by_party_and_column(tuning, runs):
    printed = invoke("run", "coefficients", runs["feature"].run_id, *where(tuning))
    assert "mean_radius" in printed
    assert "keeps the coefficients of its columns" in printed
    rows = json.loads(invoke("run", "coefficients", runs["feature"].run_id, *where(tuning), "--json"))
    assert {"party": "bank", "column": "mean_radius"}.items() <= rows[0].items()
    assert rows[0]["coefficient"] == runs["feature"].coefficients()["bank"].columns["mean_radius"]


def test_show_and_watch_end_with_them(tuning, runs):
    for command in ("show", "watch"):
        assert "mean_texture" in invoke("run", command, runs["feature"].run_id, *where(tuning))


def test_a_partys_owner_reads_all_of_its_own_where_they_lie(tuning, runs):
    run = runs["feature"]
    rows = json.loads(invoke("run", "coefficients", run.run_id, "--config", tuning.directory / "telco.yaml", "--json"))
    np.testing.assert_allclose([row["coefficient"] for row in rows], exact(tuning, run, "telco"), rtol=1e-12)
    assert rows[0]["party"] == "telco"
    assert rows[0]["column"] == "worst_radius"


def test_the_card_has_them_too(tuning, runs):
    card = json.loads(invoke("run", "card", runs["feature"].run_id, *where(tuning), "--json"))
    by_party = {entry["party"]: entry for entry in card["coefficients"]}
    assert by_party["bank"]["columns"]["mean_radius"] > 0
    assert "keeps" in by_party["shop"]["kept"]


def test_a_run_that_tunes_none_has_none(tuning):
    with tuning.connect() as client:
        run = client.start(
            SPEC.format(by="party").replace("problem: hyper_parameters", "model: {kind: linear, out: 2}")
        )
        run.result()
        assert run.coefficients() == {}
