"""Certificates that are taken back or run out, an authority that is changed for another, and keys elsewhere."""

import asyncio
import os
import shutil
import sys
from datetime import UTC, datetime, timedelta

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from parley.contracts.aggregation.v1.aggregation_pb2 import SignedKey
from parley.services.party.config import PartyConfig
from parley.services.party.signed_keys import require_standing
from parley.services.wire import revocation
from parley.services.wire.authorisation import HEALTH, Policy
from parley.services.wire.certificate_files import CertificateExpired, CertificateUnreadable
from parley.services.wire.certificates import KeyMismatch, create_authority, issue, load_identity
from parley.services.wire.key_commands import KeyCommandFailed, noise_key
from parley.services.wire.refusals import BoundaryInterceptor, reason_of
from parley.services.wire.revocation import REVOKED, CertificateRevoked, Standing, revoke
from parley.services.wire.transport import add_health_and_reflection, listen, make_server, open_channel

POLICY = {"coordinators": ["coordinator"], "algorithms": ["bambi"]}


@pytest.fixture
def authority(tmp_path):
    return create_authority(tmp_path / "authority", "federation").parent


@pytest.fixture
def bank(authority):
    return issue(authority, "bank", "party", ["localhost"])


@pytest.fixture
def client(authority):
    return issue(authority, "ann", "client", ["localhost"])


def certificate_of(folder):
    return (folder / "certificate.pem").read_bytes()


def give(authority, *folders):
    for folder in folders:
        shutil.copy(authority / REVOKED, folder / REVOKED)
        os.utime(folder / REVOKED, ns=(0, (folder / REVOKED).stat().st_mtime_ns + 1))


def test_a_certificate_on_the_list_falls_and_others_stand(authority, bank, client):
    standing = Standing(bank)
    standing.require(certificate_of(client))
    revoke([client / "certificate.pem"], authority)
    give(authority, bank)
    with pytest.raises(CertificateRevoked):
        standing.require(certificate_of(client))
    standing.require(certificate_of(bank))
    other = issue(authority, "bob", "client", ["localhost"])
    revoke([other / "certificate.pem"], authority)
    give(authority, bank)
    for each in (client, other):  # the list grows
        with pytest.raises(CertificateRevoked):
            standing.require(certificate_of(each))


def test_an_expired_certificate_falls(bank, client):
    with pytest.raises(CertificateExpired):
        Standing(bank).require(certificate_of(client), datetime.now(UTC) + timedelta(days=400))


def test_a_list_of_a_foreign_authority_stops_a_start_and_is_not_taken_over_later(tmp_path, authority, bank, client):
    standing = Standing(bank)
    revoke([client / "certificate.pem"], authority)
    give(authority, bank)
    with pytest.raises(CertificateRevoked):
        standing.require(certificate_of(client))
    foreign = create_authority(tmp_path / "foreign", "federation").parent
    revoke([], foreign)
    give(foreign, bank)
    with pytest.raises(CertificateUnreadable, match=r"no authority in ca\.pem signed"):
        Standing(bank)
    with pytest.raises(CertificateRevoked):  # the list before is kept
        standing.require(certificate_of(client))


def test_a_session_with_a_revoked_party_is_refused_and_names_it(authority, bank):
    shop = issue(authority, "shop", "party", ["localhost"])
    config = PartyConfig(name="bank", identity=bank, state=bank, tables={}, policy=POLICY)
    keys = [SignedKey(party=each.name, certificate=certificate_of(each)) for each in (bank, shop)]
    require_standing(config, keys)
    revoke([shop / "certificate.pem"], authority)
    give(authority, bank)
    with pytest.raises(CertificateRevoked, match="of shop was revoked"):
        require_standing(config, keys)


async def served(folder, methods=HEALTH):
    server = make_server(BoundaryInterceptor(Policy(methods), {}, Standing(folder)))
    await add_health_and_reflection(server, [])
    port = listen(server, "127.0.0.1:0", folder)
    await server.start()
    return server, f"127.0.0.1:{port}"


def test_a_stream_ends_and_calls_are_refused_once_the_certificate_is_revoked(authority, bank, client, monkeypatch):
    monkeypatch.setattr(revocation, "LOOK_SECONDS", 0.05)

    async def scenario():
        standing = Standing(bank)
        fallen = asyncio.create_task(standing.until_fallen(certificate_of(client)))
        server, address = await served(bank)
        async with open_channel(address, client, "party", "bank") as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            await stub.Check(health_pb2.HealthCheckRequest())
            assert not fallen.done()
            revoke([client / "certificate.pem"], authority)
            give(authority, bank)
            await asyncio.wait_for(fallen, 20)
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await stub.Check(health_pb2.HealthCheckRequest())
            assert refusal.value.code() is grpc.StatusCode.UNAUTHENTICATED
            assert reason_of(refusal.value) == "CERTIFICATE_REVOKED"
        await server.stop(0)

    asyncio.run(scenario())


def test_an_open_stream_of_a_handler_ends_with_the_certificate(authority, bank, client, monkeypatch):
    monkeypatch.setattr(revocation, "LOOK_SECONDS", 0.05)

    async def endless(_request, _context):
        yield health_pb2.HealthCheckResponse()
        await asyncio.sleep(3600)

    async def scenario():
        server = make_server(BoundaryInterceptor(Policy({"/a.B/C": frozenset({"client"})}), {}, Standing(bank)))
        handler = grpc.unary_stream_rpc_method_handler(
            endless, health_pb2.HealthCheckRequest.FromString, health_pb2.HealthCheckResponse.SerializeToString
        )
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("a.B", {"C": handler})])
        port = listen(server, "127.0.0.1:0", bank)
        await server.start()
        async with open_channel(f"127.0.0.1:{port}", client, "party", "bank") as channel:
            call = channel.unary_stream(
                "/a.B/C", health_pb2.HealthCheckRequest.SerializeToString, health_pb2.HealthCheckResponse.FromString
            )(health_pb2.HealthCheckRequest())
            answers = aiter(call)
            await anext(answers)
            revoke([client / "certificate.pem"], authority)
            give(authority, bank)
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await asyncio.wait_for(anext(answers), 20)
            assert reason_of(refusal.value) == "CERTIFICATE_REVOKED"
        await server.stop(0)

    asyncio.run(scenario())


def test_while_an_authority_is_changed_certificates_of_both_are_taken(tmp_path, authority, bank):
    newer = create_authority(tmp_path / "newer", "federation-2").parent
    client = issue(newer, "ann", "client", ["localhost"], out=tmp_path / "ann")

    async def greet():
        server, address = await served(bank)
        try:
            async with open_channel(address, client, "party", "bank") as channel:
                await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=20)
        finally:
            await server.stop(0)

    with pytest.raises(grpc.aio.AioRpcError):
        asyncio.run(greet())
    both = (authority / "ca.pem").read_bytes() + (newer / "ca.pem").read_bytes()
    for folder in (bank, client):
        (folder / "ca.pem").write_bytes(both)
    asyncio.run(greet())
    assert load_identity(bank).ca == both
    (client / "ca.pem").write_bytes((authority / "ca.pem").read_bytes())
    with pytest.raises(KeyMismatch):
        load_identity(client)


def test_the_authoritys_key_can_come_from_a_command(tmp_path, authority):
    kept = tmp_path / "elsewhere.key"
    (authority / "ca.key").rename(kept)
    command = [sys.executable, "-c", f"print(open({str(kept)!r}).read())"]
    folder = issue(authority, "ann", "client", ["localhost"], key_command=command)
    assert load_identity(folder).peer == ("client", "ann")
    assert revoke([folder / "certificate.pem"], authority, key_command=command).exists()


def test_the_key_of_label_noise_can_come_from_a_command(tmp_path):
    key, path = bytes(range(32)), tmp_path / "label-noise.key"
    assert noise_key([sys.executable, "-c", f"print({key.hex()!r})"], path) == key
    assert not path.exists()
    for command in (
        ["/nowhere/key"],
        [sys.executable, "-c", "raise SystemExit(3)"],
        [sys.executable, "-c", "print(12)"],
    ):
        with pytest.raises(KeyCommandFailed, match="key_command"):
            noise_key(command, path)
    made = noise_key(None, path)
    with pytest.raises(KeyCommandFailed, match="another key"):
        noise_key([sys.executable, "-c", f"print({key.hex()!r})"], path)
    assert noise_key([sys.executable, "-c", f"print({made.hex()!r})"], path) == made
