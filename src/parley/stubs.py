"""Generate Python stubs from protos, for Parley's own build and for algorithms in distributions of their own.

protoc names Python modules after the proto path (`parley/run/v1/run.proto` becomes `parley.run.v1`), where the public
package lives. Parley's stubs have a package of their own, `parley.contracts`; generated imports are rewritten to it.
Nothing of Parley is imported here: the build runs this file before there is anything to import.
"""

import re
import shutil
import tempfile
from importlib import resources
from pathlib import Path

PROTOS = Path(__file__).parent / "protos"
"""Parley's own protos, which others may import."""
CONTRACTS = "parley.contracts"
_IMPORT = re.compile(r"^(from|import) parley\.", re.MULTILINE)
_QUALIFIED = re.compile(r"\bparley\.(?=\w+\.v1\b)")
_KINDS = ("python", "grpc_python", "mypy", "mypy_grpc")


def generate(protos: Path, folder: Path, *, within: str = "") -> None:
    """Write the stubs of every proto below `protos` to `folder`, unless they are newer already.

    `within` is the part of the proto path that `folder` stands for: `parley` for Parley's own, whose modules are then
    `folder/run/v1/run_pb2.py`. Protos may import Parley's.
    """
    sources = sorted(protos.rglob("*.proto"))
    if not sources:
        raise SystemExit(f"there is no proto below {protos}")
    newest = max(path.stat().st_mtime for path in [*sources, Path(__file__)])
    stamp = folder / "__init__.py"
    if stamp.exists() and stamp.stat().st_mtime >= newest:
        return
    with tempfile.TemporaryDirectory() as scratch:
        _run_protoc(protos, sources, scratch)
        shutil.rmtree(folder, ignore_errors=True)
        for path in sorted((Path(scratch) / within).rglob("*.py*")):
            target = folder / path.relative_to(Path(scratch) / within)
            target.parent.mkdir(parents=True, exist_ok=True)
            for package in [*target.relative_to(folder).parents][:-1]:
                (folder / package / "__init__.py").touch()
            target.write_text(_rewritten(path))
    folder.mkdir(parents=True, exist_ok=True)
    stamp.write_text('"""Stubs generated from protos; never edited by hand."""\n')


def _run_protoc(protos: Path, sources: list[Path], scratch: str) -> None:
    from grpc_tools import protoc

    # A folder can be reached by two names, through a link: protoc takes a file under the first that it is given.
    roots = dict.fromkeys([protos.resolve(), PROTOS.resolve()])
    includes = [f"-I{root}" for root in [*roots, resources.files("grpc_tools") / "_proto"]]
    outputs = [f"--{kind}_out={scratch}" for kind in _KINDS]
    if protoc.main(["protoc", *includes, *outputs, *(str(path.resolve()) for path in sources)]) != 0:
        raise SystemExit("protoc refused the protos; its message is above")


def _rewritten(path: Path) -> str:
    text = _IMPORT.sub(rf"\1 {CONTRACTS}.", path.read_text())
    return _QUALIFIED.sub(f"{CONTRACTS}.", text) if path.suffix == ".pyi" else text
