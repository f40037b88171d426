"""A federated generalised linear model is the pooled table's: coefficients, standard errors, p-values and intervals.

The federated side has the ring of secure sums, secret mixtures and messages as bytes.
"""

import numpy as np
import pytest
import statsmodels.api as sm
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import ElasticNet, GammaRegressor, LogisticRegression, PoissonRegressor, Ridge
from sklearn.metrics import roc_auc_score

from parley.coordinator.labels import LabelsMissing
from parley.numerics.generalised_linear import NoSolution
from parley.numerics.streams import stream
from parley.party.glm.role import coefficients
from parley.simulation.runs import Holding, models_of, simulation_of
from parley.spec.parsing import SpecInvalid, parse_spec
from parley.spec.rows import divide
from parley.tables.errors import RowsDiffer
from parley.tables.loading import Labels, Table

ROWS, TOLERANCE = 500, 1e-6
DRAW = np.random.default_rng(7)
FEATURES = DRAW.standard_normal((ROWS, 7)) @ DRAW.standard_normal((7, 7)) * [1, 2, 0.5, 1, 1, 3, 1] + [
    0,
    4,
    0,
    1,
    0,
    0,
    2,
]
SIGNAL = FEATURES @ [0.3, -0.1, 0.4, 0.0, 0.2, -0.05, 0.1] / 2
SHARES = ((0, 1, 2), (3, 4), (5, 6))
FAMILIES = {
    "linear": (sm.families.Gaussian(), SIGNAL + DRAW.standard_normal(ROWS)),
    "logistic": (sm.families.Binomial(), (SIGNAL + DRAW.logistic(size=ROWS) > 0.2).astype(int)),
    "poisson": (sm.families.Poisson(), DRAW.poisson(np.exp(SIGNAL)).astype(float)),
    "gamma": (sm.families.Gamma(sm.families.links.Log()), DRAW.gamma(2.0, np.exp(SIGNAL) / 2.0)),
    "tweedie": (
        sm.families.Tweedie(sm.families.links.Log(), var_power=1.5),
        DRAW.poisson(np.exp(SIGNAL)) * DRAW.gamma(2.0, 0.5, ROWS),
    ),
}


SPLIT = """
name: glm
parties: [bank, shop, post]
split: {lower: 0.5, upper: 0.1, validation: 0.2, test: 0.2}
train: {algorithm: glm, family: logistic}
privacy: {labels: {mechanism: "off"}}
"""


def spec_of(family, extra="", labels='{mechanism: "off"}'):
    return parse_spec(f"""
name: glm
parties: [bank, shop, post]
split: {{lower: 0.7, upper: 0.1, test: 0.2}}
train: {{algorithm: glm, family: {family}{extra}}}
privacy: {{labels: {labels}}}
""")


def tables(features=FEATURES, shares=SHARES):
    ids = np.array([f"{row:04}" for row in range(len(features))])
    return [
        Table(ids, np.ascontiguousarray(features[:, columns]), [f"c{c}" for c in columns], "glm") for columns in shares
    ]


def federated(spec, values, features=FEATURES, shares=SHARES, exposure=None, events=None):
    """Saved models of the parties and the run's metrics, through the ring and the codecs."""
    classes = ("0", "1") if spec.train.family == "logistic" else ()
    held = tables(features, shares)
    labels = Labels(held[0].ids, np.asarray(values), classes)
    named = {} if exposure is None else {"seen": Labels(held[0].ids[: len(exposure)], exposure, ())}
    simulation = simulation_of(
        spec, [Holding(table) for table in held], lambda one, _: named.get(one.label_table, labels), sums="protected"
    )
    outcome = simulation.run()
    if events is not None:
        events.extend(outcome.reports)
    found = {}
    for table, model in zip(held, models_of(simulation, outcome), strict=True):
        found |= {one.column: one for one in coefficients(model, table.columns)}
    return found, outcome.metrics


def trained(spec, rows=ROWS):
    return divide(spec.split, rows, stream(spec.seed, "split")).trained


def close(found, wanted):
    np.testing.assert_allclose(found, wanted, TOLERANCE, TOLERANCE)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_equals_statsmodels(family):
    kind, values = FAMILIES[family]
    spec = spec_of(family)
    rows = trained(spec)
    design = sm.add_constant(FEATURES[rows])
    pooled = (
        sm.OLS(values[rows], design).fit()
        if family == "linear"
        else sm.GLM(values[rows], design, kind).fit(tol=1e-14, maxiter=200)
    )
    found, metrics = federated(spec, values)
    assert list(found) == ["c0", "c1", "c2", "(intercept)", "c3", "c4", "c5", "c6"]
    order = ["(intercept)", *(f"c{c}" for c in range(7))]
    close([found[name].value for name in order], pooled.params)
    close([found[name].standard_error for name in order], pooled.bse)
    close([found[name].p_value for name in order], pooled.pvalues)
    close([[found[name].low, found[name].high] for name in order], pooled.conf_int())
    if family != "linear":
        close([metrics["deviance"], metrics["null deviance"]], [pooled.deviance, pooled.null_deviance])
    if family not in ("logistic", "poisson"):
        close(metrics["dispersion"], pooled.scale)


SEEN = DRAW.uniform(0.1, 3.0, ROWS)


@pytest.mark.parametrize("family", ["poisson", "gamma", "tweedie"])
def test_rows_that_were_observed_for_unlike_times_are_weighed_as_statsmodels_does(family):
    kind, values = FAMILIES[family]
    counts = DRAW.poisson(SEEN * np.exp(SIGNAL)).astype(float) if family == "poisson" else values * SEEN
    spec = spec_of(family, ", exposure: seen")
    rows, held_out = trained(spec), divide(spec.split, ROWS, stream(spec.seed, "split")).test
    pooled = sm.GLM(counts[rows], sm.add_constant(FEATURES[rows]), kind, exposure=SEEN[rows]).fit(tol=1e-14, maxiter=99)
    found, metrics = federated(spec, counts, exposure=SEEN)
    order = ["(intercept)", *(f"c{c}" for c in range(7))]
    close([found[name].value for name in order], pooled.params)
    close([found[name].standard_error for name in order], pooled.bse)
    close([found[name].p_value for name in order], pooled.pvalues)
    close([metrics["deviance"], metrics["null deviance"]], [pooled.deviance, pooled.null_deviance])
    predicted = pooled.predict(sm.add_constant(FEATURES[held_out]), exposure=SEEN[held_out])
    assert metrics["test mae"] == pytest.approx(np.abs(counts[held_out] - predicted).mean(), rel=2e-3)


def test_an_exposure_needs_a_log_link_positive_numbers_and_the_same_rows():
    with pytest.raises(SpecInvalid, match="no log link"):
        spec_of("linear", ", exposure: seen")
    spec, values = spec_of("poisson", ", exposure: seen"), FAMILIES["poisson"][1]
    with pytest.raises(LabelsMissing, match="positive"):
        federated(spec, values, exposure=SEEN - 1)
    with pytest.raises(RowsDiffer, match="not about the rows"):
        federated(spec, values, exposure=SEEN[:-1])


RIDGES = {
    "linear": lambda n: Ridge(alpha=0.3 * n, tol=1e-14),
    "logistic": lambda n: LogisticRegression(C=1 / (0.3 * n), tol=1e-12, max_iter=10_000),
    "poisson": lambda _: PoissonRegressor(alpha=0.3, tol=1e-12, max_iter=10_000),
    "gamma": lambda _: GammaRegressor(alpha=0.3, tol=1e-12, max_iter=10_000),
}


@pytest.mark.parametrize("family", RIDGES)
def test_ridge_equals_scikit_learn(family):
    values = FAMILIES[family][1]
    spec = spec_of(family, ", penalty: {strength: 0.3}")
    rows = trained(spec)
    pooled = RIDGES[family](len(rows)).fit(FEATURES[rows], values[rows])
    found, _ = federated(spec, values)
    close([found[f"c{c}"].value for c in range(7)], pooled.coef_.ravel())
    close(found["(intercept)"].value, np.ravel(pooled.intercept_)[0])
    assert found["c0"].standard_error is None


def test_the_elastic_net_equals_scikit_learn_down_to_its_zeros():
    values = FAMILIES["linear"][1]
    spec = spec_of("linear", ", penalty: {strength: 0.3, l1_ratio: 0.8}")
    rows = trained(spec)
    pooled = ElasticNet(alpha=0.3, l1_ratio=0.8, tol=1e-14, max_iter=100_000).fit(FEATURES[rows], values[rows])
    found, _ = federated(spec, values)
    weights = np.array([found[f"c{c}"].value for c in range(7)])
    close(weights, pooled.coef_)
    close(found["(intercept)"].value, pooled.intercept_)
    assert (weights == 0).tolist() == (pooled.coef_ == 0).tolist()
    assert (weights == 0).any()


def test_a_lasso_of_classes_equals_scikit_learn():
    values = FAMILIES["logistic"][1]
    spec = spec_of("logistic", ", penalty: {strength: 0.05, l1_ratio: 1}")
    rows = trained(spec)
    penalised = {"solver": "saga", "tol": 1e-12, "max_iter": 200_000}
    pooled = LogisticRegression(C=1 / (0.05 * len(rows)), l1_ratio=1.0, **penalised).fit(FEATURES[rows], values[rows])
    found, _ = federated(spec, values)
    np.testing.assert_allclose([found[f"c{c}"].value for c in range(7)], pooled.coef_[0], 1e-5, 1e-5)


def test_an_elastic_net_of_nearly_dependent_columns_settles():
    """Thirty columns that say the same in other words, and classes that a plane tells apart."""
    whole, values = load_breast_cancer(return_X_y=True)
    whole, values = whole[:300], values[:300]
    features = (whole - whole.mean(axis=0)) / whole.std(axis=0)
    spec = spec_of("logistic", ", penalty: {strength: 0.1, l1_ratio: 0.5}")
    rows = trained(spec, 300)
    penalised = {"solver": "saga", "tol": 1e-10, "max_iter": 100_000}
    pooled = LogisticRegression(C=1 / (0.1 * len(rows)), l1_ratio=0.5, **penalised).fit(features[rows], values[rows])
    shares = tuple(tuple(range(first, first + 10)) for first in (0, 10, 20))
    found, _ = federated(spec, values, features, shares)
    np.testing.assert_allclose([found[f"c{c}"].value for c in range(30)], pooled.coef_[0], 1e-4, 1e-5)


def test_validation_and_test_rows_are_measured_apart():
    values = FAMILIES["logistic"][1]
    whole = spec_of("logistic", ", penalty: {strength: 0.3}")
    spec = whole.model_copy(update={"split": parse_spec(SPLIT).split})
    rows = divide(spec.split, ROWS, stream(spec.seed, "split"))
    pooled = RIDGES["logistic"](len(rows.trained)).fit(FEATURES[rows.trained], values[rows.trained])
    _, metrics = federated(spec, values)
    for name, chosen in (("validation", rows.validation), ("test", rows.test)):
        area = roc_auc_score(values[chosen], pooled.decision_function(FEATURES[chosen]))
        assert metrics[f"{name} auc"] == pytest.approx(area, abs=5e-4)  # figures leave rounded, by the number of rows
    assert metrics["validation auc"] != metrics["test auc"]


def test_what_is_solved_at_once_cannot_be_stopped_early():
    with pytest.raises(SpecInvalid, match="solved at once"):
        parse_spec(SPLIT + "stop: {metric: validation auc, patience: 2}")


def test_noisy_labels_are_corrected_for_and_widen_the_intervals():
    """Under randomised response the model is still of the true classes: their coefficients lie in the intervals."""
    draw = np.random.default_rng(1)
    features = draw.standard_normal((6000, 7))
    true = np.array([0.8, -0.5, 0.4, 0.0, 0.3, -0.2, 0.1])
    values = (features @ true + draw.logistic(size=6000) > 0).astype(int)
    noisy, _ = federated(spec_of("logistic", labels="{mechanism: once, epsilon: 2}"), values, features)
    clean, _ = federated(spec_of("logistic"), values, features)
    for c in range(7):
        one = noisy[f"c{c}"]
        assert one.standard_error > clean[f"c{c}"].standard_error
        # false alarms: 7 coefficients beyond 4 standard errors have probability below 5e-4
        assert abs(one.value - true[c]) < 4 * one.standard_error


def test_a_column_that_depends_on_the_partys_others_gets_nothing_and_changes_nothing():
    kind, values = FAMILIES["poisson"]
    spec = spec_of("poisson")
    rows = trained(spec)
    doubled = np.column_stack([FEATURES, FEATURES[:, 5] * 2 + 3])  # of the third party's column, and of the intercept
    found, _ = federated(spec, values, doubled, (*SHARES[:2], (5, 6, 7)))
    pooled = sm.GLM(values[rows], sm.add_constant(FEATURES[rows]), kind).fit(tol=1e-14)
    close([found[f"c{c}"].value for c in range(7)], pooled.params[1:])
    close([found[f"c{c}"].standard_error for c in range(7)], pooled.bse[1:])
    assert (found["c7"].value, found["c7"].standard_error) == (0.0, None)


def test_columns_of_two_parties_that_depend_on_each_other_are_refused_with_a_remedy():
    doubled = np.column_stack([FEATURES, FEATURES[:, 0]])
    with pytest.raises(NoSolution, match=r"combinations of each other.*penalty"):
        federated(spec_of("linear"), FAMILIES["linear"][1], doubled, (*SHARES[:2], (5, 6, 7)))


def test_classes_that_a_plane_tells_apart_are_refused_with_a_remedy():
    with pytest.raises(NoSolution, match=r"apart perfectly.*penalty"):
        federated(spec_of("logistic"), (FEATURES[:, 0] > FEATURES[:, 5]).astype(int))


@pytest.mark.parametrize("family", ["logistic", "poisson"])
def test_a_column_that_tells_the_outcome_of_some_rows_is_warned_of(family):
    """Of a category without events, the coefficient runs off and its error has no meaning."""
    features, values = FEATURES.copy(), FAMILIES[family][1].copy()
    events, warned = [], []
    features[:, 6] = DRAW.random(ROWS) < 0.1
    for quiet in (True, False):
        if not quiet:
            values[features[:, 6] > 0] = 0
        events.clear()
        federated(spec_of(family), values, features, events=events)
        warned.append([event.warning.topic for event in events if event.warning is not None])
    assert warned == [[], ["coefficients without bound"]]


def test_what_parties_are_sent_does_not_grow_with_the_rows():
    """A residual for each row would tell labels: no instruction holds one."""
    sizes = []
    for rows in (150, 450):
        spec = spec_of("logistic")
        held = tables(FEATURES[:rows])
        labels = Labels(held[0].ids, FAMILIES["logistic"][1][:rows], ("0", "1"))
        simulation = simulation_of(spec, [Holding(table) for table in held], lambda _, __, found=labels: found)
        sent, encode = [], simulation.program.encode

        def counted(number, release, sent=sent, encode=encode):
            message, blobs = encode(number, release)
            sent.append(len(message.solution.data) + len(message.covariance.data) + sum(map(len, blobs)))
            return message, blobs

        simulation.program.encode = counted
        simulation.run()
        sizes.append(sum(sent))
    assert sizes[0] == sizes[1] > 0


def inflation_of(spec, values, features=FEATURES, shares=SHARES):
    held = tables(features, shares)
    labels = Labels(held[0].ids, np.asarray(values), ("0", "1") if spec.train.family == "logistic" else ())
    simulation = simulation_of(spec, [Holding(table) for table in held], lambda _, __: labels, sums="protected")
    models = models_of(simulation, simulation.run())
    return [np.asarray(model["inflation"]) for model in models]


@pytest.mark.parametrize("family", ["linear", "logistic"])
def test_variance_inflation_is_the_pooled_tables(family):
    """1/(1 − R²) of each column given all others, of all parties; the model's family does not matter."""
    spec = spec_of(family)
    pooled = FEATURES[trained(spec)]
    wanted = np.diag(np.linalg.inv(np.corrcoef(pooled.T)))
    close(np.concatenate(inflation_of(spec, FAMILIES[family][1])), wanted)


def test_a_column_that_depends_on_others_of_its_party_has_no_inflation_and_inflates_nothing():
    doubled = np.column_stack([FEATURES, FEATURES[:, 5] - 2 * FEATURES[:, 6], np.ones(ROWS)])
    spec = spec_of("linear")
    found = inflation_of(spec, FAMILIES["linear"][1], doubled, ((0, 1, 2), (3, 4), (5, 6, 7, 8)))
    wanted = np.diag(np.linalg.inv(np.corrcoef(FEATURES[trained(spec)].T)))
    close(found[2][:2], wanted[5:])
    assert np.isnan(found[2][2:]).all()
