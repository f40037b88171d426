"""Class weights do what they do in scikit-learn on the pooled table, where classes are rare."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from parley.coordinator.labels import LabelsMissing
from parley.numerics.streams import stream
from parley.party.glm.role import coefficients
from parley.simulation.runs import Holding, models_of, simulation_of
from parley.spec.parsing import SpecInvalid, parse_spec
from parley.spec.rows import divide
from parley.tables.loading import Labels, Table

ROWS, SHARES = 800, ((0, 1), (2, 3), (4,))
DRAW = np.random.default_rng(11)
FEATURES = DRAW.standard_normal((ROWS, 5))
CLASSES = (FEATURES @ [1.0, -0.5, 0.5, 0.0, 0.8] + DRAW.logistic(size=ROWS) > 3.2).astype(int)
IDS = np.array([f"{row:04}" for row in range(ROWS)])


def spec_of(train, labels='{mechanism: "off"}'):
    return parse_spec(f"""
name: weighted
dtype: float64
parties: [bank, shop, post]
split: {{lower: 0.6, upper: 0.2, test: 0.2}}
evaluation: {{threshold: 0.1, resamples: 100}}
train: {train}
privacy: {{labels: {labels}}}
""")


def run(spec):
    held = [
        Table(IDS, np.ascontiguousarray(FEATURES[:, columns]), [f"c{c}" for c in columns], "t") for columns in SHARES
    ]
    labels = Labels(IDS, CLASSES, ("paid", "late"))
    simulation = simulation_of(spec, [Holding(table) for table in held], lambda _, __: labels)
    return simulation, held, simulation.run()


def pooled(spec, weights, **settings):
    rows = divide(spec.split, ROWS, stream(spec.seed, "split"))
    model = LogisticRegression(class_weight=weights, tol=1e-12, max_iter=10_000, **settings)
    return model.fit(FEATURES[rows.trained], CLASSES[rows.trained]), rows.test


@pytest.mark.parametrize(
    ("written", "weights"),
    [("balanced", "balanced"), ("{paid: 1, late: 7.5}", {0: 1, 1: 7.5})],
    ids=["balanced", "own"],
)
@pytest.mark.parametrize("strength", [0.0, 0.05])
def test_a_weighted_generalised_linear_model_is_the_pooled_one(written, weights, strength):
    train = f"{{algorithm: glm, class_weights: {written}, penalty: {{strength: {strength}}}}}"
    spec = spec_of(train)
    simulation, held, outcome = run(spec)
    trained = len(divide(spec.split, ROWS, stream(spec.seed, "split")).trained)
    wanted, test = pooled(spec, weights, C=1 / (trained * strength) if strength else np.inf)
    found = [
        one
        for table, model in zip(held, models_of(simulation, outcome), strict=True)
        for one in coefficients(model, table.columns)
    ]
    values = {one.column: one.value for one in found}
    np.testing.assert_allclose([values[f"c{c}"] for c in range(5)], wanted.coef_[0], 1e-5, 1e-6)
    assert all(one.standard_error is None for one in found)
    cut = outcome.metrics["test threshold"]
    above = wanted.predict_proba(FEATURES[test])[:, 1] > cut
    assert outcome.metrics["test confusion/late/late"] == (above & (CLASSES[test] == 1)).sum()
    assert outcome.metrics["test auc/low"] < outcome.metrics["test auc"] < outcome.metrics["test auc/high"]


def test_weighted_slopes_of_asysqn_lead_to_the_pooled_optimum():
    train = """{algorithm: asysqn, labels_at: coordinator, schedule: synchronous, class_weights: balanced, batch: 640,
      steps: 400, regularisation: 0.05}"""
    spec = spec_of(train)
    _, _, outcome = run(spec)
    rows = divide(spec.split, ROWS, stream(spec.seed, "split")).trained
    wanted, test = pooled(spec, "balanced", C=1 / (len(rows) * 0.05), fit_intercept=False)
    classes = CLASSES[rows]
    each = np.where(classes == 1, len(rows) / (2 * classes.sum()), len(rows) / (2 * (1 - classes).sum()))
    margin = FEATURES[rows] @ wanted.coef_[0] * np.where(classes == 1, 1, -1)
    best = np.mean(each * np.logaddexp(0, -margin)) + 0.025 * np.square(wanted.coef_).sum()
    assert outcome.metrics["objective"] == pytest.approx(best, rel=1e-4)
    above = wanted.predict_proba(FEATURES[test])[:, 1] > 0.5
    assert outcome.metrics["test accuracy"] == pytest.approx((above == (CLASSES[test] == 1)).mean(), abs=0.02)


def test_bambi_finds_more_of_a_rare_class_where_it_weighs_more():
    train = """{algorithm: bambi, problem: hyper_parameters, loss: logistic, upper: {steps: 5}%s}"""
    plain, weighed = (run(spec_of(train % extra))[2].metrics for extra in ("", ", class_weights: balanced"))
    assert weighed["test accuracy"] < plain["test accuracy"]  # more rows are taken for the rare class
    assert weighed["test auc"] == pytest.approx(plain["test auc"], abs=0.05)
    assert weighed["test brier score"] > plain["test brier score"]


@pytest.mark.parametrize(
    ("train", "labels", "told"),
    [
        ("{algorithm: glm, class_weights: balanced}", "{mechanism: once}", "evaluation.threshold"),
        ("{algorithm: glm, family: poisson, class_weights: balanced}", '{mechanism: "off"}', "numbers"),
        ("{algorithm: bambi, loss: squared, class_weights: balanced}", '{mechanism: "off"}', "numbers"),
        ("{algorithm: asysqn, class_weights: balanced}", '{mechanism: "off"}', "labels_at: coordinator"),
    ],
)
def test_weights_that_mean_nothing_are_refused(train, labels, told):
    with pytest.raises(SpecInvalid, match=told):
        spec_of(train, labels)


def test_weights_of_other_classes_than_the_labels_have_are_refused():
    with pytest.raises(LabelsMissing, match="paid, late"):
        run(spec_of("{algorithm: glm, class_weights: {0: 1, 1: 2}}"))
