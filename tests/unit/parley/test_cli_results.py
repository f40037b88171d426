"""`parley reproduce` and `parley bench`: discovery, tables and files."""

import json
import os
import sys
from types import ModuleType
from typing import Any

import pytest
from typer.testing import CliRunner

from parley import benchmarking, modules, reproduction
from parley.cli import app
from parley.reproduction import EXPERIMENTS


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def experiment(monkeypatch):
    """An experiment that is there, and nothing else."""
    module: Any = ModuleType("parley.experiments.bambi_toy")
    module.asked = []

    def run(quick, data=None):
        module.asked.append(quick)
        return [
            {"case": "implicit", "metric": "cosine", "ours": 0.999, "paper": None, "seconds": 3},
            {"case": "implicit", "metric": "relative error", "ours": float("nan"), "paper": 0.5},
        ]

    module.run = run
    module.plot = lambda rows, path: path.write_bytes(b"picture of " + str(len(rows)).encode())
    monkeypatch.setitem(sys.modules, "parley.experiments.bambi_toy", module)
    monkeypatch.setattr(reproduction, "is_there", lambda package, name: name == "bambi-toy")
    return module


def test_only_experiments_whose_module_is_there_are_offered(experiment):
    result = invoke("reproduce")
    assert result.exit_code == 0
    assert "bambi-toy" in result.stdout
    assert "bambi-mnist" not in result.stdout


def test_every_offered_experiment_can_be_run_and_drawn():
    offered = reproduction.offered()
    assert set(offered) <= set(EXPERIMENTS)
    for name in offered:
        module = modules.load("experiments", name, offered)
        assert callable(module.run), name
        assert callable(module.plot), name


def test_reproduce_prints_a_table_and_writes_rows_and_a_picture(experiment, tmp_path):
    rows, picture = tmp_path / "out" / "rows.json", tmp_path / "out" / "rows.png"
    result = invoke("reproduce", "bambi-toy", "--quick", "--json", rows, "--plot", picture)
    assert result.exit_code == 0, result.output
    assert "relative error" in result.stdout
    assert experiment.asked == [True]
    written = json.loads(rows.read_text())
    assert {"load", "version", "commit"} <= written.keys()
    assert {key: written[key] for key in ("name", "quick", "seconds", "cores", "rows")} == {
        "name": "bambi-toy",
        "quick": True,
        "seconds": 0,
        "cores": os.cpu_count(),
        "rows": [
            {"case": "implicit", "metric": "cosine", "ours": 0.999, "paper": None},
            {"case": "implicit", "metric": "relative error", "ours": None, "paper": 0.5},
        ],
    }
    assert picture.read_bytes() == b"picture of 2"


def test_an_unknown_experiment_is_refused_with_the_names_that_there_are(experiment):
    result = invoke("reproduce", "bambi-moon")
    assert result.exit_code == 1
    assert result.stderr == "error: there is no 'bambi-moon' in experiments: choose one of bambi-toy\n"


def test_an_experiment_without_its_data_is_refused_in_one_line():
    result = invoke("reproduce", "fedbio-cleaning")
    assert result.exit_code == 1
    assert "--data" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_all_experiments_go_into_a_folder(experiment, tmp_path):
    assert invoke("reproduce", "all", "--out", tmp_path).exit_code == 0
    assert {path.name for path in tmp_path.iterdir()} == {"bambi-toy.json", "bambi-toy.png", "parts"}
    assert invoke("reproduce", "all", "--json", tmp_path / "one.json").exit_code == 2


def test_bench_writes_rows_with_value_unit_baseline_and_ratio(monkeypatch, tmp_path):
    module: Any = ModuleType("parley.benchmarks.wire")
    module.run = lambda: [
        {"case": "tcp", "metric": "throughput", "value": 2.0, "unit": "GB/s", "baseline": 4.0, "ratio": 0.5}
    ]
    module.plot = lambda rows, path: path.write_bytes(b"picture")
    monkeypatch.setitem(sys.modules, "parley.benchmarks.wire", module)
    monkeypatch.setattr(benchmarking, "names_in", lambda package: ["wire"])
    result = invoke("bench", "wire", "--json", tmp_path / "rows.json")
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "rows.json").read_text())["rows"] == module.run()


@pytest.fixture
def seeded(experiment):
    """The same experiment with a seed, which may be told to break at one."""
    experiment.seeds, experiment.breaks_at = [], None

    def run(quick, data=None, seed=0):
        if seed == experiment.breaks_at:
            raise KeyboardInterrupt
        experiment.seeds.append(seed)
        return [{"case": "implicit", "metric": "cosine", "ours": 0.5 + seed, "paper": 0.7}]

    experiment.run = run
    return experiment


def test_figures_of_several_seeds_are_means_with_their_deviation(seeded, tmp_path):
    result = invoke("reproduce", "bambi-toy", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    written = json.loads((tmp_path / "bambi-toy.json").read_text())
    assert written["rows"] == [{"case": "implicit", "metric": "cosine", "ours": 1.5, "paper": 0.7, "sd": 1.0}]
    assert written["seeds"] == [0, 1, 2]
    assert {"load", "commit", "version", "seconds", "cores"} <= written.keys()


def test_an_interrupted_reproduction_goes_on_where_it_stopped(seeded, tmp_path):
    seeded.breaks_at = 1
    assert invoke("reproduce", "all", "--out", tmp_path).exit_code != 0
    assert not (tmp_path / "bambi-toy.json").exists()
    seeded.breaks_at = None
    result = invoke("reproduce", "all", "--out", tmp_path, "--resume")
    assert result.exit_code == 0, result.output
    assert seeded.seeds == [0, 1, 2]
    assert "1 of 3 parts are there" in result.stdout
    assert "2 of 3: bambi-toy, seed 1, about 0:00:00 left" in result.stdout
    assert json.loads((tmp_path / "bambi-toy.json").read_text())["rows"][0]["ours"] == 1.5


def test_parts_of_the_quick_setting_are_not_mixed_with_full_ones(seeded, tmp_path):
    assert invoke("reproduce", "bambi-toy", "--quick", "--out", tmp_path).exit_code == 0
    result = invoke("reproduce", "bambi-toy", "--out", tmp_path, "--resume")
    assert result.exit_code == 1
    assert "quick setting: name another folder with --out" in result.stderr
    assert invoke("reproduce", "bambi-toy", "--resume").exit_code == 2
