"""The reference says what the code says."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def pages():
    loaded = importlib.util.spec_from_file_location("reference", ROOT / "docs" / "reference.py")
    module = importlib.util.module_from_spec(loaded)
    loaded.loader.exec_module(module)
    return module.pages()


@pytest.mark.parametrize("page", ["commands.md", "python.md", "specs.md", "configuration.md", "protos.md"])
def test_a_page_is_what_the_code_says_now(pages, page):
    written = (ROOT / "docs" / "reference" / page).read_text()
    assert written == pages[page], f"docs/reference/{page} has fallen behind: run `python docs/reference.py`"


def test_every_command_has_help_and_every_option_a_meaning(pages):
    rows = [line for line in pages["commands.md"].splitlines() if line.startswith("| `")]
    assert [row for row in rows if row.endswith("|  |") and "--help" not in row] == []


def test_every_field_of_a_configuration_has_a_meaning(pages):
    rows = [line for line in pages["configuration.md"].splitlines() if line.startswith("| `")]
    assert len(rows) > 80
    assert [row for row in rows if row.endswith("|  |")] == []
    assert any(row.startswith("| `tables.NAME.preprocess.categorical.max_categories` |") for row in rows)
    assert not any("<class" in row or "typing" in row for row in rows)
