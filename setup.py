"""Generate the protobuf stubs into `contracts/`, then build.

protoc names Python modules after the proto path (`parley/run/v1/run.proto`), which would land inside the
`parley` package. The stubs get a package of their own, so the generated imports are rewritten to it.
"""

import re
import shutil
import tempfile
from importlib import resources
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
PROTOS = ROOT / "protos"
STUBS = ROOT / "contracts"
IMPORT = re.compile(r"^(from|import) parley\.", re.MULTILINE)
QUALIFIED = re.compile(r"\bparley\.(?=\w+\.v1\b)")


def generate() -> None:
    sources = sorted(PROTOS.rglob("*.proto"))
    newest = max(path.stat().st_mtime for path in [*sources, Path(__file__)])
    stamp = STUBS / "__init__.py"
    if stamp.exists() and stamp.stat().st_mtime >= newest:
        return
    from grpc_tools import protoc

    with tempfile.TemporaryDirectory() as scratch:
        well_known = resources.files("grpc_tools") / "_proto"
        outputs = [f"--{kind}_out={scratch}" for kind in ("python", "grpc_python", "mypy", "mypy_grpc")]
        arguments = [f"-I{PROTOS}", f"-I{well_known}", *outputs, *map(str, sources)]
        if protoc.main(["protoc", *arguments]) != 0:
            raise SystemExit("protoc refused the protos; its message is above")
        shutil.rmtree(STUBS, ignore_errors=True)
        for path in sorted((Path(scratch) / "parley").rglob("*.py*")):
            target = STUBS / path.relative_to(Path(scratch) / "parley")
            target.parent.mkdir(parents=True, exist_ok=True)
            for package in [*target.relative_to(STUBS).parents][:-1]:
                (STUBS / package / "__init__.py").touch()
            text = IMPORT.sub(r"\1 contracts.", path.read_text())
            if path.suffix == ".pyi":
                text = QUALIFIED.sub("contracts.", text)
            target.write_text(text)
    stamp.write_text('"""Stubs generated from protos/ by setup.py; never edited by hand."""\n')


generate()
setup()
