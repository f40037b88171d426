"""Certificate and key files: loading them with checks, and writing them whole and with the right mode."""

import os
import tempfile
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from parley.services.wire.key_commands import printed_by


class CertificateError(ValueError):
    """A certificate, key or request cannot be made or used."""


class CertificateExists(CertificateError):
    """A file would be overwritten."""


class CertificateUnreadable(CertificateError):
    """A file is missing or does not hold what it should."""


class CertificateExpired(CertificateError):
    """A certificate is past its last day."""


class CertificateNotYetValid(CertificateError):
    """A certificate's first moment lies ahead: a clock is wrong."""


class AuthorityRefused(CertificateError):
    """What was given as an authority may not sign certificates."""


class RequestRefused(CertificateError):
    """A name, role, host or signing request is not one that gets a certificate."""


class KeyMismatch(CertificateError):
    """A private key and a certificate, or a certificate and its authority, do not belong together."""


class PeerRefused(CertificateError):
    """A certificate does not carry exactly one identity."""


def load_authority(
    folder: Path, now: datetime, key_command: Sequence[str] | None = None
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Load an authority that may sign now, with its key: the file's, or the one that a command prints as PEM."""
    certificate = load_certificate(folder / "ca.pem")
    refuse_non_authority(certificate, folder / "ca.pem")
    refuse_outside_validity(certificate, folder / "ca.pem", now)
    key = load_key(folder / "ca.key") if key_command is None else parse_key(printed_by(key_command), "key_command")
    if key.public_key() != certificate.public_key():
        raise KeyMismatch(f"{folder / 'ca.key'} is not the key of {folder / 'ca.pem'}: restore the pair.")
    return certificate, key


def refuse_non_authority(certificate: x509.Certificate, path: Path) -> None:
    """Refuse a certificate that may not sign others."""
    try:
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
        usage = certificate.extensions.get_extension_for_class(x509.KeyUsage).value
    except x509.ExtensionNotFound:
        allowed = False
    else:
        allowed = constraints.ca and usage.key_cert_sign
    if not allowed:
        raise AuthorityRefused(f"{path} may not sign certificates: use one that `parley certs authority` made.")


def refuse_outside_validity(certificate: x509.Certificate, path: Path, now: datetime) -> None:
    """Refuse a certificate whose time has passed or not come."""
    if now > certificate.not_valid_after_utc:
        raise CertificateExpired(
            f"{path} expired on {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC: have it signed again."
        )
    if now < certificate.not_valid_before_utc:
        raise CertificateNotYetValid(
            f"{path} is valid from {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC: set this host's clock."
        )


def load_certificate(path: Path) -> x509.Certificate:
    """Load one PEM certificate."""
    content = read(path)
    try:
        return x509.load_pem_x509_certificate(content)
    except ValueError as error:
        raise CertificateUnreadable(f"{path} is not a PEM certificate: have it signed again.") from error


def load_certificates(path: Path) -> list[x509.Certificate]:
    """Load every PEM certificate of a file: while an authority is changed, there are two."""
    content = read(path)
    try:
        return x509.load_pem_x509_certificates(content)
    except ValueError as error:
        raise CertificateUnreadable(f"{path} is not a PEM certificate: have it signed again.") from error


def load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Load an unencrypted P-256 key."""
    return parse_key(read(path), str(path))


def parse_key(content: bytes, path: str) -> ec.EllipticCurvePrivateKey:
    """Read an unencrypted P-256 key; `path` says where it comes from."""
    try:
        key = serialization.load_pem_private_key(content, password=None)
    except (ValueError, TypeError) as error:
        raise CertificateUnreadable(f"{path} is not an unencrypted PEM key: make a new request.") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CertificateUnreadable(f"{path} holds another kind of key than P-256: make a new request.")
    return key


def read(path: Path) -> bytes:
    """Read a file."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise CertificateUnreadable(f"{path} cannot be read ({error.strerror}): check path and permissions.") from error


def refuse_overwriting(paths: Sequence[Path], force: bool) -> None:
    """Refuse to replace files unless forced."""
    present = [str(path) for path in paths if path.exists()]
    if present and not force:
        raise CertificateExists(f"{', '.join(present)} would be overwritten: choose another folder, or force it.")


def write(path: Path, content: bytes, mode: int) -> None:
    """Write whole or not at all; a key is never readable by others, not even for a moment."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # 0600 from the start
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fchmod(file.fileno(), mode)
        os.fsync(file.fileno())
    Path(partial).replace(path)


def pem(certificate: x509.Certificate) -> bytes:
    """Encode a certificate."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Encode a private key, unencrypted."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
