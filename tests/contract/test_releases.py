"""Only the gates make releases, and only releases are encoded. Encoders are found, not listed."""

import ast
import importlib
import inspect
import pkgutil
from pathlib import Path

import pytest
from google.protobuf.message import Message

from parley import protocols
from parley.privacy.manifest import NONE_NEEDED
from parley.privacy.release import Release
from parley.protocols.manifest import whole_manifest

ROOT = Path(__file__).parents[2]
PRODUCT = [
    "services",
    "party",
    "coordinator",
    "protocols",
    "privacy",
    "numerics",
    "src/parley",
    "spec",
    "tables",
    "experiments",
    "benchmarks",
]
CODECS = sorted(
    [
        *(ROOT / "protocols").glob("*/codec.py"),
        ROOT / "services" / "wire" / "alignment_codec.py",
        ROOT / "services" / "wire" / "coefficient_codec.py",
    ]
)
DERIVED = {entry.field for entry in whole_manifest() if entry.protection != NONE_NEEDED}


def trees(skip=()):
    for package in PRODUCT:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = path.relative_to(ROOT)
            if "contracts" not in name.parts and name not in skip:
                yield name, ast.parse(path.read_text())


def called(tree):
    """Names of what a piece of code calls."""
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return {getattr(function, "id", getattr(function, "attr", None)) for function in calls}


def encoders():
    """Every public function of a codec that makes a message of the protos."""
    for path in CODECS:
        module = importlib.import_module("parley." + ".".join(path.relative_to(ROOT).with_suffix("").parts))
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if function.__module__ == module.__name__ and name.startswith("encode") and name != "encode_tensor":
                yield pytest.param(function, id=f"{path.parent.name}.{name}")


def made_by(function):
    """The message types that an encoder returns, or fills for its caller."""
    hints = inspect.get_annotations(function, eval_str=True)
    pending, found = list(hints.values()), set()
    while pending:
        hint = pending.pop()
        pending += getattr(hint, "__args__", ())
        if isinstance(hint, type) and issubclass(hint, Message) and hint is not Message:
            found.add(hint)
    return found


def derived_fields(descriptor, seen=frozenset()):
    """Fields of a message, and of those that it holds, that are computed from somebody's records."""
    for field in descriptor.fields:
        if field.full_name in DERIVED:
            yield field.full_name
        if field.message_type is not None and field.message_type.full_name not in seen:
            yield from derived_fields(field.message_type, seen | {descriptor.full_name})


def test_only_the_release_module_makes_a_release():
    makers = {path for path, tree in trees() if "Release" in called(tree) and "privacy.release" in ast.unparse(tree)}
    assert makers - {Path("privacy/release.py")} == set()


def test_nobody_reaches_for_the_seal():
    for path, tree in trees(skip={Path("privacy/release.py")}):
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        imports = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
        assert "_SEAL" not in names | {alias.name for node in imports for alias in node.names}, path


def test_a_release_cannot_be_made_by_hand():
    with pytest.raises(TypeError, match="only a gate"):
        Release({"theta": 1}, object())


def test_only_requested_sums_make_an_opened_sum():
    makers = {path for path, tree in trees() if "OpenedSum" in called(tree)}
    assert makers == {Path("privacy/requested_sums.py")}


def test_the_codecs_of_every_algorithm_are_looked_at():
    packages = {module.name for module in pkgutil.iter_modules(protocols.__path__) if module.ispkg}
    assert packages == {path.parent.name for path in CODECS} - {"wire"}


@pytest.mark.parametrize("encoder", encoders())
def test_every_encoder_of_derived_data_takes_a_release(encoder):
    messages = made_by(encoder)
    makes = str(inspect.get_annotations(encoder)["return"])
    assert messages or makes.endswith("ValueType"), "an encoder says in its annotations what it makes"
    derived = [field for message in messages for field in derived_fields(message.DESCRIPTOR)]
    hints = {name: str(hint) for name, hint in inspect.get_annotations(encoder).items() if name != "return"}
    assert not derived or any("Release[" in hint for hint in hints.values()), derived


@pytest.mark.parametrize("path", CODECS, ids=lambda path: path.parent.name)
def test_no_array_is_encoded_but_out_of_a_release(path):
    """Whoever calls `encode_tensor` has a release, or is called only by who has one."""
    functions = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
    sealed = {function.name for function in functions if "Release[" in ast.unparse(function.args)} | {"encode_tensor"}
    callers = {
        function.name: {other.name for other in functions if function.name in called(other)} for function in functions
    }
    for function in functions:
        if "encode_tensor" in called(function) and function.name not in sealed:
            assert function.name.startswith("_"), function.name
            assert callers[function.name], function.name
            assert callers[function.name] <= sealed, function.name


def test_only_codecs_and_services_touch_generated_stubs():
    allowed = ("services", "src", "experiments", "benchmarks")
    for path, tree in trees():
        imports = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        if any(module.startswith("parley.contracts") for module in imports):
            assert path.parts[0] in allowed or (path.parts[0], path.name) == ("protocols", "codec.py"), path
