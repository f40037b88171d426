"""Sign what was built: an image, by its digest, together with its bill of materials.

    python deploy/attest.py sign   --key key.pem --image sha256:… --sbom party.cdx.json > party.attestation.json
    python deploy/attest.py verify --certificate certificate.pem --image sha256:… --sbom … party.attestation.json

The key is that of an organisation's certificate or any other P-256 key; who verifies has its certificate or public key
from the organisation, not from where the image came from. Digests: `docker image inspect --format '{{.Id}}' IMAGE`
names an image that was built or loaded here, `{{index .RepoDigests 0}}` one in a registry.
"""

import argparse
import base64
import hashlib
import json
import re
import sys
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

_LABEL = b"parley/attestation/v1\n"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class AttestationInvalid(ValueError):
    """What was signed is not what is here, or was not signed by this key."""


def statement_of(image: str, sbom: Path) -> dict[str, str]:
    """What is signed: the digests of an image and of its bill of materials."""
    found = _DIGEST.search(image)
    if found is None or not image.endswith(found.group()):
        raise AttestationInvalid(f"{image!r} names no digest: give sha256: and 64 hexadecimal digits, tags can move")
    return {"image": found.group(), "sbom": f"sha256:{hashlib.sha256(sbom.read_bytes()).hexdigest()}"}


def sign(statement: dict[str, str], key_pem: bytes) -> dict[str, object]:
    """A statement under a P-256 key."""
    key = serialization.load_pem_private_key(key_pem, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise AttestationInvalid("the key must be P-256, as certificates of this federation have")
    signature = key.sign(_content(statement), ec.ECDSA(hashes.SHA256()))
    return {"statement": statement, "signature": base64.b64encode(signature).decode()}


def verify(attestation: dict[str, object], expected: dict[str, str], trusted_pem: bytes) -> None:
    """Refuse an attestation that this certificate or public key did not make, or of something else.

    Raises:
        AttestationInvalid: with what does not fit.
    """
    statement, signature = attestation.get("statement"), attestation.get("signature")
    if not isinstance(statement, dict) or not isinstance(signature, str):
        raise AttestationInvalid("this is no attestation: it has no statement and signature")
    key = _public_key(trusted_pem)
    try:
        key.verify(base64.b64decode(signature), _content(statement), ec.ECDSA(hashes.SHA256()))
    except (InvalidSignature, ValueError):
        raise AttestationInvalid("the signature is not one of this key: do not use the image") from None
    for what, digest in expected.items():
        if statement.get(what) != digest:
            raise AttestationInvalid(f"the {what} that was signed is {statement.get(what)}, here is {digest}")


def _public_key(pem: bytes) -> ec.EllipticCurvePublicKey:
    key = (
        x509.load_pem_x509_certificate(pem).public_key()
        if b"CERTIFICATE" in pem
        else serialization.load_pem_public_key(pem)
    )
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise AttestationInvalid("the certificate or public key must be P-256")
    return key


def _content(statement: dict[str, str]) -> bytes:
    return _LABEL + json.dumps(statement, sort_keys=True, separators=(",", ":")).encode()


def main(arguments: list[str] | None = None) -> int:
    """Sign or verify; 1 if it does not verify."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("sign", "verify"):
        command = commands.add_parser(name)
        command.add_argument("--image", required=True, help="the image's digest, sha256:…")
        command.add_argument("--sbom", required=True, type=Path)
        trusted = "--key" if name == "sign" else "--certificate"
        command.add_argument(trusted, dest="key", required=True, type=Path)
        if name == "verify":
            command.add_argument("attestation", type=Path)
    chosen = parser.parse_args(arguments)
    try:
        statement = statement_of(chosen.image, chosen.sbom)
        if chosen.command == "sign":
            sys.stdout.write(json.dumps(sign(statement, chosen.key.read_bytes()), indent=2) + "\n")
        else:
            verify(json.loads(chosen.attestation.read_text("utf-8")), statement, chosen.key.read_bytes())
            sys.stdout.write(f"signed by this key: {statement['image']}, with its bill of materials\n")
    except (AttestationInvalid, OSError, ValueError) as problem:
        sys.stderr.write(f"error: {problem}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
