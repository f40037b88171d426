"""Generate the stubs of the protos, then build."""

from pathlib import Path

from setuptools import setup

from parley.stubs import generate

ROOT = Path(__file__).parent

generate(ROOT / "protos", ROOT / "src" / "federated_ridge" / "contracts", within="federated_ridge")
setup()
