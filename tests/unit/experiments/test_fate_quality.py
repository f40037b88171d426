import sys
import time
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from parley.benchmarks.peers import FATE, PeerFailed, figures_of
from parley.experiments.fate_quality import RELATIVE_TOLERANCE, beside, divided, federated, pooled, run, tasks

SCORES_BY_THE_FIRST_COLUMN = """
import json, sys
import numpy as np
task = np.load(sys.argv[sys.argv.index("--task") + 1])
print("a line of FATE's own")
figures = {"rounds_per_second": 0.5, "steps": json.loads(str(task["settings"]))["epochs"]}
print(json.dumps(figures | {"scores": (-task["features"][task["test"], 0]).tolist()}))
"""

LEAVES_A_PROCESS = """
import json, subprocess
left = subprocess.Popen(["sleep", "300"])
print(json.dumps({"rounds_per_second": 0.5, "left": left.pid}))
"""


@pytest.fixture
def fate(tmp_path, monkeypatch):
    """Puts a program in FATE's place."""

    def puts(program):
        python = tmp_path / "fate" / "bin" / "python"
        python.parent.mkdir(parents=True)
        (tmp_path / "program.py").write_text(program)
        python.write_text(f'#!/bin/sh\nexec {sys.executable} {tmp_path / "program.py"} "$@"\n')
        python.chmod(0o755)

    monkeypatch.setenv("PARLEY_PEERS", str(tmp_path))
    return puts


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


def test_cases_and_metrics_have_the_names_that_others_ask_for(fate, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("parley.experiments.fate_quality.cuts", list)
    found = {(row["case"], row["metric"]) for row in run(True, tmp_path)}
    assert {("breast lr", "AUC"), ("breast lr", "pooled AUC"), ("diabetes linr", "pooled RMSE")} <= found
    assert not any("FATE" in metric for _, metric in found)
    assert "fate is not in" in capsys.readouterr().out


def test_fates_scores_are_judged_on_the_held_out_rows_where_it_is_installed(fate, tmp_path, monkeypatch):
    monkeypatch.setattr("parley.experiments.fate_quality.cuts", list)
    fate(SCORES_BY_THE_FIRST_COLUMN)
    task, another, _ = tasks(True, tmp_path)
    monkeypatch.setattr("parley.experiments.fate_quality.tasks", lambda quick, data: [task, another])
    found = {(row["case"], row["metric"]): row["ours"] for row in run(True, tmp_path)}
    features, _, test = divided(task)
    expected, reference = roc_auc_score(task.target[test], -features[test, 0]), pooled(task)["AUC"]
    assert found["breast lr", "FATE's AUC"] == pytest.approx(expected)
    assert found["breast lr", "FATE's AUC, relative difference"] == pytest.approx((reference - expected) / reference)
    assert found["breast lr", "FATE's steps"] == 20
    assert ("diabetes linr", "FATE's RMSE") not in found


def test_a_fate_that_ends_without_scores_is_told(fate, tmp_path):
    fate("raise SystemExit('no scheduler')")
    with pytest.raises(PeerFailed, match="no scheduler"):
        beside(tasks(True, tmp_path)[0], {"AUC": 1.0, "KS": 1.0})


@pytest.mark.timeout(60)
def test_processes_that_fate_leaves_behind_are_not_waited_for_and_ended(fate):
    fate(LEAVES_A_PROCESS)
    status = Path(f"/proc/{figures_of('FATE', FATE, [])['left']}/status")
    while status.exists() and "State:\tZ" not in status.read_text():
        time.sleep(0.01)
