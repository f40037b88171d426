"""Figures of parties that hold their own labels, averaged over them, are scikit-learn's by their saved models."""

import numpy as np
import pandas as pd
import pytest
from sklearn import metrics as reference

from parley.numerics.metrics import AVERAGED, party_addends, party_averages
from parley.services.party.config import TableConfig
from parley.services.party.tables import TableStore
from parley.simulation.runs import Holding, models_of, simulation_of
from parley.spec.parsing import SpecInvalid, parse_spec

PARTIES, ROWS, SIZE = ("bank", "shop", "telco"), 80, 3
HGP = f"""
name: averaged
dtype: float64
table: own
parties: [{", ".join(PARTIES)}]
split: {{lower: "0:40", upper: "40:60", test: "60:80"}}
train:
  algorithm: hgp
  task: {{kind: regularisation, classes: ["0", "1"], initial: 0.1}}
  network: {{kind: fully_connected}}
  inner: {{steps: 10, learning_rate: 0.5}}
  hyper: {{rounds: 5, push_steps: 1, step_size: 0.5, form: reinit}}
  outer: {{steps: 2, optimiser: adam, step_size: 0.02}}
evaluation: {{averages: true}}
"""
FEDBIO = f"""
name: averaged
dtype: float64
table: own
parties: [{", ".join(PARTIES)}]
train:
  algorithm: fedbio
  task: {{kind: hyper_parameters, classes: ["0", "1"], validation: checked, initial: 0.1, lowest: 0.05}}
  accelerated: false
  rounds: 4
  local_steps: 1
  eta: 2
  gamma: 0.2
  tau: 0.2
  batch: {ROWS}
  checked_batch: {ROWS}
evaluation: {{averages: true}}
"""


def records(member, part=0):
    draw = np.random.default_rng([member, part])
    features = draw.standard_normal((ROWS, SIZE))
    return features, (features @ [1.0, -2.0, 0.5] + draw.normal(member, 1, ROWS) > 0).astype(np.int64)


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    """What each party holds: its own rows, and checked ones."""
    folder = tmp_path_factory.mktemp("averages")
    found = []
    for member, party in enumerate(PARTIES):
        tables = {}
        for part, name in enumerate(("own", "checked")):
            features, classes = records(member, part)
            columns = {f"c{index}": features[:, index] for index in range(SIZE)}
            path = folder / f"{party}-{name}.parquet"
            pd.DataFrame({"id": [f"{row:02}" for row in range(ROWS)], **columns, "label": classes}).to_parquet(path)
            tables[name] = TableConfig(path=str(path), label="label")
        store = TableStore(tables)
        found.append(Holding(store.load("own"), store))
    return found


def logistic(scores):
    return 1 / (1 + np.exp(-scores))


def figures(p, truth):
    return {
        "mean auc": reference.roc_auc_score(truth, p),
        "mean average precision": reference.average_precision_score(truth, p),
        "mean brier score": reference.brier_score_loss(truth, p),
        "mean loss": reference.log_loss(truth, p),
    }


def check(metrics, judged, expected):
    for name in expected[0]:
        mean = np.mean([one[name] for one in expected])
        assert metrics[f"{judged} {name}"] == pytest.approx(mean, abs=1e-7), name
    assert {f"{judged} mean ks", f"{judged} mean calibration error"} <= set(metrics)


def test_sums_of_figures_are_averages_over_the_parties_whose_rows_define_them():
    draw = np.random.default_rng(1)
    p, truth = draw.random(50), np.arange(50) % 2
    one_class = party_addends(np.stack([1 - p, p], axis=1), np.zeros(50, dtype=np.int64))
    both = party_addends(np.stack([1 - p, p], axis=1), truth)
    nobody = party_addends(np.empty((0, 2)), np.empty(0, dtype=np.int64))
    assert not nobody.any()
    found = party_averages(one_class + both + nobody)
    assert found["mean auc"] == pytest.approx(reference.roc_auc_score(truth, p))
    losses = [reference.log_loss(truth, p), -np.log(1 - p).mean()]
    assert found["mean loss"] == pytest.approx(np.mean(losses))
    assert party_averages(np.zeros(2 * len(AVERAGED))) == {}


def test_hgp_tells_the_mean_of_the_parties_figures_of_their_test_rows(held):
    simulation = simulation_of(parse_spec(HGP), held, lambda *_: None)
    outcome = simulation.run()
    expected = []
    for member, model in enumerate(models_of(simulation, outcome)):
        features, truth = records(member)
        expected.append(figures(logistic(features[60:] @ model["model"].numpy()), truth[60:]))
    check(outcome.metrics, "test", expected)


def test_fedbio_tells_the_mean_of_the_parties_figures_of_their_checked_rows(held):
    simulation = simulation_of(parse_spec(FEDBIO), held, lambda *_: None)
    outcome = simulation.run()
    expected = []
    for member, model in enumerate(models_of(simulation, outcome)):
        features, truth = records(member, 1)
        scores = features @ model["layers.0.weight"].numpy() + model["layers.0.bias"].numpy()
        expected.append(figures(logistic(scores[:, 1] - scores[:, 0]), truth))
    check(outcome.metrics, "validation", expected)


@pytest.mark.parametrize(("spec", "asked"), [(HGP, 12), (FEDBIO, 12)])
def test_without_the_line_nothing_more_is_summed(held, spec, asked):
    whole, plain = parse_spec(spec), parse_spec(spec.replace("averages: true", "averages: false"))
    sums = [simulation_of(one, held, lambda *_: None).run().metrics for one in (whole, plain)]
    assert len(sums[0]) - len(sums[1]) == asked // 2
    assert {name: sums[0][name] for name in sums[1]} == sums[1]


def test_averages_are_for_parties_with_classes_of_their_own():
    with pytest.raises(SpecInvalid, match=r"evaluation.averages: not with bambi"):
        parse_spec("{name: a, parties: [a, b], train: {algorithm: bambi}, evaluation: {averages: true}}")
