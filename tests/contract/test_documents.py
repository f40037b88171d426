"""Documents and comments name files that are there."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = "services|party|coordinator|protocols|privacy|numerics|spec|tables|dashboard|experiments|benchmarks|deploy|docs"
NAMED = re.compile(rf"(?<![\w./-])((?:{ROOMS})/[a-z_][a-z0-9_/-]*\.(?:py|md|yaml|proto))(?![\w/])")


def test_a_file_that_is_named_in_a_document_or_a_comment_is_there():
    listed = subprocess.run(["git", "ls-files", "*.md", "*.py", "*.proto"], capture_output=True, text=True, cwd=ROOT)
    if listed.returncode:
        pytest.skip("this is no git checkout: which files belong to the repository is unknown")
    missing = {
        f"{name}: {found}"
        for name in listed.stdout.splitlines()
        if (ROOT / name).is_file() and not name.startswith(("docs/decisions/", "CHANGELOG"))
        for found in NAMED.findall((ROOT / name).read_text())
        if not (ROOT / found).exists() and not (ROOT / name).parent.joinpath(found).exists()
    }
    assert missing == set()
