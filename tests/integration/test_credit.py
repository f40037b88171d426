"""A credit model of three organisations with overlapping customers is the one that a pooled table gives."""

import csv
import json
import lzma
from pathlib import Path

import numpy as np
import pytest
import statsmodels.api as sm
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from typer.testing import CliRunner

from parley.cli import app
from parley.client import RequestRefused
from parley.numerics.streams import stream
from parley.spec.parsing import parse_spec
from parley.spec.rows import divide
from parley.testing.federations import ForkedFederation

CREDIT = Path(__file__).parents[3] / "shared" / "data" / "credit" / "uci_credit_card.csv.xz"
HELD = {"bureau": (1, 6), "bank": (6, 12), "telco": (12, 24)}
SHARES = {"bureau": "columns", "bank": "columns", "telco": "party"}
LABEL = "default.payment.next.month"
SPEC = """
name: credit
table: customers
alignment: common
parties: [bureau, bank, telco]
split: {lower: 0.6, upper: 0.1, test: 0.3}
train: {algorithm: glm, family: logistic}
privacy:
  labels: {mechanism: "%s", epsilon: 3}
"""
ROWS = 6000


def public_range(name):
    """Middle and half of the range that a column may have, by what it is called."""
    if name.startswith("PAY_") and not name.startswith("PAY_AMT"):
        return 3.0, 6.0
    return {"SEX": (1.0, 2.0), "EDUCATION": (3.0, 4.0), "MARRIAGE": (1.0, 3.0), "AGE": (50.0, 40.0)}.get(
        name, (100_000.0, 100_000.0)
    )


@pytest.fixture(scope="module")
def pooled():
    """Column names, and the whole table by id; as many rows as a test can afford."""
    if not CREDIT.exists():
        pytest.skip("the UCI credit table lies in ../shared/data, which is not here")
    with lzma.open(CREDIT, "rt") as file:
        names, *rows = list(csv.reader(file))
    return names, {int(row[0]): [float(value) for value in row] for row in rows[:ROWS]}


@pytest.fixture(scope="module")
def common(pooled):
    """Ids that everyone has: each organisation lacks every seventh customer, another one each."""
    return sorted(key for key in pooled[1] if key % 7 not in range(3))


@pytest.fixture(scope="module")
def federation(pooled, tmp_path_factory):
    folder = tmp_path_factory.mktemp("credit")
    names, table = pooled
    tables = {}
    for m, (party, (first, last)) in enumerate(HELD.items()):
        rows = [[key, *row[first:last]] for key, row in table.items() if key % 7 != m]
        path = write(folder / f"{party}.csv", ["id", *names[first:last]], rows)
        public = {
            name: {"shift": middle, "scale": half}
            for name in names[first:last]
            for middle, half in [public_range(name)]
        }
        tables[party] = {"customers": {"path": path},
                         "public": {"path": path, "preprocess": {"figures": public}}}  # fmt: skip
    labels = write(folder / "labels.csv", ["id", "label"], [[key, int(row[-1])] for key, row in table.items()])
    policies = {party: {"coefficients": shared, "correlations": CROSSED[party]} for party, shared in SHARES.items()}
    coordinated = {"customers": {"path": labels}, "public": {"path": labels}}
    with ForkedFederation(folder, tables, coordinated, policies=policies, ready_seconds=240) as local:
        yield local


def write(path, header, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


@pytest.fixture(scope="module")
def client(federation):
    with federation.connect() as client:
        client.align("common", list(HELD), "customers")
        yield client


@pytest.fixture(scope="module")
def run(client):
    run = client.start(SPEC % "off")
    run.result()
    return run


@pytest.fixture(scope="module")
def divided(pooled, common):
    """Features and labels of the training rows, then of the held-out ones, in the order of all organisations."""
    whole = np.array([pooled[1][key] for key in common])
    rows = divide(parse_spec(SPEC % "off").split, len(whole), stream(0, "split"))
    return [(whole[chosen, 1:-1], whole[chosen, -1].astype(int)) for chosen in (rows.trained, rows.test)]


def test_the_area_under_the_curve_is_the_pooled_models(run, divided):
    (features, classes), (held, truth) = divided
    mean, spread = features.mean(axis=0), features.std(axis=0)
    model = LogisticRegression(C=np.inf, tol=1e-10, max_iter=10_000).fit((features - mean) / spread, classes)
    area = roc_auc_score(truth, model.predict_proba((held - mean) / spread)[:, 1])
    assert run.metrics["test auc"] == pytest.approx(area, abs=1e-4)


def test_coefficients_and_what_is_known_of_them_are_told_as_far_as_policies_go(run, divided, pooled):
    (features, classes), _ = divided
    wanted = sm.GLM(classes, sm.add_constant(features), sm.families.Binomial()).fit(tol=1e-14)
    found = run.coefficients()
    names = pooled[0]
    for party in ("bureau", "bank"):
        first, last = HELD[party]
        for column in range(first, last):
            name = names[column]
            assert found[party].columns[name] == pytest.approx(wanted.params[column], rel=6e-3)
            assert found[party].inference[name]["standard_error"] == pytest.approx(wanted.bse[column], rel=6e-3)
    assert "(intercept)" in found["bureau"].columns
    assert (found["telco"].columns, found["telco"].inference) == ({}, {})
    assert "keeps the coefficients of its columns" in found["telco"].kept


def test_a_partys_owner_reads_all_digits_where_they_lie(federation, run, divided, pooled):
    (features, classes), _ = divided
    wanted = sm.GLM(classes, sm.add_constant(features), sm.families.Binomial()).fit(tol=1e-14)
    first, last = HELD["telco"]
    shown = CliRunner().invoke(
        app, ["run", "coefficients", run.run_id, "--config", str(federation.directory / "telco.yaml"), "--json"]
    )
    rows = {row["column"]: row for row in json.loads(shown.output)}
    assert list(rows) == pooled[0][first:last]
    for column, row in enumerate(rows.values(), first):
        assert row["coefficient"] == pytest.approx(wanted.params[column], rel=1e-6, abs=1e-12)
        assert row["standard_error"] == pytest.approx(wanted.bse[column], rel=1e-6)
        assert row["p_value"] == pytest.approx(wanted.pvalues[column], abs=1e-6)
        assert [row["low"], row["high"]] == pytest.approx(wanted.conf_int()[column], rel=1e-6, abs=1e-12)


def test_predictions_are_those_of_the_held_out_rows(run, client, divided, common):
    (features, classes), (held, _) = divided
    wanted = sm.GLM(classes, sm.add_constant(features), sm.families.Binomial()).fit(tol=1e-14)
    rows = divide(parse_spec(SPEC % "off").split, len(common), stream(0, "split")).test[:20]
    found = client.run(run.run_id).predict(ids=[str(common[row]) for row in rows])
    np.testing.assert_allclose(found.scores[:, 0], wanted.predict(sm.add_constant(held, has_constant="add"))[:20], 1e-6)


def test_noisy_labels_are_one_release_in_the_ledger(client):
    run = client.start(SPEC % "once")
    run.result()
    assert [(entry.releases, entry.epsilon) for entry in run.ledger().entries] == [(1, 3.0)]
    assert 0.5 < run.metrics["test auc"] < 0.8


EXPLORE = """
name: explored
table: customers
alignment: common
parties: [bureau, bank, telco]
split: {lower: 0.6, upper: 0.1, test: 0.3}
train: {algorithm: explore, bins: 5, against_label: true, correlations: true}
privacy:
  labels: {mechanism: "off"}
"""
CROSSED = {"bureau": "all", "bank": ["PAY_0", "PAY_2"], "telco": ["BILL_AMT1"]}
"""What each lets be correlated with others' columns."""


@pytest.fixture(scope="module")
def explored(client):
    run = client.start(EXPLORE)
    run.result()
    return run


def evidence_of(values, classes, edges):
    """Weight of evidence of each bin and information value, counted on the pooled table."""
    weights, total = [], 0.0
    for low, high in zip([-np.inf, *edges], [*edges, np.inf], strict=True):
        inside = (values > low) & (values <= high)
        zero, one = (np.sum(inside & (classes == c)) / np.sum(classes == c) for c in (0, 1))
        weights.append(np.log(zero / one))
        total += (zero - one) * weights[-1]
    return weights, total


def invoke(*arguments):
    shown = CliRunner().invoke(app, ["explore", *map(str, arguments), "--json"])
    assert shown.exit_code == 0, shown.output
    return json.loads(shown.output)


def test_an_owner_reads_weights_of_evidence_that_are_the_pooled_tables_exactly(federation, explored, divided, pooled):
    (features, classes), _ = divided
    config = federation.directory / "telco.yaml"
    values = {row["column"]: row["iv"] for row in invoke(explored.run_id, "--config", config)}
    bins = invoke(explored.run_id, "--config", config, "--bins")
    first, last = HELD["telco"]
    assert list(values) == pooled[0][first:last]
    for column, (name, value) in enumerate(values.items(), first - 1):
        own = [row for row in bins if row["column"] == name]
        weights, total = evidence_of(features[:, column], classes, [row["up to"] for row in own[:-1]])
        np.testing.assert_allclose([row["woe"] for row in own], weights, 1e-12)
        assert value == pytest.approx(total, rel=1e-12)


def test_others_see_figures_of_columns_as_far_as_policies_go(federation, explored, divided):
    (features, _), _ = divided
    dialled = ["--address", federation.addresses["coordinator"]]
    identity = federation.directory / "certificates" / "client"
    shown = invoke(explored.run_id, *dialled, "--identity", identity)
    assert {row["party"] for row in shown} == {"bureau", "bank"}  # telco shares no columns
    limit = next(row for row in shown if row["column"] == "LIMIT_BAL")
    assert limit["mean"] == float(f"{features[:, 0].mean():.3g}")
    assert limit["rows"] == float(f"{len(features):.3g}")
    assert {"missing share", "quantile 0.5", "psi", "iv"} <= limit.keys()


def test_correlations_of_columns_that_owners_name_are_the_pooled_tables(federation, explored, divided, pooled):
    (features, _), _ = divided
    names = pooled[0][1:-1]
    rows = invoke(explored.run_id, "--config", federation.directory / "telco.yaml", "--correlations")
    assert {(row["column"], row["with party"]) for row in rows} == {("BILL_AMT1", "bureau"), ("BILL_AMT1", "bank")}
    wanted = dict(zip(names, np.corrcoef(features.T)[names.index("BILL_AMT1")], strict=True))
    first, last = HELD["bureau"]
    for row in rows:
        column = (pooled[0][first:last] if row["with party"] == "bureau" else CROSSED["bank"])[row["number"] - 1]
        assert row["correlation"] == pytest.approx(wanted[column], abs=1e-6)


def test_others_see_correlations_by_name_where_both_owners_share_names(federation, explored, divided, pooled):
    (features, _), _ = divided
    dialled = ["--address", federation.addresses["coordinator"]]
    identity = federation.directory / "certificates" / "client"
    rows = invoke(explored.run_id, *dialled, "--identity", identity, "--correlations")
    found = {(row["column"], row["with"]): row["correlation"] for row in rows}
    names = pooled[0][1:-1]
    wanted = np.corrcoef(features.T)[names.index("LIMIT_BAL"), names.index("PAY_0")]
    assert found["LIMIT_BAL", "bank PAY_0"] == pytest.approx(wanted, rel=6e-3)
    assert ("LIMIT_BAL", "telco column 1") in found  # telco lets it be correlated, and does not tell its name
    assert not {"PAY_3", "BILL_AMT2"} & {name for pair in found for name in pair}


def test_variance_inflation_given_all_parties_columns_is_the_pooled_tables(federation, explored, divided, pooled):
    (features, _), _ = divided
    names = pooled[0][1:-1]
    crossed = [*names[:5], *CROSSED["bank"], *CROSSED["telco"]]
    matrix = np.corrcoef(features[:, [names.index(name) for name in crossed]].T)
    wanted = dict(zip(crossed, np.diag(np.linalg.inv(matrix)), strict=True))
    for party in HELD:
        rows = invoke(explored.run_id, "--config", federation.directory / f"{party}.yaml")
        found = {row["column"]: row["vif"] for row in rows if row["vif"] is not None}
        assert found == pytest.approx({name: wanted[name] for name in found}, rel=1e-6)
        assert set(found) == set(pooled[0][slice(*HELD[party])]) & set(crossed)


def test_noisy_labels_of_an_exploration_are_one_release_in_the_ledger(client):
    run = client.start(EXPLORE.replace('{mechanism: "off"}', "{mechanism: once, epsilon: 3}"))
    run.result()
    assert [(entry.releases, entry.epsilon) for entry in run.ledger().entries] == [(1, 3.0)]


@pytest.fixture(scope="module")
def carded(client, explored):
    run = client.start((SPEC % "off").replace("name: credit", f"name: card\nbinned_by: {explored.run_id}"))
    run.result()
    return run


def card_of(run, *arguments):
    shown = CliRunner().invoke(app, ["scorecard", run.run_id, *map(str, arguments), "--json"])
    assert shown.exit_code == 0, shown.output
    return json.loads(shown.output)


def weigh(values, edges, weights):
    return np.array(weights)[np.searchsorted(edges, values, side="left")]


def test_points_of_all_parties_add_up_to_the_pooled_scorecard(federation, explored, carded, divided, pooled):
    """The naive way: weigh the pooled table, fit it by statsmodels, scale its logits to points."""
    (features, classes), (held, _) = divided
    names, bins = pooled[0][1:-1], {}
    for party in HELD:
        for row in invoke(explored.run_id, "--config", federation.directory / f"{party}.yaml", "--bins"):
            bins.setdefault(row["column"], []).append(row)
    edges = {column: [row["up to"] for row in rows[:-1]] for column, rows in bins.items()}
    weights = {name: evidence_of(features[:, c], classes, edges[name])[0] for c, name in enumerate(names)}
    trained, test = (
        np.stack([weigh(table[:, c], edges[name], weights[name]) for c, name in enumerate(names)], axis=1)
        for table in (features, held)
    )
    wanted = sm.GLM(classes, sm.add_constant(trained), sm.families.Binomial()).fit(tol=1e-14)
    logits = sm.add_constant(test, has_constant="add") @ wanted.params
    factor, found = 20 / np.log(2), np.zeros(len(held))
    for party, (first, last) in HELD.items():
        rows = card_of(carded, "--config", federation.directory / f"{party}.yaml")
        for name in names[first - 1 : last - 1]:
            points = [row["points"] for row in rows if row["column"] == name]
            found += weigh(held[:, names.index(name)], edges[name], points)
        found += sum(row["points"] for row in rows if row["column"] == "(intercept)")
    np.testing.assert_allclose(found, 600 - factor * np.log(50) - factor * logits, 1e-6)


def test_others_see_points_as_far_as_policies_go(federation, carded):
    dialled = ["--address", federation.addresses["coordinator"]]
    rows = card_of(carded, *dialled, "--identity", federation.directory / "certificates" / "client")
    assert {row["party"] for row in rows} == {"bureau", "bank"}
    limit = [row for row in rows if row["column"] == "LIMIT_BAL"]
    assert [row["bin"] for row in limit] == list(range(1, len(limit) + 1))
    assert limit[-1]["points"] > limit[0]["points"]  # a higher limit goes with fewer defaults


def test_rows_that_are_predicted_are_binned_as_those_that_were_trained_on(client, carded, common):
    rows = divide(parse_spec(SPEC % "off").split, len(common), stream(0, "split")).test
    found = client.run(carded.run_id).predict(ids=[str(common[row]) for row in rows[:200]])
    assert 0.01 < found.scores[:, 0].min() < found.scores[:, 0].max() < 0.99


def test_bins_of_a_run_that_never_explored_are_refused(client, run):
    with pytest.raises(RequestRefused, match="binned_by"):
        client.start((SPEC % "off").replace("name: credit", f"name: bad\nbinned_by: {run.run_id}")).result()


def test_a_run_reports_its_matrix_curves_and_rates(run, divided):
    (features, classes), (held, truth) = divided
    wanted = sm.GLM(classes, sm.add_constant(features), sm.families.Binomial()).fit(tol=1e-14)
    above = wanted.predict(sm.add_constant(held, has_constant="add")) > run.metrics["test threshold"]
    assert run.metrics["test confusion/1/1"] == (above & (truth == 1)).sum()
    assert run.metrics["test recall"] == pytest.approx((above & (truth == 1)).sum() / truth.sum())
    bands = [value for name, value in run.metrics.items() if name.startswith("test bands/") and name.endswith("rows")]
    assert sum(bands) == len(held)
    assert min(bands) >= 20


COUNTED = """
name: counted
table: public
alignment: counted
parties: [bureau, bank, telco]
split: {lower: 0.6, upper: 0.1, test: 0.3}
train: {algorithm: explore, bins: 5, against_label: true}
privacy:
  labels: {mechanism: "off"}
  features: {kind: counts, epsilon: %g}
"""


def test_noisy_counts_are_charged_to_every_partys_ledger_and_refused_once_it_is_spent(federation, client, pooled):
    client.align("counted", list(HELD), "public")
    run = client.start(COUNTED % 4)
    run.result()
    config = federation.directory / "bank.yaml"
    shares = [row["share"] for row in invoke(run.run_id, "--config", config, "--bins") if row["column"] == "PAY_0"]
    assert len(shares) > 1
    assert sum(shares) == pytest.approx(1)
    found = {row["column"]: row for row in invoke(run.run_id, "--config", config)}
    assert found["PAY_0"]["iv"] > 0.3  # what it is without noise: about 0.7
    assert "mean" not in found["PAY_0"]
    for party in HELD:
        shown = CliRunner().invoke(
            app, ["ledger", "datasets", "--config", str(federation.directory / f"{party}.yaml"), "--json"]
        )
        account = {each["data set"]: each for each in json.loads(shown.output)["datasets"]}["features/public"]
        assert 3 < account["ε spent"] <= 4
    with pytest.raises(RequestRefused, match=r"BUDGET_EXHAUSTED.*features/public.*past its budget of 10"):
        client.start(COUNTED % 9.5).result()
