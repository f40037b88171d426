"""Only the gates make releases, and only releases are encoded."""

import ast
import inspect
from pathlib import Path

import pytest

import services.wire.alignment_codec
import services.wire.bambi_codec
import services.wire.decentralised_codec
import services.wire.fedbio_codec
import services.wire.recovery_codec
import services.wire.sum_codec
from privacy.release import Release

ROOT = Path(__file__).parents[2]
PRODUCT = [
    "services",
    "party",
    "coordinator",
    "privacy",
    "numerics",
    "parley",
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
        services.wire.alignment_codec.encode_blinded,
        services.wire.alignment_codec.encode_evaluated,
        services.wire.alignment_codec.encode_table,
        services.wire.alignment_codec.encode_matches,
        services.wire.alignment_codec.encode_sealed,
        services.wire.alignment_codec.encode_share,
        services.wire.bambi_codec.encode_instruction,
        services.wire.bambi_codec.encode_contribution,
        services.wire.fedbio_codec.encode_instruction,
        services.wire.fedbio_codec.encode_contribution,
        services.wire.decentralised_codec.encode_instruction,
        services.wire.decentralised_codec.encode_contribution,
        services.wire.decentralised_codec.encode_push_sum,
        services.wire.decentralised_codec.encode_noised_state,
        services.wire.recovery_codec.encode_step,
        services.wire.recovery_codec.encode_offer,
        services.wire.recovery_codec.encode_bundle,
        services.wire.recovery_codec.encode_settlement,
        services.wire.sum_codec.encode_addend,
        services.wire.sum_codec.encode_tree_sum,
    ],
)
def test_every_encoder_of_derived_data_takes_a_release(encoder):
    annotations = [str(parameter.annotation) for parameter in inspect.signature(encoder).parameters.values()]
    assert any("Release[" in annotation for annotation in annotations)
