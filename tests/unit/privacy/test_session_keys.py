"""Session keys are accepted from the certified owner, for this session, and from nobody else."""

import dataclasses
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from parley.privacy.session_keys import (
    CertificateNameMismatch,
    CertificateNotPinned,
    CertificateNotTrusted,
    KeyOfAnotherSession,
    KeyRejected,
    KeySignatureInvalid,
    KeyUnusable,
    SessionKey,
    check_pin,
    pair_secret,
    sign_key,
    verify_signed_key,
)

NOW = datetime.now(UTC)


class Authority:
    """A certificate authority for tests."""

    def __init__(self, name="test ca", signer=None, *, is_ca=True):
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        issuer, issuer_key = (signer.subject, signer.key) if signer else (self.subject, self.key)
        builder = self._builder(self.subject, issuer, self.key.public_key(), NOW - timedelta(days=1), 30)
        builder = builder.add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        self.pem = builder.sign(issuer_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    @staticmethod
    def _builder(subject, issuer, public_key, start, days):
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(start)
            .not_valid_after(start + timedelta(days=days))
        )

    def issue(self, common_name, *, dns=None, uri=None, start=NOW - timedelta(days=1), days=10, key=None):
        key = key or ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common_name)])
        builder = self._builder(subject, self.subject, key.public_key(), start, days)
        alternatives = [x509.DNSName(dns)] if dns else []
        alternatives += [x509.UniformResourceIdentifier(uri)] if uri else []
        if alternatives:
            builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        certificate = builder.sign(self.key, hashes.SHA256())
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return certificate.public_bytes(serialization.Encoding.PEM), private


@pytest.fixture(scope="module")
def ca():
    return Authority()


def signed_by(certificate, private, name="north", **changes):
    session = {"name": name, "run_id": "run-1", "attempt": 1, **changes}
    return sign_key(SessionKey.generate(), certificate_pem=certificate, certificate_key_pem=private, **session)


def accept(signed, ca, name="north", run_id="run-1", attempt=1, **more):
    verify_signed_key(signed, ca.pem, name, run_id, attempt, **more)


def test_a_key_signed_by_its_owner_is_accepted_by_common_name(ca):
    accept(signed_by(*ca.issue("north")), ca)


def test_a_key_signed_by_its_owner_is_accepted_by_dns_name(ca):
    accept(signed_by(*ca.issue("somebody", dns="north")), ca)


def test_a_key_signed_by_its_owner_is_accepted_by_its_identity(ca):
    accept(signed_by(*ca.issue("north", uri="parley://party/north", dns="localhost")), ca)


@pytest.mark.parametrize("uri", ["parley://coordinator/north", "parley://client/north", "parley://party/south"])
def test_an_identity_in_the_certificate_overrules_common_name_and_hosts(ca, uri):
    with pytest.raises(CertificateNameMismatch):
        accept(signed_by(*ca.issue("north", uri=uri, dns="north")), ca)


def test_an_intermediate_authority_may_stand_between(ca):
    intermediate = Authority("intermediate", signer=ca)
    certificate, private = intermediate.issue("north")
    accept(signed_by(certificate + intermediate.pem, private), ca)


def test_a_certificate_cannot_issue_certificates_unless_it_is_an_authority(ca):
    impostor = Authority("party", signer=ca, is_ca=False)
    certificate, private = impostor.issue("north")
    with pytest.raises(CertificateNotTrusted):
        accept(signed_by(certificate + impostor.pem, private), ca)


def test_a_certificate_of_another_authority_is_refused(ca):
    with pytest.raises(CertificateNotTrusted):
        accept(signed_by(*Authority().issue("north")), ca)


def test_a_self_signed_certificate_is_refused(ca):
    alone = Authority("north")
    private = alone.key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with pytest.raises(CertificateNotTrusted):
        accept(signed_by(alone.pem, private), ca)


@pytest.mark.parametrize("start", [NOW - timedelta(days=20), NOW + timedelta(days=1)], ids=["expired", "not yet"])
def test_a_certificate_outside_its_dates_is_refused(ca, start):
    with pytest.raises(CertificateNotTrusted):
        accept(signed_by(*ca.issue("north", start=start)), ca)


def test_the_time_of_the_check_is_an_argument(ca):
    signed = signed_by(*ca.issue("north", days=5))
    accept(signed, ca, now=NOW + timedelta(days=3))
    with pytest.raises(CertificateNotTrusted):
        accept(signed, ca, now=NOW + timedelta(days=8))


def test_another_partys_valid_certificate_is_refused(ca):
    with pytest.raises(CertificateNameMismatch, match="'north'"):
        accept(signed_by(*ca.issue("south")), ca)


@pytest.mark.parametrize("expected", [{"name": "south"}, {"run_id": "run-2"}, {"attempt": 2}, {"round_id": 7}], ids=str)
def test_a_key_of_another_session_is_refused(ca, expected):
    with pytest.raises(KeyOfAnotherSession):
        accept(signed_by(*ca.issue("north", dns="south")), ca, **expected)


@pytest.mark.parametrize(
    "claim", [{"run_id": "run-2"}, {"attempt": 2}, {"round_id": 7}, {"public_key": bytes(range(32))}], ids=str
)
def test_changing_any_signed_field_breaks_the_signature(ca, claim):
    forged = dataclasses.replace(signed_by(*ca.issue("north")), **claim)
    session = {k: v for k, v in claim.items() if k != "public_key"}
    with pytest.raises(KeySignatureInvalid):
        accept(forged, ca, **session)


def test_a_coordinator_cannot_put_its_own_key_in_place(ca):
    certificate, _ = ca.issue("north")
    _, coordinators_private = ca.issue("coordinator")
    with pytest.raises(KeySignatureInvalid):
        accept(signed_by(certificate, coordinators_private), ca)


def test_a_certificate_key_that_is_not_p256_is_refused(ca):
    certificate, private = ca.issue("north", key=ed25519.Ed25519PrivateKey.generate())
    with pytest.raises(CertificateNotTrusted, match="P-256"):
        signed_by(certificate, private)


def test_a_private_key_is_not_printed():
    key = SessionKey.generate()
    assert key.private_bytes.hex() not in repr(key)
    assert repr(key.private_bytes) not in repr(key)


SESSION = {"run_id": "run-1", "attempt": 1, "purpose": "mask"}


def secret_between(a, b, **changes):
    return pair_secret(a, "north", "south", b.public_bytes, **{**SESSION, **changes})


def test_both_ends_derive_the_same_secret():
    a, b = SessionKey.generate(), SessionKey.generate()
    assert secret_between(a, b) == pair_secret(b, "south", "north", a.public_bytes, **SESSION)


@pytest.mark.parametrize("change", [{"run_id": "run-2"}, {"attempt": 2}, {"purpose": "shares"}], ids=str)
def test_run_attempt_and_purpose_separate_secrets(change):
    a, b = SessionKey.generate(), SessionKey.generate()
    assert secret_between(a, b) != secret_between(a, b, **change)


def test_names_are_bound_to_their_keys():
    a, b = SessionKey.generate(), SessionKey.generate()
    swapped = pair_secret(a, "south", "north", b.public_bytes, **SESSION)
    assert secret_between(a, b) != swapped


@pytest.mark.parametrize("public", [bytes(32), b"short"], ids=["small order", "short"])
def test_a_useless_public_key_is_refused(public):
    with pytest.raises(KeyUnusable, match="'south'"):
        pair_secret(SessionKey.generate(), "north", "south", public, **SESSION)


def test_a_party_shares_no_secret_with_itself():
    key = SessionKey.generate()
    with pytest.raises(KeyRejected):
        pair_secret(key, "north", "north", key.public_bytes, **SESSION)


def test_a_signature_covers_what_the_owner_agreed_to(ca):
    signed = signed_by(*ca.issue("north"), agreement=b"the spec")
    accept(signed, ca)
    for other in (b"", b"another spec"):
        with pytest.raises(KeySignatureInvalid):
            accept(dataclasses.replace(signed, agreement=other), ca)


def test_ends_that_were_told_different_things_share_no_secret():
    a, b = SessionKey.generate(), SessionKey.generate()
    assert secret_between(a, b, consent=b"x") != secret_between(a, b, consent=b"y")
    assert secret_between(a, b, consent=b"x") == pair_secret(
        b, "south", "north", a.public_bytes, **SESSION, consent=b"x"
    )


def test_a_pinned_party_shows_that_certificate_and_no_other(ca):
    pem, _ = ca.issue("north")
    pin = x509.load_pem_x509_certificate(pem).fingerprint(hashes.SHA256()).hex()
    check_pin({"north": pin}, "north", pem)
    check_pin({"north": pin}, "south", ca.issue("south")[0])
    with pytest.raises(CertificateNotPinned, match=pin[:16]):
        check_pin({"north": pin}, "north", ca.issue("north")[0])
