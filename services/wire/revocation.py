"""Whether a certificate still stands: not expired, and not on the authority's list of revoked ones.

TLS checks a certificate once, when a connection is made. A list (`revoked.pem` in the identity's folder, a CRL that an
authority of `ca.pem` signed) may come later, and a connection may outlive a certificate; so every call is checked
again, and a stream is watched until it ends. The file is read again when it changes. One that cannot be used stops a
service that starts; a service that runs keeps the last good one and says so in its log.
"""

import asyncio
import logging
import os
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from parley.services.wire.certificate_files import (
    CertificateError,
    CertificateExpired,
    CertificateUnreadable,
    load_authority,
    load_certificate,
    load_certificates,
    read,
    write,
)

REVOKED = "revoked.pem"
LOOK_SECONDS = 2.0
"""How often the certificate behind an open stream is looked at."""
LIST_DAYS = 3650
logger = logging.getLogger(__name__)


class CertificateRevoked(CertificateError):
    """The authority has taken the certificate back."""


class Standing:
    """Says of certificates whether they stand, by the newest list in an identity's folder."""

    def __init__(self, folder: Path) -> None:
        """Raises CertificateError if there is a list that cannot be used."""
        self._folder, self._list = folder, str(folder / REVOKED)
        self._stamp = self._changed()
        self._revoked = read_list(folder)

    def require(self, certificate_pem: bytes, now: datetime | None = None, whose: str = "the caller") -> None:
        """Let a certificate pass that stands; `whose` says in a refusal whom it speaks for.

        Raises:
            CertificateExpired: if its last moment has passed.
            CertificateRevoked: if it is on the list.
        """
        try:
            certificate = _parsed(certificate_pem)
        except ValueError:
            raise CertificateUnreadable(f"{whose} sent no PEM certificate: use one that was issued") from None
        if (now or datetime.now(UTC)) > certificate.not_valid_after_utc:
            raise CertificateExpired(f"the certificate of {whose} has expired: have it signed again")
        self._read_again()
        if (certificate.issuer, certificate.serial_number) in self._revoked:
            raise CertificateRevoked(f"the certificate of {whose} was revoked: ask the authority for a new one")

    async def until_fallen(self, certificate_pem: bytes) -> None:
        """Return when a certificate stands no longer."""
        while True:
            try:
                self.require(certificate_pem)
            except CertificateError:
                return
            await asyncio.sleep(LOOK_SECONDS)

    def _read_again(self) -> None:
        stamp = self._changed()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._revoked = read_list(self._folder)
        except CertificateError as error:
            logger.error("the list of revoked certificates is not taken over, the one before is kept: %s", error)

    def _changed(self) -> int:
        try:
            return os.stat(self._list).st_mtime_ns  # with every call: a path object takes longer
        except FileNotFoundError:
            return 0


@lru_cache(maxsize=256)
def _parsed(certificate_pem: bytes) -> x509.Certificate:
    return x509.load_pem_x509_certificate(certificate_pem)


def read_list(folder: Path) -> frozenset[tuple[x509.Name, int]]:
    """Issuer and serial number of every certificate on the lists of an identity's folder; empty without a list.

    Raises:
        CertificateUnreadable: if it is no list, or none that an authority of `ca.pem` signed.
    """
    path = folder / REVOKED
    if not path.exists():
        return frozenset()
    keys = [ca.public_key() for ca in load_certificates(folder / "ca.pem")]
    found: set[tuple[x509.Name, int]] = set()
    for each in _lists(read(path), path):
        if not any(isinstance(key, ec.EllipticCurvePublicKey) and each.is_signature_valid(key) for key in keys):
            raise CertificateUnreadable(f"{path} holds a list that no authority in ca.pem signed: copy theirs.")
        if each.next_update_utc is not None and datetime.now(UTC) > each.next_update_utc:
            logger.warning("%s should have been renewed by %s", path, each.next_update_utc.date())
        found |= {(each.issuer, entry.serial_number) for entry in each}
    return frozenset(found)


def revoke(
    certificates: Iterable[Path],
    authority: Path,
    *,
    now: datetime | None = None,
    key_command: Sequence[str] | None = None,
) -> Path:
    """Put certificates on an authority's list, beside those that are on it; return the list's path.

    Raises:
        CertificateError: if one was not issued by this authority.
    """
    moment = now or datetime.now(UTC)
    ca, key = load_authority(authority, moment, key_command)
    path = authority / REVOKED
    known = {entry.serial_number: entry for each in _lists(read(path), path) for entry in each} if path.exists() else {}
    for file in certificates:
        certificate = load_certificate(file)
        if certificate.issuer != ca.subject:
            raise CertificateError(f"{file} was not issued by the authority in {authority}: name the one that did.")
        entry = x509.RevokedCertificateBuilder().serial_number(certificate.serial_number).revocation_date(moment)
        known.setdefault(certificate.serial_number, entry.build())
    builder = x509.CertificateRevocationListBuilder().issuer_name(ca.subject).last_update(moment)
    builder = builder.next_update(moment + timedelta(days=LIST_DAYS))
    for line in known.values():
        builder = builder.add_revoked_certificate(line)
    content = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    write(path, content, 0o644)
    return path


def _lists(content: bytes, path: Path) -> list[x509.CertificateRevocationList]:
    """Every list of a file: during a change of authority there may be one of each."""
    end = b"-----END X509 CRL-----"
    parts = [part + end for part in content.split(end)[:-1]]
    try:
        found = [x509.load_pem_x509_crl(part.lstrip()) for part in parts]
    except ValueError as error:
        raise CertificateUnreadable(f"{path} is no list of revoked certificates: copy the authority's.") from error
    if not found:
        raise CertificateUnreadable(f"{path} holds no list of revoked certificates: copy the authority's.")
    return found
