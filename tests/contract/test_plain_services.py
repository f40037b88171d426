"""The generic rooms know no algorithm by name, and everyone imports the product by one name."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

from parley.spec.algorithms import installed

ROOT = Path(__file__).parents[2]
ROOMS = ("services", "party", "coordinator", "protocols", "privacy", "numerics", "spec", "tables", "dashboard")
NAMES = re.compile("|".join(re.escape(name) for name in installed()), re.IGNORECASE)


def sources(*folders):
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *folders]
    found = subprocess.run(listed, capture_output=True, text=True, cwd=ROOT, check=False)
    if found.returncode:
        pytest.skip("this is no git checkout: which files belong to the repository is unknown")
    return [ROOT / name for name in found.stdout.splitlines() if (ROOT / name).is_file()]


def test_services_and_privacy_name_no_algorithm():
    assert len(installed()) >= 5
    named = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sources("services", "privacy")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if NAMES.search(line)
    ]
    assert named == []


def test_rooms_are_imported_as_parts_of_the_product():
    for path in sources("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for module in modules:
                assert module.split(".")[0] not in ROOMS, f"{path.relative_to(ROOT)} imports {module}"


def test_every_room_is_linked_into_the_package():
    for room in (*ROOMS, "experiments", "benchmarks", "protos"):
        assert (ROOT / "src" / "parley" / room).resolve() == ROOT / room
