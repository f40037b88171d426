"""Who is who: a P-256 certificate authority and the identities that it issues.

An identity is a role and a name, written into the certificate as the URI `parley://<role>/<name>` (and, for people who
read certificates, as OU and CN). For TLS it is also written as a host name, `tls_name(role, name)`: a caller that
expects that name reaches this identity or nobody, wherever it dials. Ordinary host names and addresses may stand
beside it, for browsers and other tools; they cannot take the form of a `tls_name`.

A private key never leaves the host that made it: `request` makes a key and a signing request there, and `sign` answers
the request at the authority. `issue` does both at once, for a federation on one machine.

Folders: an authority has `ca.pem` and `ca.key`; an identity has `certificate.pem`, `key.pem` and `ca.pem`. While an
authority is changed for another, `ca.pem` holds both, one after the other, and certificates of either are taken.
`revoked.pem`, where there is one, lists certificates that were taken back (services/wire/revocation.py).
"""

import hashlib
import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from parley.services.wire.certificate_files import (
    AuthorityRefused,
    CertificateError,
    CertificateExists,
    CertificateExpired,
    CertificateNotYetValid,
    CertificateUnreadable,
    KeyMismatch,
    PeerRefused,
    RequestRefused,
    key_pem,
    load_authority,
    load_certificate,
    load_certificates,
    load_key,
    pem,
    read,
    refuse_non_authority,
    refuse_outside_validity,
    refuse_overwriting,
    write,
)

__all__ = [
    "AuthorityRefused",
    "CertificateError",
    "CertificateExists",
    "CertificateExpired",
    "CertificateNotYetValid",
    "CertificateUnreadable",
    "Identity",
    "KeyMismatch",
    "Peer",
    "PeerRefused",
    "RequestRefused",
    "Role",
    "create_authority",
    "issue",
    "load_identity",
    "peer_identity",
    "request",
    "sign",
    "tls_name",
]

Role = Literal["coordinator", "party", "client", "relay"]
ROLES: tuple[Role, ...] = get_args(Role)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")  # as in run specs
_HOST = re.compile(r"(?:\*\.)?[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,251}[A-Za-z0-9])?")
_URI = re.compile(rf"parley://({'|'.join(ROLES)})/({_NAME.pattern})")
_RESERVED = "parley.internal"
_CLOCK_SKEW = timedelta(minutes=5)


class Peer(NamedTuple):
    """Who a certificate speaks for."""

    role: Role
    name: str


@dataclass(frozen=True)
class Identity:
    """What a process needs to prove who it is, as PEM bytes, ready for gRPC credentials."""

    certificate_chain: bytes
    private_key: bytes
    ca: bytes
    """The authority that peers are checked against."""
    peer: Peer
    """Role and name, as others will see them."""
    expires: datetime
    """End of the certificate or of its authority, whichever is earlier."""

    def __repr__(self) -> str:  # keeps the key out of logs
        return f"Identity({self.peer.role}/{self.peer.name}, expires {self.expires:%Y-%m-%d})"


def tls_name(role: str, name: str) -> str:
    """Return the host name that stands for an identity in TLS.

    Host names ignore case and limit characters, names do not: a digest (160 bits) keeps two identities apart.
    """
    return f"{hashlib.sha256(f'{role}/{name}'.encode()).hexdigest()[:40]}.{role}.{_RESERVED}"


def create_authority(
    folder: Path | str, name: str, days: int = 3650, *, force: bool = False, now: datetime | None = None
) -> Path:
    """Make a certificate authority; returns its certificate's path. Whoever has `ca.key` can issue any identity."""
    folder, moment = Path(folder), now or datetime.now(UTC)
    _refuse_name(name)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    certificate = (
        _builder(subject, subject, key.public_key(), moment, moment + _days(days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    refuse_overwriting([folder / "ca.pem", folder / "ca.key"], force)
    write(folder / "ca.key", key_pem(key), 0o600)
    write(folder / "ca.pem", pem(certificate), 0o644)
    return folder / "ca.pem"


def request(name: str, role: str, hosts: Sequence[str], out: Path | str, *, force: bool = False) -> Path:
    """Make a key and a signing request in `out`, on the host that will use them; return the request's path."""
    out = Path(out)
    paths = [out / "key.pem", out / "request.pem"]
    refuse_overwriting(paths, force)
    key = ec.generate_private_key(ec.SECP256R1())
    csr = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(_subject(name, role))
        .add_extension(_alternative_names(name, role, hosts), critical=False)
        .sign(key, hashes.SHA256())
    )
    write(paths[0], key_pem(key), 0o600)
    write(paths[1], csr.public_bytes(serialization.Encoding.PEM), 0o644)
    return paths[1]


def sign(
    csr: Path | str,
    ca_dir: Path | str,
    days: int = 365,
    *,
    name: str | None = None,
    role: str | None = None,
    out: Path | str | None = None,
    force: bool = False,
    now: datetime | None = None,
    key_command: Sequence[str] | None = None,
) -> Path:
    """Answer a signing request with `certificate.pem` and `ca.pem`, beside the request or in `out`.

    The request says who it wants to be, so whoever signs must know: pass the `name` and `role` that were agreed, and
    another one is refused. Nothing but key, identity and hosts is taken over from the request.
    """
    csr, ca_dir, moment = Path(csr), Path(ca_dir), now or datetime.now(UTC)
    asked = _load_request(csr)
    names = _request_names(asked, csr)
    peer = _identity_in(names, asked.subject, RequestRefused, str(csr))
    if (name or peer.name, role or peer.role) != (peer.name, peer.role):
        raise RequestRefused(
            f"{csr} asks to be {peer.role} {peer.name!r}, not {role or peer.role} {name or peer.name!r}: "
            "do not sign it unless the other side confirms."
        )
    ca, ca_key = load_authority(ca_dir, moment, key_command)
    expires = moment + _days(days)
    if expires > ca.not_valid_after_utc:
        raise AuthorityRefused(
            f"The authority in {ca_dir} ends on {ca.not_valid_after_utc:%Y-%m-%d}, before the {days} days asked for: "
            "ask for fewer days or create a new authority."
        )
    certificate = (
        _builder(_subject(peer.name, peer.role), ca.subject, _public_key(asked, csr), moment, expires)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        .add_extension(_alternative_names(peer.name, peer.role, _hosts(names, peer)), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(asked.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    folder = csr.parent if out is None else Path(out)
    refuse_overwriting([folder / "certificate.pem", folder / "ca.pem"], force)
    write(folder / "ca.pem", pem(ca), 0o644)
    write(folder / "certificate.pem", pem(certificate), 0o644)
    return folder / "certificate.pem"


def issue(
    ca_dir: Path | str,
    name: str,
    role: str,
    hosts: Sequence[str],
    days: int = 365,
    *,
    out: Path | str | None = None,
    force: bool = False,
    now: datetime | None = None,
    key_command: Sequence[str] | None = None,
) -> Path:
    """Make a key and its certificate in one place, `out` or a folder `name` beside the authority's; return it."""
    _refuse_name(name)
    folder = Path(ca_dir).parent / name if out is None else Path(out)
    # before a key is written that nothing will certify
    load_authority(Path(ca_dir), now or datetime.now(UTC), key_command)
    refuse_overwriting([folder / "certificate.pem", folder / "ca.pem"], force)
    csr = request(name, role, hosts, folder, force=force)
    sign(csr, ca_dir, days, name=name, role=role, force=force, now=now, key_command=key_command)
    csr.unlink()
    return folder


def load_identity(folder: Path | str, *, now: datetime | None = None) -> Identity:
    """Load and check an identity: parts that belong together, an issuer that may issue, and dates that hold."""
    folder, moment = Path(folder), now or datetime.now(UTC)
    certificate, authorities = load_certificate(folder / "certificate.pem"), load_certificates(folder / "ca.pem")
    key = load_key(folder / "key.pem")
    if key.public_key() != certificate.public_key():
        raise KeyMismatch(
            f"The key in {folder} is not the key of its certificate: sign the request that was made with that key."
        )
    for authority in authorities:
        refuse_non_authority(authority, folder / "ca.pem")
    ca = next((each for each in authorities if _has_issued(each, certificate)), None)
    if ca is None:
        raise KeyMismatch(
            f"The certificate in {folder} was not issued by the authority beside it: "
            "copy the `ca.pem` of the authority that signed it."
        )
    refuse_outside_validity(certificate, folder / "certificate.pem", moment)
    refuse_outside_validity(ca, folder / "ca.pem", moment)
    return Identity(
        certificate_chain=pem(certificate),
        private_key=key_pem(key),
        ca=b"".join(pem(each) for each in authorities if moment <= each.not_valid_after_utc),
        peer=peer_identity(pem(certificate)),
        expires=min(certificate.not_valid_after_utc, ca.not_valid_after_utc),
    )


def _has_issued(authority: x509.Certificate, certificate: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def peer_identity(certificate_pem: bytes) -> Peer:
    """Return the role and name in a peer's certificate, as the TLS layer hands it over after checking it."""
    try:
        certificates = x509.load_pem_x509_certificates(certificate_pem)
    except ValueError as error:
        raise PeerRefused("The peer's certificate cannot be read: use one that `parley certs` made.") from error
    if len(certificates) != 1:
        raise PeerRefused(f"The peer sent {len(certificates)} certificates: send exactly one.")
    certificate = certificates[0]
    try:
        extensions = certificate.extensions
        if extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
            raise PeerRefused("The peer speaks with an authority's certificate: issue it one of its own.")
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, x509.DuplicateExtension, ValueError) as error:
        if isinstance(error, PeerRefused):
            raise
        raise PeerRefused(f"The peer's certificate carries no identity ({error}): use one that we issued.") from error
    return _identity_in(names, certificate.subject, PeerRefused, "The peer's certificate")


def _identity_in(
    names: x509.SubjectAlternativeName, subject: x509.Name, refusal: type[CertificateError], source: str
) -> Peer:
    """Read the one parley URI; everything that says who this is must say the same."""
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    found = _URI.fullmatch(uris[0]) if len(uris) == 1 else None
    if found is None:
        raise refusal(f"{source} must carry exactly one URI parley://<role>/<name>, not {uris!r}: issue it again.")
    role: Role = next(known for known in ROLES if known == found[1])
    if subject != _subject(found[2], role):
        raise refusal(f"{source} says {uris[0]} but its subject says {subject.rfc4514_string()!r}: issue it again.")
    return Peer(role, found[2])


def _subject(name: str, role: str) -> x509.Name:
    _refuse_name(name)
    if role not in ROLES:
        raise RequestRefused(f"Unknown role {role!r}: use one of {', '.join(ROLES)}.")
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, role),
            x509.NameAttribute(NameOID.COMMON_NAME, name),
        ]
    )


def _refuse_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise RequestRefused(f"{name!r} cannot be a name: use up to 63 letters, digits, dots, dashes or underscores.")


def _alternative_names(name: str, role: str, hosts: Sequence[str]) -> x509.SubjectAlternativeName:
    uri = x509.UniformResourceIdentifier(f"parley://{role}/{name}")
    return x509.SubjectAlternativeName([uri, x509.DNSName(tls_name(role, name)), *map(_host, hosts)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        if not _HOST.fullmatch(host):
            raise RequestRefused(f"{host!r} is neither a host name nor an address: give it without a port.") from None
        if host.lower().endswith(_RESERVED):
            raise RequestRefused(f"{host!r} would speak for an identity: leave out hosts under {_RESERVED}.") from None
        return x509.DNSName(host)


def _hosts(names: x509.SubjectAlternativeName, peer: Peer) -> list[str]:
    """Return the hosts that a request asks for, beside the peer's own TLS name."""
    addresses = [str(address) for address in names.get_values_for_type(x509.IPAddress)]
    own = tls_name(peer.role, peer.name)
    return [*(host for host in names.get_values_for_type(x509.DNSName) if host != own), *addresses]


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, start: datetime, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start - _CLOCK_SKEW)  # the other side's clock may run behind
        .not_valid_after(end)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _days(days: int) -> timedelta:
    if not 1 <= days <= 36_500:
        raise RequestRefused(f"A certificate cannot last {days} days: ask for 1 to 36500.")
    return timedelta(days=days)


def _load_request(path: Path) -> x509.CertificateSigningRequest:
    content = read(path)
    try:
        csr = x509.load_pem_x509_csr(content)
    except ValueError as error:
        raise CertificateUnreadable(f"{path} is not a PEM signing request: make one with `request`.") from error
    if not csr.is_signature_valid:
        raise RequestRefused(f"{path} is not signed by its own key: make the request again.")
    return csr


def _request_names(csr: x509.CertificateSigningRequest, path: Path) -> x509.SubjectAlternativeName:
    try:
        return csr.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, x509.DuplicateExtension, ValueError) as error:
        raise RequestRefused(f"{path} asks for no identity: make the request again.") from error


def _public_key(csr: x509.CertificateSigningRequest, path: Path) -> ec.EllipticCurvePublicKey:
    key = csr.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise RequestRefused(f"{path} has another kind of key than P-256: make the request with `request`.")
    return key
