"""deploy/attest.py: what was signed is what is here, and was signed by whom one trusts."""

import json
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

from parley.services.wire.certificates import create_authority, issue

ROOT = Path(__file__).parents[3]
tool = SimpleNamespace(**runpy.run_path(str(ROOT / "deploy" / "attest.py")))
IMAGE, OTHER = f"sha256:{'ab' * 32}", f"registry/party@sha256:{'cd' * 32}"


@pytest.fixture(scope="module")
def builder(tmp_path_factory):
    """An organisation that builds images: its certificate and key."""
    folder = tmp_path_factory.mktemp("builder")
    authority = create_authority(folder / "authority", "federation").parent
    return [issue(authority, name, "party", ["localhost"]) for name in ("bank", "eve")]


@pytest.fixture
def signed(builder, tmp_path, capsys):
    """The arguments of a verification that succeeds."""
    bank, _ = builder
    sbom, attestation = tmp_path / "party.cdx.json", tmp_path / "party.attestation.json"
    sbom.write_text('{"bomFormat": "CycloneDX"}')
    assert tool.main(["sign", "--key", str(bank / "key.pem"), "--image", IMAGE, "--sbom", str(sbom)]) == 0
    attestation.write_text(capsys.readouterr().out)
    return {"certificate": bank / "certificate.pem", "image": IMAGE, "sbom": sbom, "attestation": attestation}


def verified(signed, **changes) -> int:
    chosen = {name: str(value) for name, value in (signed | changes).items()}
    options = ["--certificate", chosen["certificate"], "--image", chosen["image"], "--sbom", chosen["sbom"]]
    return tool.main(["verify", *options, chosen["attestation"]])


def test_what_was_signed_verifies(signed, capsys):
    assert verified(signed) == 0
    assert IMAGE in capsys.readouterr().out


def test_another_image_does_not(signed, capsys):
    assert verified(signed, image=OTHER) == 1
    assert "the image that was signed is" in capsys.readouterr().err


def test_another_bill_of_materials_does_not(signed, capsys):
    signed["sbom"].write_text('{"bomFormat": "CycloneDX", "components": []}')
    assert verified(signed) == 1
    assert "the sbom that was signed is" in capsys.readouterr().err


def test_a_signature_of_somebody_else_does_not(signed, builder, capsys):
    assert verified(signed, certificate=builder[1] / "certificate.pem") == 1
    assert "not one of this key" in capsys.readouterr().err


def test_a_statement_that_was_changed_does_not(signed, capsys):
    content = json.loads(signed["attestation"].read_text())
    content["statement"]["image"] = OTHER.partition("@")[2]
    signed["attestation"].write_text(json.dumps(content))
    assert verified(signed, image=OTHER) == 1
    assert "not one of this key" in capsys.readouterr().err


@pytest.mark.parametrize("image", ["parley/party:0.2.0", "sha256:ab", f"sha256:{'ab' * 32}-debug"])
def test_a_tag_is_no_digest(signed, image, capsys):
    assert verified(signed, image=image) == 1
    assert "tags can move" in capsys.readouterr().err


def test_what_is_no_attestation_is_said_to_be_none(signed, capsys):
    signed["attestation"].write_text("{}")
    assert verified(signed) == 1
    assert "no attestation" in capsys.readouterr().err
