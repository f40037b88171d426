"""tests/unit mirrors the tree: whoever changes a folder knows where its tests are."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src"
UNIT = ROOT / "tests" / "unit"
MODULES = sorted(UNIT.rglob("test_*.py"))
PROGRAMS = {"deploy", "docs"}
"""Folders whose files are run, not imported."""


def room_of(module):
    """The folder that a test module's own folder stands for; the public face has its package's name."""
    folder = module.parent.relative_to(UNIT)
    return Path("src") / folder if folder.parts[0] == "parley" else folder


def imports_of(module):
    """Dotted names of what a test module imports."""
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def homes_of(name):
    """The real folders of the module that a dotted name leads to; a package has its own and the one that holds it."""
    path = SOURCES
    for part in name.split("."):
        if (path / f"{part}.py").is_file():
            return {path.resolve()}
        if not (path / part).is_dir():
            break
        path = path / part
    return {path.resolve(), path.resolve().parent}


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
    homes = set().union(*(homes_of(name) for name in imports_of(module) if name.startswith("parley")))
    assert (ROOT / room).resolve() in homes, f"nothing of {room} is imported"
