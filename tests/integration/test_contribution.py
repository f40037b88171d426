"""What parties bring, measured by runs of real processes, is what the pooled table says; and owners can refuse it."""

import json

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import roc_auc_score
from typer.testing import CliRunner

from parley.cli import app
from parley.contribution import shared_out
from parley.numerics.streams import stream
from parley.spec.parsing import parse_spec
from parley.spec.rows import divide
from parley.testing.federations import ForkedFederation

HELD = {"bank": slice(0, 2), "shop": slice(4, 6), "telco": slice(8, 10)}
SPEC = """
name: shares
parties: [bank, shop, telco]
split: {lower: 0.5, upper: 0.1, test: 0.4}
train: {algorithm: glm, family: logistic}
privacy: {labels: {mechanism: "off"}}
"""
OPEN = {
    "differencing": "allow",
    "minimum_parties": 1,
    "aggregations": ["pairwise", "plain"],
    "coefficients": "columns",
}


@pytest.fixture(scope="module")
def pooled():
    data = load_breast_cancer()
    features = (data.data - data.data.mean(axis=0)) / data.data.std(axis=0)
    return {name: features[:, columns] for name, columns in HELD.items()}, data.target


@pytest.fixture(scope="module")
def federation(pooled, tmp_path_factory):
    folder = tmp_path_factory.mktemp("contribution")
    features, labels = pooled
    ids = [f"{row:04}" for row in range(len(labels))]
    for name, block in features.items():
        table = pd.DataFrame(block, columns=[f"{name}_{place}" for place in range(block.shape[1])])
        table.assign(id=ids).to_parquet(folder / f"{name}.parquet")
    pd.DataFrame({"id": ids, "label": labels}).to_parquet(folder / "labels.parquet")
    tables = {name: {"train": {"path": folder / f"{name}.parquet"}} for name in HELD}
    with ForkedFederation(
        folder / "local", tables, {"train": {"path": folder / "labels.parquet"}}, policy=OPEN
    ) as local:
        yield local


@pytest.fixture(scope="module")
def run(federation):
    with federation.connect() as client:
        one = client.start(SPEC)
        one.result()
        return one.run_id


def contribution(federation, run, *options):
    place = [
        "--address",
        federation.addresses["coordinator"],
        "--identity",
        federation.directory / "certificates/client",
    ]
    return CliRunner().invoke(app, ["contribution", run, *map(str, [*place, *options])])


def expected(pooled):
    """AUC of every coalition, by scikit-learn on the pooled columns and the run's own rows."""
    features, labels = pooled
    rows = divide(parse_spec(SPEC).split, len(labels), stream(0, "split"))
    values = {}
    for number in range(1, 8):
        members = [name for place, name in enumerate(HELD) if number >> place & 1]
        block = np.hstack([features[name] for name in members])
        model = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(block[rows.trained], labels[rows.trained])
        values[frozenset(members)] = roc_auc_score(labels[rows.test], model.decision_function(block[rows.test]))
    return values


def test_shapley_values_and_gains_are_those_of_the_pooled_table(federation, run, pooled, tmp_path):
    done = contribution(federation, run, "--json", "--plot", tmp_path / "shares.png")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    values = expected(pooled)
    for one in found["coalitions"]:
        assert one["value"] == pytest.approx(values[frozenset(one["members"])], abs=1e-7), one
    shares = shared_out(values, list(HELD), 0.5)
    for told, exact in zip(found["shares"], shares, strict=True):
        assert told["shapley"] == pytest.approx(exact.shapley, abs=1e-7)
        assert told["leave_one_out"] == pytest.approx(exact.leave_one_out, abs=1e-7)
        assert told["gain"] == pytest.approx(exact.gain, abs=1e-7)
    assert (tmp_path / "shares.png").read_bytes()[:4] == b"\x89PNG"


def test_asked_again_it_starts_no_run_anew(federation, run):
    with federation.connect() as client:
        before = len(client.runs(None))
        assert contribution(federation, run, "--leave-one-out", "--json").exit_code == 0
        assert len(client.runs(None)) == before


def test_columns_are_told_from_what_parties_share_and_by_their_owner_from_his_own_table(federation, run, pooled):
    shared = json.loads(contribution(federation, run, "--columns", "--json").stdout)
    assert {row["column"] for row in shared} == {f"{name}_{place}" for name in HELD for place in range(2)}
    own = json.loads(contribution(federation, run, "--config", federation.directory / "bank.yaml", "--json").stdout)
    features, labels = pooled
    rows = divide(parse_spec(SPEC).split, len(labels), stream(0, "split")).trained
    model = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(
        np.hstack(list(features.values()))[rows], labels[rows]
    )
    block = features["bank"]
    exact = np.abs((block - block.mean(axis=0)) * model.coef_[0, :2]).mean(axis=0)
    assert {row["column"]: row["mean |SHAP|"] for row in own} == pytest.approx(
        {f"bank_{place}": exact[place] for place in range(2)}, rel=1e-4
    )


def test_an_owner_reads_permutation_importance_of_a_linear_regression_from_his_own_table(federation, pooled):
    with federation.connect() as client:
        linear = client.start(SPEC.replace("logistic", "linear"))
        linear.result()
    own = contribution(federation, linear.run_id, "--config", federation.directory / "bank.yaml", "--json")
    features, labels = pooled
    rows = divide(parse_spec(SPEC).split, len(labels), stream(0, "split")).trained
    model = LinearRegression().fit(np.hstack(list(features.values()))[rows], labels[rows])
    exact = 2 * model.coef_[:2] ** 2 * features["bank"][rows].var(axis=0)
    assert {row["column"]: row["permuted"] for row in json.loads(own.stdout)} == pytest.approx(
        {f"bank_{place}": exact[place] for place in range(2)}, rel=1e-6
    )


def test_what_an_owner_does_not_allow_is_refused_and_told(federation, pooled, tmp_path):
    """The same tables with lines of the policy that parties begin with."""
    folder = federation.directory.parent
    tables = {name: {"train": {"path": folder / f"{name}.parquet"}} for name in HELD}
    labels = {"train": {"path": folder / "labels.parquet"}}
    usual = {"differencing": "refuse", "minimum_parties": 2}
    with ForkedFederation(tmp_path, tables, labels, policy=usual) as local, local.connect() as client:
        one = client.start(SPEC)
        one.result()
        done = contribution(local, one.run_id, "--leave-one-out", "--json")
    found = json.loads(done.stdout)
    assert [share["leave_one_out"] for share in found["shares"]] == [None] * 3
    refused = [coalition["refused"] for coalition in found["coalitions"] if coalition["value"] is None]
    assert len(refused) == 3
    assert all("other partners over the same rows" in reason for reason in refused)
