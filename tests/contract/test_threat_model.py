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
    "never sees a row",
    "never: features",
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


ROLES = {"coordinator": "The coordinator", "party": "A party", "client": "A client", "authority": "The authority"}


def section(heading: str, page: str = PAGE, level: str = "##") -> str:
    return page.split(f"\n{level} {heading}\n")[1].split(f"\n{level} ")[0]


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("adversary", ["Curious", "Deviating"])
def test_each_role_has_what_it_learns_when_it_is_curious_and_when_it_deviates(role, adversary):
    assert "`tests/" in section(adversary, section(ROLES[role]), "###")


@pytest.mark.parametrize("role", ROLES)
def test_an_outsider_is_told_what_becomes_of_it_in_each_role(role):
    assert re.search(rf"^\| {role} \|.*`tests/", section("An outsider"), re.MULTILINE)


def test_each_line_names_what_shows_it_or_says_openly_that_nothing_protects():
    lines, shows = [], False
    for line in PAGE.splitlines():
        if not line.startswith("|"):
            shows = False
        elif line.endswith("| shown by |"):
            shows = True
        elif shows and not line.startswith("|---"):
            lines.append(line)
    assert len(lines) > 50
    silent = [line for line in lines if not re.search(r"`(tests/|parley attack)", line.split("|")[-2])]
    assert [line for line in silent if "**" not in line or line.split("|")[-2].strip() != "–"] == []


def test_each_of_the_thirteen_attacks_is_mounted_by_real_processes():
    lines = re.findall(r"^\| (\d+) \|.*\|(.*)\|$", section("Thirteen attacks, by real processes"), re.MULTILINE)
    assert [int(number) for number, _ in lines] == list(range(1, 14))
    for number, shown in lines:
        named = re.findall(r"`([\w/]+)\.py::\w+`", shown)
        assert named, f"attack {number} names no test"
        assert {Path(each).parent.name for each in named} == {"integration"}, f"attack {number}"


def test_an_attack_that_the_threat_model_names_is_there():
    named = {name for names in re.findall(r"--only ([\w,-]+)", PAGE) for name in names.split(",")}
    assert named <= ATTACKS.keys()


def test_no_page_claims_what_the_threat_model_does_not():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.yaml")]
    pages += [*(ROOT / "examples").rglob("*.md"), *(ROOT / "protocols").rglob("*.py"), ROOT / "src/parley/demo.py"]
    pages += [*(ROOT / "dashboard").rglob("*.js"), ROOT / "privacy" / "manifest.py"]
    found = [
        f"{page.relative_to(ROOT)}: {claim}"
        for page in pages
        for claim in CLAIMS
        if claim in " ".join(page.read_text(encoding="utf-8").lower().split())
    ]
    assert found == []
