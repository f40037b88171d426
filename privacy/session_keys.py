"""X25519 keys for one run, signed with the key of the party's certificate.

A coordinator that hands out keys could put its own in their place, so a party takes a peer's key only with that peer's
signature under a certificate that the federation's CA issued to the expected name. The signature covers the name, the
run, the attempt, what the party agreed to (`privacy.consent`) and, for a key that lives one round, the round: a key
from elsewhere cannot be replayed.
Certificates are P-256 (gRPC's TLS refuses Ed25519), signatures ECDSA with SHA-256.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.x509 import verification

_SIGNING_LABEL = b"parley/session-key/v2"
_SECRET_LABEL = b"parley/pair-secret/v2"
_IDENTITY_SCHEME = "parley://"
_PARTY_PREFIX = "parley://party/"


class KeyRejected(ValueError):
    """A peer's key cannot be used; the reason is the subclass."""


class KeySignatureInvalid(KeyRejected):
    """The signature does not fit the key, the name, the run, the attempt and the round."""


class CertificateNotTrusted(KeyRejected):
    """No chain of valid certificates leads from the federation's CA to the signer."""


class CertificateNameMismatch(KeyRejected):
    """The certificate belongs to somebody else."""


class KeyOfAnotherSession(KeyRejected):
    """The key was made for another party, run, attempt or round."""


class CertificateNotPinned(KeyRejected):
    """The party shows another certificate than the one that this party's policy names for it."""


class KeyUnusable(KeyRejected):
    """The bytes are no X25519 public key that a secret can be agreed with."""


@dataclass(frozen=True)
class SessionKey:
    """A party's X25519 key pair. The private half never leaves the process, save as Shamir shares of a round key."""

    private_bytes: bytes = field(repr=False)
    """32 bytes."""

    @classmethod
    def generate(cls) -> "SessionKey":
        """A fresh pair from the operating system's randomness."""
        return cls(X25519PrivateKey.generate().private_bytes_raw())

    @property
    def public_bytes(self) -> bytes:
        """The public half, 32 bytes."""
        return X25519PrivateKey.from_private_bytes(self.private_bytes).public_key().public_bytes_raw()


@dataclass(frozen=True)
class SignedKey:
    """A public key that a party vouches for."""

    name: str
    """The party, as its certificate spells it."""
    run_id: str
    attempt: int
    """Attempt of the run: a restarted run has new keys, so that its round ids may start again."""
    public_key: bytes
    """X25519, 32 bytes."""
    certificate_pem: bytes
    """The signer's certificate, then any intermediate ones."""
    signature: bytes
    """ECDSA over all the fields but the certificate."""
    round_id: int | None = None
    """Set for a key that lives one round (dropout recovery)."""
    agreement: bytes = b""
    """What the party agreed to with this key; empty where a key stands for nothing more than itself."""


def sign_key(
    key: SessionKey,
    *,
    name: str,
    run_id: str,
    attempt: int,
    certificate_pem: bytes,
    certificate_key_pem: bytes,
    round_id: int | None = None,
    agreement: bytes = b"",
) -> SignedKey:
    """Vouch for `key`, and for what goes with it, with the private key of this party's certificate."""
    signer = serialization.load_pem_private_key(certificate_key_pem, password=None)
    if not isinstance(signer, ec.EllipticCurvePrivateKey) or not isinstance(signer.curve, ec.SECP256R1):
        raise CertificateNotTrusted("the certificate's key must be P-256: make the certificate with `openssl ecparam`")
    public_key = key.public_bytes
    message = _signed_fields(name, run_id, attempt, round_id, public_key, agreement)
    signature = signer.sign(message, ec.ECDSA(hashes.SHA256()))
    return SignedKey(name, run_id, attempt, public_key, certificate_pem, signature, round_id, agreement)


def verify_signed_key(
    signed: SignedKey,
    ca_pem: bytes,
    expected_name: str,
    run_id: str,
    attempt: int,
    *,
    round_id: int | None = None,
    now: datetime | None = None,
) -> None:
    """Refuse the key unless `expected_name`, certified by one of the CAs in `ca_pem`, signed it for this session."""
    claimed = (signed.name, signed.run_id, signed.attempt, signed.round_id)
    wanted = (expected_name, run_id, attempt, round_id)
    if claimed != wanted:
        raise KeyOfAnotherSession(f"the key is for (party, run, attempt, round) {claimed}, expected {wanted}")
    certificate = _trusted_certificate(signed.certificate_pem, ca_pem, now or datetime.now(UTC))
    if expected_name not in party_names(certificate):
        raise CertificateNameMismatch(
            f"the certificate names the parties {sorted(party_names(certificate))}, expected {expected_name!r}: "
            "check the party's certificate and the roster"
        )
    public_key = certificate.public_key()
    if not isinstance(public_key, ec.EllipticCurvePublicKey) or not isinstance(public_key.curve, ec.SECP256R1):
        raise CertificateNotTrusted(f"the certificate of {expected_name!r} has no P-256 key")
    message = _signed_fields(expected_name, run_id, attempt, round_id, signed.public_key, signed.agreement)
    try:
        public_key.verify(signed.signature, message, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        raise KeySignatureInvalid(
            f"the session key of {expected_name!r} was not signed by its certificate's key: "
            "somebody on the way may have replaced it"
        ) from None


def party_names(certificate: x509.Certificate) -> frozenset[str]:
    """The party names that a certificate vouches for.

    A certificate with parley:// URIs says who it is there, role included, and nowhere else: a coordinator or a client
    whose host or common name is a party's name is not that party. Without such a URI (another CA's certificate) the
    common name and the DNS names count.
    """
    common = {str(a.value) for a in certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)}
    try:
        alternative = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return frozenset(common)
    uris = [
        u for u in alternative.get_values_for_type(x509.UniformResourceIdentifier) if u.startswith(_IDENTITY_SCHEME)
    ]
    if uris:
        return frozenset(u.removeprefix(_PARTY_PREFIX) for u in uris if u.startswith(_PARTY_PREFIX))
    return frozenset(common.union(alternative.get_values_for_type(x509.DNSName)))


def check_pin(pins: Mapping[str, str], name: str, certificate_pem: bytes) -> None:
    """Refuse a party whose certificate is not the pinned one; a party without a pin passes.

    `pins` are SHA-256 fingerprints of certificates (DER), in hex.
    """
    if name not in pins:
        return
    found = x509.load_pem_x509_certificates(certificate_pem)[0].fingerprint(hashes.SHA256()).hex()
    if found != pins[name]:
        raise CertificateNotPinned(
            f"{name} shows the certificate {found[:16]}…, this party's policy pins {pins[name][:16]}…: if it was "
            "renewed, ask its owner for the new fingerprint and change policy.peers"
        )


def pair_secret(
    own: SessionKey,
    own_name: str,
    peer_name: str,
    peer_public_key: bytes,
    *,
    run_id: str,
    attempt: int,
    purpose: str,
    consent: bytes = b"",
) -> bytes:
    """32 bytes that both ends derive and nobody else: HKDF-SHA256(X25519), bound to run, attempt, names and keys.

    `consent` is what the parties of the session agreed to (`privacy.consent`): ends that were told different things
    derive different secrets.
    `purpose` separates uses: "mask", "shares", or one per requester where several sums run at once.
    """
    if own_name == peer_name:
        raise KeyRejected(f"{own_name!r} cannot share a secret with itself: party names must differ")
    try:
        shared = X25519PrivateKey.from_private_bytes(own.private_bytes).exchange(
            X25519PublicKey.from_public_bytes(peer_public_key)
        )
    except ValueError as problem:  # wrong length, or a point of small order
        raise KeyUnusable(f"no secret can be agreed with the key of {peer_name!r}: {problem}") from None
    ends = sorted([(own_name.encode(), own.public_bytes), (peer_name.encode(), peer_public_key)])
    info = joined(_SECRET_LABEL, run_id.encode(), b"%d" % attempt, purpose.encode(), consent, *ends[0], *ends[1])
    return HKDF(hashes.SHA256(), length=32, salt=None, info=info).derive(shared)


def _trusted_certificate(pem: bytes, ca_pem: bytes, now: datetime) -> x509.Certificate:
    """The first certificate of `pem`, once a chain from `ca_pem` to it holds at `now`."""
    try:
        certificate, *intermediates = x509.load_pem_x509_certificates(pem)
        store = verification.Store(x509.load_pem_x509_certificates(ca_pem))
    except ValueError as problem:
        raise CertificateNotTrusted(f"not a PEM certificate: {problem}") from None
    # The web's rules for extensions (SAN, key usages) are not asked for: a small private CA often leaves them out.
    # What makes an issuer an issuer is: BasicConstraints with ca=True.
    issuer = verification.ExtensionPolicy.permit_all().require_present(
        x509.BasicConstraints, verification.Criticality.AGNOSTIC, _require_ca
    )
    policy = verification.PolicyBuilder().store(store).time(now.astimezone(UTC).replace(tzinfo=None))
    verifier = policy.extension_policies(
        ca_policy=issuer, ee_policy=verification.ExtensionPolicy.permit_all()
    ).build_client_verifier()
    try:
        verifier.verify(certificate, intermediates)
    except verification.VerificationError as problem:
        raise CertificateNotTrusted(
            f"the certificate of {certificate.subject.rfc4514_string()} is not trusted: {problem}; "
            "is it expired, or from another CA?"
        ) from None
    return certificate


def _require_ca(
    _policy: verification.Policy, _certificate: x509.Certificate, constraints: x509.BasicConstraints
) -> None:
    if not constraints.ca:
        raise ValueError("the issuer is no certificate authority")


def _signed_fields(
    name: str, run_id: str, attempt: int, round_id: int | None, public_key: bytes, agreement: bytes
) -> bytes:
    lifetime = b"session" if round_id is None else b"round %d" % round_id
    return joined(_SIGNING_LABEL, name.encode(), run_id.encode(), b"%d" % attempt, lifetime, public_key, agreement)


def joined(*fields: bytes) -> bytes:
    """Fields with their lengths, so that no two lists of fields give the same bytes."""
    return b"".join(len(part).to_bytes(4, "big") + part for part in fields)
