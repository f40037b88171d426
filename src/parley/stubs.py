"""Generate Python stubs from protos, for Parley's own build and for algorithms in distributions of their own.

protoc names Python modules after the proto path (`parley/run/v1/run.proto` becomes `parley.run.v1`), where the public
package lives. Stubs therefore have a package of their own, such as `parley.contracts`; generated imports are rewritten
to it. Nothing of Parley is imported here: the build runs this file before there is anything to import.
"""

import re
import shutil
import tempfile
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

PROTOS = Path(__file__).parent / "protos"
"""Parley's own protos, which others may import."""
CONTRACTS = "parley.contracts"
_KINDS = ("python", "grpc_python")
_TYPED_KINDS = ("mypy", "mypy_grpc")


def generate(protos: Path, folder: Path, *, within: str) -> None:
    """Write the stubs of every proto below `protos` to `folder`, unless they are newer already.

    `within` is the first part of the proto path, and the package that `folder` is in: with `acme`, the stubs of
    `protos/acme/ridge/v1/ridge.proto` are `acme.contracts.ridge.v1.ridge_pb2` in the folder `acme/contracts`. Protos
    may import Parley's. Types (`.pyi`) are written where mypy-protobuf is installed.
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
        packages = {"parley": CONTRACTS, within: f"{within}.{folder.name}"}
        shutil.rmtree(folder, ignore_errors=True)
        for path in sorted((Path(scratch) / within).rglob("*.py*")):
            target = folder / path.relative_to(Path(scratch) / within)
            target.parent.mkdir(parents=True, exist_ok=True)
            for package in [*target.relative_to(folder).parents][:-1]:
                (folder / package / "__init__.py").touch()
            target.write_text(_rewritten(path, packages))
    folder.mkdir(parents=True, exist_ok=True)
    stamp.write_text('"""Stubs generated from protos; never edited by hand."""\n')


def _run_protoc(protos: Path, sources: list[Path], scratch: str) -> None:
    from grpc_tools import protoc

    # A folder can be reached by two names, through a link: protoc takes a file under the first that it is given.
    roots = dict.fromkeys([protos.resolve(), PROTOS.resolve()])
    includes = [f"-I{root}" for root in [*roots, resources.files("grpc_tools") / "_proto"]]
    outputs = [f"--{kind}_out={scratch}" for kind in (*_KINDS, *filter(_has_plugin, _TYPED_KINDS))]
    if protoc.main(["protoc", *includes, *outputs, *(str(path.resolve()) for path in sources)]) != 0:
        raise SystemExit("protoc refused the protos; its message is above")


def _has_plugin(kind: str) -> bool:
    return shutil.which(f"protoc-gen-{kind}") is not None


def _rewritten(path: Path, packages: Mapping[str, str]) -> str:
    """A generated file with every import of a proto package as one of its stubs."""
    text = path.read_text()
    for protos, stubs in packages.items():
        text = re.sub(rf"^(from|import) {protos}\.", rf"\1 {stubs}.", text, flags=re.MULTILINE)
        if path.suffix == ".pyi":
            text = re.sub(rf"\b{protos}\.(?=(?:\w+\.)*v\d+\b)(?!{stubs.rpartition('.')[2]}\.)", f"{stubs}.", text)
    return text
