"""The estimator on a federation of real processes."""

import pickle

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes

import parley
from parley.estimator import FederationClosed, NotPortable


def test_both_engines_learn_the_same_model_and_nothing_is_left_behind():
    """Sums in the ring are rounded to 2⁻⁴⁰, which is all that lies between the engines."""
    X, y = load_breast_cancer(return_X_y=True)
    X, y, rest = X[:200, :10], y[:200], X[200:260, :10]
    settings = {"parties": 3, "epsilon": None, "steps": 5, "random_state": 7}
    here = parley.FederatedClassifier(engine="in_process", **settings).fit(X, y)
    with parley.FederatedClassifier(engine="processes", **settings) as model:
        model.fit(X, y)
        np.testing.assert_allclose(model.predict_proba(rest), here.predict_proba(rest), rtol=0, atol=1e-6)
        np.testing.assert_allclose(model.predict_proba(rest[:1]), here.predict_proba(rest[:1]), rtol=0, atol=1e-6)
        assert model.score(X, y) > 0.9
        processes, directory = list(model._federation.processes.values()), model._directory
        with pytest.raises(NotPortable):
            pickle.dumps(model)
        model.set_params(epsilon=3.0).fit(X, y)
        assert list(model._federation.processes.values()) == processes, "the federation is kept between fits"
        assert model._run.ledger().report.pure_epsilon == pytest.approx(3)
    assert all(process.poll() is not None for process in processes)
    assert not directory.exists()
    with pytest.raises(FederationClosed):
        model.predict(rest)


def test_a_regression_in_processes_pays_for_its_targets_once():
    X, y = load_diabetes(return_X_y=True)
    settings = {"parties": 3, "epsilon": 4.0, "target_range": (0, 400), "steps": 2, "random_state": 7}
    with parley.FederatedRegressor(**settings) as model:
        for _ in range(2):
            model.fit(X[:120, :6], y[:120])
            assert model._run.ledger().report.pure_epsilon == pytest.approx(4)
        assert np.isfinite(model.predict(X[120:130, :6])).all()
