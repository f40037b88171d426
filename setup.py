"""Generate the protobuf stubs into `src/parley/contracts/`, find the algorithms in `protocols/`, then build."""

import runpy
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent

stubs = runpy.run_path(str(ROOT / "src" / "parley" / "stubs.py"))
stubs["generate"](ROOT / "protos", ROOT / "src" / "parley" / "contracts", within="parley")
folders = [
    path.parent.name for path in sorted((ROOT / "protocols").glob("*/__init__.py")) if "ALGORITHM" in path.read_text()
]
setup(
    entry_points={
        "console_scripts": ["parley = parley.cli:main"],
        # A folder that registers an algorithm is found: a new one needs no line elsewhere.
        "parley.algorithms": [f"{name} = parley.protocols.{name}:ALGORITHM" for name in folders],
    }
)
