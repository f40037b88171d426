"""One version, wherever it is written, and the Pythons that are promised."""

import runpy
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_project_chart_and_changelog_name_one_version():
    chart = yaml.safe_load((ROOT / "deploy" / "helm" / "parley" / "Chart.yaml").read_text())
    newest, _ = runpy.run_path(str(ROOT / "deploy" / "release.py"))["newest_section"](ROOT)
    assert {chart["version"], chart["appVersion"], newest} == {PROJECT["version"]}


def test_the_oldest_python_that_can_install_parley_is_the_oldest_that_it_is_tested_with():
    tested = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if "Python :: 3." in line]
    oldest = min(tested, key=lambda version: int(version.partition(".")[2]))
    assert PROJECT["requires-python"] == f">={oldest}"
