import numpy as np
import pytest

from parley.experiments.fate_quality import RELATIVE_TOLERANCE, federated, pooled, run, tasks


@pytest.mark.parametrize("place", [0, 1, 2], ids=["breast", "diabetes, linear", "diabetes, poisson"])
def test_a_federated_model_is_well_within_the_tolerance_of_the_benchmark(tmp_path, place):
    task = tasks(True, tmp_path)[place]
    width = task.features.shape[1]
    ours, theirs = federated(task, [np.arange(task.guest), np.arange(task.guest, width)]), pooled(task)
    assert set(ours) == set(theirs)
    for metric, value in ours.items():
        assert value == pytest.approx(theirs[metric], rel=RELATIVE_TOLERANCE / 10)


def test_a_model_of_all_columns_does_not_depend_on_who_holds_them(tmp_path):
    task = tasks(True, tmp_path)[0]
    one = federated(task, [np.arange(10), np.arange(10, 30)])
    other = federated(task, [np.arange(0, 30, 2), np.arange(1, 30, 2)])
    assert one["AUC"] == pytest.approx(other["AUC"], abs=1e-6)


def test_cases_and_metrics_have_the_names_that_others_ask_for(tmp_path, monkeypatch):
    monkeypatch.setattr("parley.experiments.fate_quality.cuts", list)
    found = {(row["case"], row["metric"]) for row in run(True, tmp_path)}
    assert {("breast lr", "AUC"), ("breast lr", "pooled AUC"), ("diabetes linr", "pooled RMSE")} <= found
