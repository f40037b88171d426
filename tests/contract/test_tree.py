"""tests/unit mirrors the tree: whoever changes a folder knows where its tests are."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "tests" / "unit"
MODULES = sorted(UNIT.rglob("test_*.py"))
PROGRAMS = {"deploy", "docs"}
"""Folders whose files are run, not imported."""


def room_of(module):
    """The folder that a test module's own folder stands for; the public face has its package's name."""
    folder = module.parent.relative_to(UNIT)
    return Path("src") / folder if folder.parts[0] == "parley" else folder


def imports_of(module):
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def called(module):
    return str(module.relative_to(UNIT))


def test_every_test_lies_in_a_folder():
    assert [module.name for module in MODULES if module.parent == UNIT] == []


@pytest.mark.parametrize("module", MODULES, ids=called)
def test_a_folder_of_tests_has_its_counterpart_in_the_tree(module):
    assert (ROOT / room_of(module)).is_dir(), f"there is no {room_of(module)}"


@pytest.mark.parametrize("module", MODULES, ids=called)
def test_a_test_reaches_for_what_lies_in_that_counterpart(module):
    room = room_of(module)
    if room.parts[0] in PROGRAMS:
        assert f'"{room.parts[0]}"' in module.read_text()
        return
    package = ".".join(room.parts).removeprefix("src.")
    package = package if package.startswith("parley") else f"parley.{package}"
    assert any(name == package or name.startswith(f"{package}.") for name in imports_of(module)), package
