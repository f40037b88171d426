"""Only the gates make releases, and only releases are encoded."""

import ast
import inspect
from pathlib import Path

import pytest

from parley.privacy.release import Release
from parley.services.wire import (
    alignment_codec,
    bambi_codec,
    decentralised_codec,
    fedbio_codec,
    recovery_codec,
    sum_codec,
)

ROOT = Path(__file__).parents[2]
PRODUCT = [
    "services",
    "party",
    "coordinator",
    "privacy",
    "numerics",
    "src/parley",
    "spec",
    "tables",
    "experiments",
    "benchmarks",
]


def _calls(name):
    for package in PRODUCT:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", None)) == name:
                    yield path.relative_to(ROOT)


def test_only_the_release_module_makes_a_release():
    makers = {path for path in _calls("Release") if "Release" in (ROOT / path).read_text()}
    assert makers == {Path("privacy/release.py")}


def test_nobody_reaches_for_the_seal():
    for package in PRODUCT:
        for path in (ROOT / package).rglob("*.py"):
            if path != ROOT / "privacy/release.py":
                names = {node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)}
                imported = {
                    a.name
                    for node in ast.walk(ast.parse(path.read_text()))
                    if isinstance(node, ast.ImportFrom)
                    for a in node.names
                }
                assert "_SEAL" not in names | imported, path


def test_a_release_cannot_be_made_by_hand():
    with pytest.raises(TypeError, match="only a gate"):
        Release({"theta": 1}, object())


@pytest.mark.parametrize(
    "encoder",
    [
        alignment_codec.encode_blinded,
        alignment_codec.encode_evaluated,
        alignment_codec.encode_table,
        alignment_codec.encode_matches,
        alignment_codec.encode_sealed,
        alignment_codec.encode_share,
        bambi_codec.encode_instruction,
        bambi_codec.encode_contribution,
        fedbio_codec.encode_instruction,
        fedbio_codec.encode_contribution,
        decentralised_codec.encode_instruction,
        decentralised_codec.encode_contribution,
        decentralised_codec.encode_push_sum,
        decentralised_codec.encode_noised_state,
        recovery_codec.encode_step,
        recovery_codec.encode_offer,
        recovery_codec.encode_bundle,
        recovery_codec.encode_settlement,
        sum_codec.encode_addend,
        sum_codec.encode_tree_sum,
    ],
)
def test_every_encoder_of_derived_data_takes_a_release(encoder):
    annotations = [str(parameter.annotation) for parameter in inspect.signature(encoder).parameters.values()]
    assert any("Release[" in annotation for annotation in annotations)
