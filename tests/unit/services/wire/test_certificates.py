import shutil
import stat
from concurrent import futures
from datetime import UTC, datetime, timedelta

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from parley.services.wire.certificates import (
    AuthorityRefused,
    CertificateExists,
    CertificateExpired,
    CertificateNotYetValid,
    CertificateUnreadable,
    KeyMismatch,
    PeerRefused,
    RequestRefused,
    create_authority,
    issue,
    load_identity,
    peer_identity,
    request,
    sign,
    tls_name,
)


def now():
    return datetime.now(UTC)


@pytest.fixture
def ca(tmp_path):
    return create_authority(tmp_path / "ca", "Federation", 30).parent


def forged(*, names=(), subject=(("party", "a"),), authority=False, constraints=True):
    """A certificate with any names, signed by its own key: peer_identity reads what TLS has checked."""
    key = ec.generate_private_key(ec.SECP256R1())
    attributes = [
        attribute
        for role, name in subject
        for attribute in (
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, role),
            x509.NameAttribute(NameOID.COMMON_NAME, name),
        )
    ]
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name(attributes))
        .issuer_name(x509.Name(attributes))
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now())
        .not_valid_after(now() + timedelta(days=1))
    )
    if constraints:
        builder = builder.add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(list(names)), critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def uri(text):
    return x509.UniformResourceIdentifier(text)


def test_an_issued_identity_says_who_it_is(ca):
    identity = load_identity(issue(ca, "clinic", "party", ["localhost", "127.0.0.1"], 10))
    assert identity.peer == ("party", "clinic")
    assert peer_identity(identity.certificate_chain) == ("party", "clinic")
    assert abs(identity.expires - now() - timedelta(days=10)) < timedelta(minutes=1)


def test_a_certificate_serves_both_ends_of_tls_and_signs_nothing(ca):
    folder = issue(ca, "clinic", "party", ["clinic.example", "10.0.0.7", "::1"], 10)
    certificate = x509.load_pem_x509_certificate((folder / "certificate.pem").read_bytes())
    extensions = certificate.extensions
    assert set(extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == {
        ExtendedKeyUsageOID.SERVER_AUTH,
        ExtendedKeyUsageOID.CLIENT_AUTH,
    }
    assert not extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [tls_name("party", "clinic"), "clinic.example"]
    assert [str(a) for a in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.7", "::1"]
    assert isinstance(certificate.public_key().curve, ec.SECP256R1)


def test_private_keys_are_readable_by_their_owner_alone(ca):
    folder = issue(ca, "clinic", "party", [], 10)
    for key in (ca / "ca.key", folder / "key.pem"):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert "PRIVATE" not in repr(load_identity(folder))


def test_nothing_is_overwritten_without_force(ca):
    folder = issue(ca, "clinic", "party", [], 10)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(CertificateExists, match=r"key\.pem|certificate\.pem"):
        issue(ca, "clinic", "party", [], 10)
    with pytest.raises(CertificateExists, match=r"ca\.key"):
        create_authority(ca, "Federation")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    issue(ca, "clinic", "party", [], 10, force=True)
    assert (folder / "key.pem").read_bytes() != before["key.pem"]
    assert load_identity(folder).peer.name == "clinic"


def test_a_request_is_signed_elsewhere_without_its_key(ca, tmp_path):
    csr = request("bank", "party", ["bank.example"], tmp_path / "bank")
    posted = shutil.copy(csr, tmp_path / "posted.pem")
    sign(posted, ca, 10, name="bank", role="party", out=tmp_path / "answer")
    assert sorted(path.name for path in (tmp_path / "answer").iterdir()) == ["ca.pem", "certificate.pem"]
    for path in (tmp_path / "answer").iterdir():
        shutil.copy(path, tmp_path / "bank")
    assert load_identity(tmp_path / "bank").peer == ("party", "bank")


def test_a_request_for_another_name_or_role_than_agreed_is_refused(ca, tmp_path):
    csr = request("bank", "coordinator", [], tmp_path / "bank")
    with pytest.raises(RequestRefused, match="asks to be coordinator 'bank', not party"):
        sign(csr, ca, 10, role="party")
    with pytest.raises(RequestRefused, match="'clinic'"):
        sign(csr, ca, 10, name="clinic")
    assert not (tmp_path / "bank" / "certificate.pem").exists()


def written_request(path, key, names, extra=()):
    builder = x509.CertificateSigningRequestBuilder().subject_name(
        x509.Name(
            [
                x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, "party"),
                x509.NameAttribute(NameOID.COMMON_NAME, "bank"),
            ]
        )
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(list(names)), critical=False)
    for extension in extra:
        builder = builder.add_extension(extension, critical=True)
    path.write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    return path


def test_a_request_to_become_an_authority_yields_an_ordinary_certificate(ca, tmp_path):
    key = ec.generate_private_key(ec.SECP256R1())
    greedy = x509.BasicConstraints(ca=True, path_length=None)
    csr = written_request(tmp_path / "r.pem", key, [uri("parley://party/bank")], [greedy])
    certificate = x509.load_pem_x509_certificate(sign(csr, ca, 10, out=tmp_path / "out").read_bytes())
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


@pytest.mark.parametrize(
    "names",
    [
        (),
        (x509.DNSName("bank"),),
        (uri("parley://party/bank"), uri("parley://coordinator/bank")),
        (uri("parley://party/other"),),
        (uri("parley://party/bank"), x509.DNSName(tls_name("coordinator", "hub"))),
    ],
)
def test_a_request_without_exactly_one_consistent_identity_is_refused(ca, tmp_path, names):
    csr = written_request(tmp_path / "r.pem", ec.generate_private_key(ec.SECP256R1()), names)
    with pytest.raises(RequestRefused):
        sign(csr, ca, 10)


def test_a_request_with_another_kind_of_key_is_refused(ca, tmp_path):
    for key in (rsa.generate_private_key(65537, 2048), ec.generate_private_key(ec.SECP384R1())):
        csr = written_request(tmp_path / "r.pem", key, [uri("parley://party/bank")])
        with pytest.raises(RequestRefused, match="P-256"):
            sign(csr, ca, 10)


@pytest.mark.parametrize(
    ("name", "role", "hosts", "days"),
    [
        ("", "party", [], 1),
        ("a/b", "party", [], 1),
        ("../a", "party", [], 1),
        ("a" * 64, "party", [], 1),
        ("a", "admin", [], 1),
        ("a", "party", ["host:50051"], 1),
        ("a", "party", ["bad host"], 1),
        ("a", "party", [tls_name("coordinator", "hub")], 1),
        ("a", "party", ["*.coordinator.Parley.internal"], 1),
        ("a", "party", [], 0),
    ],
)
def test_an_impossible_name_role_host_or_term_is_refused(ca, name, role, hosts, days):
    with pytest.raises(RequestRefused):
        issue(ca, name, role, hosts, days)


def test_a_certificate_that_may_not_sign_is_refused_as_authority(ca, tmp_path):
    folder = issue(ca, "clinic", "party", [], 10)
    shutil.copy(folder / "certificate.pem", folder / "ca.pem")
    shutil.copy(folder / "key.pem", folder / "ca.key")
    with pytest.raises(AuthorityRefused, match="may not sign"):
        issue(folder, "rogue", "coordinator", [], 5)
    with pytest.raises(AuthorityRefused, match="may not sign"):
        load_identity(folder)


def test_a_certificate_cannot_outlive_its_authority(ca):
    with pytest.raises(AuthorityRefused, match="fewer days"):
        issue(ca, "clinic", "party", [], 31)


def test_an_authority_with_another_key_is_refused(ca, tmp_path):
    create_authority(tmp_path / "other", "Other")
    shutil.copy(tmp_path / "other" / "ca.key", ca / "ca.key")
    with pytest.raises(KeyMismatch, match=r"ca\.key"):
        issue(ca, "clinic", "party", [], 10)


def test_an_expired_certificate_says_when_and_what_to_do(ca):
    folder = issue(ca, "clinic", "party", [], 10)
    with pytest.raises(CertificateExpired, match=r"certificate\.pem expired on .* signed again"):
        load_identity(folder, now=now() + timedelta(days=11))
    with pytest.raises(CertificateExpired, match=r"ca\.pem"):
        issue(ca, "late", "party", [], 1, now=now() + timedelta(days=40))


def test_a_clock_that_runs_behind_is_named(ca):
    folder = issue(ca, "clinic", "party", [], 10)
    load_identity(folder, now=now() - timedelta(minutes=4))
    with pytest.raises(CertificateNotYetValid, match="clock"):
        load_identity(folder, now=now() - timedelta(hours=1))


def test_parts_that_do_not_belong_together_are_refused(ca, tmp_path):
    clinic, bank = issue(ca, "clinic", "party", [], 10), issue(ca, "bank", "party", [], 10)
    other = create_authority(tmp_path / "other" / "ca", "Federation")
    shutil.copy(other, clinic / "ca.pem")
    with pytest.raises(KeyMismatch, match="not issued by the authority"):
        load_identity(clinic)
    shutil.copy(clinic / "key.pem", bank / "key.pem")
    with pytest.raises(KeyMismatch, match="not the key of its certificate"):
        load_identity(bank)


@pytest.mark.parametrize("file", ["certificate.pem", "key.pem", "ca.pem"])
def test_a_missing_or_garbled_file_is_named(ca, file):
    folder = issue(ca, "clinic", "party", [], 10)
    (folder / file).write_bytes(b"garbage")
    with pytest.raises(CertificateUnreadable, match=file):
        load_identity(folder)
    (folder / file).unlink()
    with pytest.raises(CertificateUnreadable, match="cannot be read"):
        load_identity(folder)


@pytest.mark.parametrize(
    "certificate",
    [
        b"",
        b"garbage",
        forged(),
        forged(names=[x509.DNSName("a")]),
        forged(names=[uri("parley://party/a"), uri("parley://party/a")]),
        forged(names=[uri("parley://party/a"), uri("https://example.org")]),
        forged(names=[uri("parley://admin/a")]),
        forged(names=[uri("parley://party/a/b")]),
        forged(names=[uri("parley://party/")]),
        forged(names=[uri("PARLEY://party/a")]),
        forged(names=[uri("parley://party/a%62")]),
        forged(names=[uri("parley://party/a\n")]),
        forged(names=[uri("parley://coordinator/a")]),
        forged(names=[uri("parley://party/b")]),
        forged(names=[uri("parley://party/a")], subject=(("party", "a"), ("coordinator", "a"))),
        forged(names=[uri("parley://party/a")], subject=()),
        forged(names=[uri("parley://party/a")], authority=True),
        forged(names=[uri("parley://party/a")], constraints=False),
        forged(names=[uri("parley://party/a")]) * 2,
    ],
)
def test_a_peer_without_exactly_one_identity_is_refused(certificate):
    with pytest.raises(PeerRefused):
        peer_identity(certificate)


def test_a_peer_with_exactly_one_identity_is_known():
    assert peer_identity(forged(names=[uri("parley://party/a"), x509.DNSName("a.example")])) == ("party", "a")


class WhoAmI(grpc.GenericRpcHandler):
    """Answers each call with the caller's identity, read as a service reads it."""

    def service(self, details):
        def answer(_, context):
            role, name = peer_identity(context.auth_context()["x509_pem_cert"][0])
            return f"{role}/{name}".encode()

        return grpc.unary_unary_rpc_method_handler(answer)


@pytest.fixture
def port(ca):
    identity = load_identity(issue(ca, "hub", "coordinator", ["localhost"], 10))
    server = grpc.server(futures.ThreadPoolExecutor(2), handlers=[WhoAmI()])
    credentials = grpc.ssl_server_credentials(
        [(identity.private_key, identity.certificate_chain)], identity.ca, require_client_auth=True
    )
    port = server.add_secure_port("localhost:0", credentials)
    server.start()
    yield port
    server.stop(None).wait()


def ask(port, *, trusted, identity=None, host="localhost", expected=None):
    credentials = grpc.ssl_channel_credentials(
        trusted, identity and identity.private_key, identity and identity.certificate_chain
    )
    options = [("grpc.ssl_target_name_override", expected)] if expected else []
    with grpc.secure_channel(f"{host}:{port}", credentials, options) as channel:
        return channel.unary_unary("/any/WhoAmI")(b"", timeout=5).decode()


def test_a_server_reads_the_callers_identity_from_a_real_handshake(ca, port):
    identity = load_identity(issue(ca, "clinic", "party", [], 10))
    assert ask(port, trusted=identity.ca, identity=identity) == "party/clinic"


def test_a_caller_without_a_certificate_gets_no_answer(ca, port):
    with pytest.raises(grpc.RpcError) as refusal:
        ask(port, trusted=(ca / "ca.pem").read_bytes())
    assert refusal.value.code() is grpc.StatusCode.UNAVAILABLE


def test_a_caller_from_another_authority_gets_no_answer(ca, port, tmp_path):
    other = create_authority(tmp_path / "other" / "ca", "Federation").parent
    identity = load_identity(issue(other, "clinic", "party", [], 10))
    with pytest.raises(grpc.RpcError) as refusal:
        ask(port, trusted=(ca / "ca.pem").read_bytes(), identity=identity)
    assert refusal.value.code() is grpc.StatusCode.UNAVAILABLE


def test_a_server_under_another_host_name_is_not_trusted(ca, port):
    identity = load_identity(issue(ca, "clinic", "party", [], 10))
    with pytest.raises(grpc.RpcError) as refusal:
        ask(port, trusted=identity.ca, identity=identity, host="127.0.0.1")
    assert refusal.value.code() is grpc.StatusCode.UNAVAILABLE


def test_a_caller_that_expects_an_identity_reaches_it_at_any_address(ca, port):
    identity = load_identity(issue(ca, "clinic", "party", [], 10))
    expected = tls_name("coordinator", "hub")
    assert ask(port, trusted=identity.ca, identity=identity, host="127.0.0.1", expected=expected) == "party/clinic"


@pytest.mark.parametrize(("role", "name"), [("coordinator", "Hub"), ("party", "hub"), ("coordinator", "other")])
def test_a_caller_that_expects_another_identity_gets_no_answer(ca, port, role, name):
    identity = load_identity(issue(ca, "clinic", "party", [], 10))
    with pytest.raises(grpc.RpcError) as refusal:
        ask(port, trusted=identity.ca, identity=identity, expected=tls_name(role, name))
    assert refusal.value.code() is grpc.StatusCode.UNAVAILABLE
