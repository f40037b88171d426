"""The threat model names what shows its claims: each test and each attack that it names is there."""

import ast
import re
from pathlib import Path

import pytest

from parley.attacks.suite import ATTACKS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "threat-model.md").read_text()
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", PAGE)))
CLAIMS = (
    "never one's own",
    "nobody saw another's columns",
    "no row, no label",
    "features are not determined by",
    "no row of a table leaves",
)
"""Sentences that are false under some setting, or that nothing shows."""


@pytest.mark.parametrize(("path", "name"), NAMED, ids=lambda value: value or "whole")
def test_a_test_that_the_threat_model_names_is_there(path, name):
    file = ROOT / path
    assert file.is_file(), f"{path} is named in docs/threat-model.md"
    tests = {
        node.name
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    tests = {each for each in tests if each.startswith("test_")}
    assert (name in tests) if name else tests


def test_the_threat_model_names_tests_for_each_role():
    assert len(NAMED) > 20
    for heading in ("## The coordinator", "## A party", "## A client", "## An outsider"):
        section = PAGE.split(heading)[1].split("\n## ")[0]
        assert "`tests/" in section, heading


def test_an_attack_that_the_threat_model_names_is_there():
    named = {name for names in re.findall(r"--only ([\w,-]+)", PAGE) for name in names.split(",")}
    assert named <= ATTACKS.keys()


def test_no_page_claims_what_the_threat_model_does_not():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.yaml")]
    pages += [*(ROOT / "dashboard").rglob("*.js"), ROOT / "privacy" / "manifest.py"]
    found = [
        f"{page.relative_to(ROOT)}: {claim}"
        for page in pages
        for claim in CLAIMS
        if claim in " ".join(page.read_text(encoding="utf-8").lower().split())
    ]
    assert found == []
