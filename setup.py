"""Generate the protobuf stubs into `src/parley/contracts/`, then build."""

import runpy
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent

stubs = runpy.run_path(str(ROOT / "src" / "parley" / "stubs.py"))
stubs["generate"](ROOT / "protos", ROOT / "src" / "parley" / "contracts", within="parley")
setup()
