"""Every RPC of every service and every HTTP path, asked for by everyone: exactly what the tables say.

The rows come from the descriptors and from the page's routes: a new RPC or path fails here until it has its line.
"""

import json
import pkgutil
import shutil
import ssl
import subprocess
import sys
import time
from importlib import import_module
from typing import Any
from urllib.parse import parse_qs, urlsplit

import grpc
import httpx
import pytest
import yaml
from grpc_health.v1 import health_pb2

import parley.services.coordinator.__main__ as coordinator_main
import parley.services.party.__main__ as party_main
import parley.services.relay.__main__ as relay_main
from parley import contracts
from parley.contracts.alignment.v1 import alignment_service_pb2
from parley.contracts.coordinator.v1 import coordinator_service_pb2
from parley.contracts.party.v1 import party_service_pb2
from parley.contracts.peer.v1 import peer_service_pb2
from parley.contracts.relay.v1 import relay_service_pb2
from parley.contracts.run.v1 import run_service_pb2
from parley.dashboard.access import Access
from parley.dashboard.app import make_app
from parley.dashboard.tokens import TokenFile
from parley.local import _free_ports
from parley.services.coordinator.config import ALL_PERMISSIONS
from parley.services.coordinator.permissions import NEEDED_BY_CALL
from parley.services.wire.audit import read_trail
from parley.services.wire.authorisation import REFLECTION
from parley.services.wire.certificates import create_authority, issue, load_identity
from parley.services.wire.refusals import reason_of
from parley.services.wire.revocation import revoke
from parley.services.wire.transport import channel_options

CALLERS = (
    "no certificate",
    "other CA",
    "party",
    "other party",
    "coordinator",
    "other coordinator",
    "client",
    "client without it",
    "new client",
    "revoked client",
    "revoked party",
    "revoked coordinator",
)
OK = ("OK", None)
DENIED = ("PERMISSION_DENIED", "NOT_AUTHORISED")
NOT_PERMITTED = ("PERMISSION_DENIED", "NOT_PERMITTED")
REVOKED = ("UNAUTHENTICATED", "CERTIFICATE_REVOKED")
NO_CONNECTION = ("UNAVAILABLE", None)
INVALID = ("INVALID_ARGUMENT", "MESSAGE_INVALID")
NO_DEPLOYMENT = ("NOT_FOUND", "DEPLOYMENT_UNKNOWN")
NO_RUN = ("NOT_FOUND", "RUN_UNKNOWN")

SERVICES = [
    ("bank", party_service_pb2.DESCRIPTOR.services_by_name["PartyService"]),
    ("bank", alignment_service_pb2.DESCRIPTOR.services_by_name["AlignmentService"]),
    ("bank", peer_service_pb2.DESCRIPTOR.services_by_name["PeerService"]),
    ("bank", health_pb2.DESCRIPTOR.services_by_name["Health"]),
    ("coordinator", run_service_pb2.DESCRIPTOR.services_by_name["RunService"]),
    ("coordinator", coordinator_service_pb2.DESCRIPTOR.services_by_name["CoordinatorService"]),
    ("coordinator", relay_service_pb2.DESCRIPTOR.services_by_name["RelayService"]),
    ("coordinator", health_pb2.DESCRIPTOR.services_by_name["Health"]),
    ("relay", relay_service_pb2.DESCRIPTOR.services_by_name["RelayService"]),
    ("relay", health_pb2.DESCRIPTOR.services_by_name["Health"]),
]
POLICIES = {"bank": party_main.POLICY, "coordinator": coordinator_main.POLICY, "relay": relay_main.POLICY}
# What an empty request gets from whoever may call; "other coordinator" is one that no policy names, "other party" one
# that is in no address book, "new client" one that no configuration names, "client without it" one that has every
# permission but the one that is needed. Whoever is not listed is denied.
EVERYONE = ("party", "other party", "coordinator", "other coordinator", "client", "client without it", "new client")
PARTIES = ("party", "other party")
EXPECTED: dict[str, Any] = {
    "PartyService/Describe": {"coordinator": OK},
    "PartyService/OpenSession": {"coordinator": INVALID},
    "PartyService/BeginSession": {"coordinator": ("NOT_FOUND", "SESSION_UNKNOWN")},
    "PartyService/Exchange": {"coordinator": INVALID},
    "PartyService/GetCoefficients": {"coordinator": INVALID},
    "PartyService/CloseSession": {"coordinator": OK},
    "AlignmentService/Intersect": {"coordinator": INVALID},
    "PeerService/Push": dict.fromkeys(PARTIES, INVALID),
    "RunService/CheckSpec": {"client": OK},
    "RunService/StartRun": {"client": INVALID},
    "RunService/GetRun": {"client": NO_RUN},
    "RunService/ListRuns": {"client": OK},
    "RunService/WatchRun": {"client": NO_RUN},
    "RunService/CancelRun": {"client": NO_RUN},
    "RunService/ResumeRun": {"client": NO_RUN},
    "RunService/DeleteRun": {"client": NO_RUN},
    "RunService/TagRun": {"client": NO_RUN},
    "RunService/PruneRuns": {"client": INVALID},
    "RunService/Predict": {"client": NO_RUN},
    "RunService/Deploy": {"client": INVALID},
    "RunService/RollBackDeployment": {"client": NO_DEPLOYMENT},
    "RunService/Undeploy": {"client": NO_DEPLOYMENT},
    "RunService/ListDeployments": {"client": OK},
    "RunService/PredictRows": {"client": NO_DEPLOYMENT},
    "RunService/ListParties": {"client": OK},
    "RunService/GetLedger": {"client": NO_RUN},
    "RunService/GetCoefficients": {"client": NO_RUN},
    "RunService/Align": {"client": INVALID},
    "CoordinatorService/Announce": {"party": OK, "other party": ("NOT_FOUND", "PARTY_UNKNOWN")},
    "CoordinatorService/AskSlopes": dict.fromkeys(PARTIES, INVALID),
    "RelayService/Register": dict.fromkeys(PARTIES, ("NOT_FOUND", "PARTY_UNKNOWN")),
    "RelayService/Accept": dict.fromkeys(PARTIES, ("NOT_FOUND", "CONNECTION_UNKNOWN")),
    "RelayService/Connect": dict.fromkeys(
        (*PARTIES, "coordinator", "other coordinator"), ("UNAVAILABLE", "PARTY_AWAY")
    ),
    "Health/Check": dict.fromkeys(EVERYONE, OK),
    "Health/Watch": dict.fromkeys(EVERYONE, OK),
    "Health/List": dict.fromkeys(EVERYONE, ("UNIMPLEMENTED", "NOT_IMPLEMENTED")),
}
METHODS = [(process, service, method) for process, service in SERVICES for method in service.methods]


@pytest.fixture(scope="module")
def relay(federation, tmp_path_factory):
    """The address and the certificate's folder of a relay of its own, for no party."""
    scratch = tmp_path_factory.mktemp("relay")
    identity = issue(federation.directory / "certificates" / "authority", "relay", "relay", ["localhost"], out=scratch)
    (port,) = _free_ports(1)
    settings = {"name": "relay", "listen": f"127.0.0.1:{port}", "identity": str(identity), "parties": []}
    (scratch / "relay.yaml").write_text(yaml.safe_dump(settings))
    ready = scratch / "relay.ready"
    command = [sys.executable, "-m", "parley.services.relay", "--config", str(scratch / "relay.yaml")]
    process = subprocess.Popen([*command, "--ready-file", str(ready)], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not ready.exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    yield settings["listen"], identity
    process.terminate()
    process.wait()


@pytest.fixture(scope="module")
def channels(federation, relay, tmp_path_factory):
    """A channel to each service for every caller."""
    scratch = tmp_path_factory.mktemp("callers")
    ours = federation.directory / "certificates" / "authority"
    create_authority(scratch / "authority", "elsewhere")
    foreign = load_identity(issue(scratch / "authority", "coordinator", "coordinator", ["localhost"]))
    identities = {
        "party": load_identity(federation.identity("shop")),
        "other party": load_identity(issue(ours, "nobody", "party", ["localhost"], out=scratch / "nobody")),
        "coordinator": load_identity(federation.identity("coordinator")),
        "other coordinator": load_identity(issue(ours, "rival", "coordinator", ["localhost"], out=scratch / "rival")),
        "client": load_identity(federation.identity("client")),
        "new client": load_identity(issue(ours, "newcomer", "client", ["localhost"], out=scratch / "newcomer")),
    }
    for permission in ALL_PERMISSIONS:
        name = f"without-{permission}"
        identities[name] = load_identity(issue(ours, name, "client", ["localhost"], out=scratch / name))
    # Each would be let in by its name and its role.
    taken_back = {"client": "revoked", "party": "shop", "coordinator": "coordinator"}
    for role, name in taken_back.items():
        folder = issue(ours, name, role, ["localhost"], out=scratch / f"revoked-{role}")
        identities[f"revoked {role}"] = load_identity(folder)
        revoke([folder / "certificate.pem"], ours)
    addresses = {"bank": federation.addresses["bank"], "coordinator": federation.addresses["coordinator"]}
    addresses["relay"], relays_identity = relay
    for folder in (federation.identity("bank"), federation.identity("coordinator"), relays_identity):
        shutil.copy(ours / "revoked.pem", folder)
    ca = identities["client"].ca
    credentials = {
        caller: grpc.ssl_channel_credentials(ca, identity.private_key, identity.certificate_chain)
        for caller, identity in identities.items()
    }
    credentials["no certificate"] = grpc.ssl_channel_credentials(ca)
    credentials["other CA"] = grpc.ssl_channel_credentials(ca, foreign.private_key, foreign.certificate_chain)
    made = {}
    for process, role in (("bank", "party"), ("coordinator", "coordinator"), ("relay", "relay")):
        for caller in credentials:
            options = [*channel_options(role, process), ("grpc.use_local_subchannel_pool", 1)]
            made[process, caller] = grpc.secure_channel(addresses[process], credentials[caller], options=options)
    yield made
    for channel in made.values():
        channel.close()


def outcome(channel, service, method):
    """Status and reason of one call with an empty request."""
    path = f"/{service.full_name}/{method.name}"
    requests = iter([b""]) if method.client_streaming else b""
    sort = f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
    call = getattr(channel, sort)(path, request_serializer=bytes, response_deserializer=bytes)
    try:
        answer = call(requests, timeout=30)
        if method.server_streaming:
            next(answer)
            answer.cancel()
    except grpc.RpcError as error:
        return error.code().name, reason_of(error)
    return OK


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize(
    ("process", "service", "method"), METHODS, ids=[f"{p}-{s.name}-{m.name}" for p, s, m in METHODS]
)
def test_each_rpc_gives_each_caller_exactly_the_expected_status(channels, process, service, method, caller):
    allowed = EXPECTED[f"{service.name}/{method.name}"]
    needed = "watch"
    if service.name == "RunService":  # a certificate of the right role is not enough
        allowed = allowed | {"new client": NOT_PERMITTED, "client without it": NOT_PERMITTED}
        needed = NEEDED_BY_CALL[method.name]
    expected = NO_CONNECTION if caller in ("no certificate", "other CA") else allowed.get(caller, DENIED)
    if caller.startswith("revoked"):
        expected = REVOKED
    channel = channels[process, f"without-{needed}" if caller == "client without it" else caller]
    assert outcome(channel, service, method) == expected


def test_the_table_has_a_line_for_every_rpc_and_no_other():
    assert {f"{service.name}/{method.name}" for _, service, method in METHODS} == EXPECTED.keys()


def test_the_rows_are_all_that_the_services_let_anyone_call():
    for process, policy in POLICIES.items():
        asked = {f"/{service.full_name}/{method.name}" for served, service, method in METHODS if served == process}
        assert asked == policy.methods.keys() - REFLECTION.keys()


def test_every_service_of_the_contracts_is_asked():
    asked = {service.full_name for _, service in SERVICES}
    found = set()
    for module in pkgutil.walk_packages(contracts.__path__, f"{contracts.__name__}."):
        if module.name.endswith("_service_pb2"):
            found |= {each.full_name for each in import_module(module.name).DESCRIPTOR.services_by_name.values()}
    assert len(found) >= 6
    assert found <= asked


def test_a_method_that_does_not_exist_is_unimplemented_for_whoever_calls(channels):
    for caller in ("party", "coordinator", "client"):
        with pytest.raises(grpc.RpcError) as refusal:
            channels["bank", caller].unary_unary("/parley.party.v1.PartyService/Nothing")(b"", timeout=30)
        assert refusal.value.code() is grpc.StatusCode.UNIMPLEMENTED


# For each path what a visitor must be permitted (None: anyone may ask), what is sent, and what it answers then.
LOGIN_ONLY: tuple[str, ...] = ()
SPEC = {"spec": "", "request_id": "r"}
PATHS: dict[str, tuple[tuple[str, ...] | None, Any, int]] = {
    "GET /": (LOGIN_ONLY, None, 200),
    "GET /login": (None, None, 200),
    "POST /login": (None, None, 401),
    "GET /login/provider": (None, None, 303),
    "GET /login/callback": (None, None, 401),
    "POST /logout": (LOGIN_ONLY, None, 200),
    "GET /static": (LOGIN_ONLY, None, 200),
    "GET /metrics": (("watch",), None, 200),
    "GET /api/runs": (("watch",), None, 200),
    "POST /api/runs": (("start",), SPEC, 400),
    "POST /api/check": (("start",), SPEC, 200),
    "GET /api/parties": (("watch",), None, 200),
    "GET /api/audit": (("administer",), None, 200),
    "GET /api/runs/{run}": (("watch",), None, 404),
    "GET /api/runs/{run}/events": (("watch",), None, 404),
    "GET /api/runs/{run}/ledger": (("ledger",), None, 404),
    "GET /api/runs/{run}/crossings": (("watch",), None, 404),
    "GET /api/runs/{run}/coefficients": (("watch",), None, 404),
    "POST /api/runs/{run}/cancel": (("cancel",), None, 404),
    "POST /api/runs/{run}/resume": (("start",), None, 404),
    "POST /api/runs/{run}/tags": (("start",), {"add": "", "remove": ""}, 404),
    "POST /api/runs/{run}/delete": (("administer",), None, 404),
    "POST /api/runs/{run}/predict": (("predict",), {"table": "t", "ids": ""}, 404),
    "GET /api/compare": (("watch",), None, 404),
    "GET /api/openapi.json": (LOGIN_ONLY, None, 200),
    "GET /api/deployments": (("watch",), None, 200),
    "POST /api/deployments/{name}/predictions": (("predict",), {"ids": ["1"]}, 404),
    "GET /api/runs/{run}/card.json": (("watch",), None, 404),
    "GET /runs/{run}/card": (("watch",), None, 404),
}
VISITORS = (
    "nobody",
    "party",
    "other CA",
    "wrong token",
    "expired token",
    "revoked token",
    "revoked session",
    "token without it",
    "token with it",
    "page's token",
    "user of another client",
    "user without a line",
    "user with it",
)
"""Certificates open no page: `party` and `other CA` show one in TLS."""


def paths():
    """Every method and path that the page serves."""
    found = []
    route: Any
    for route in make_app(object(), Access("t" * 43, secure=True)).routes:
        methods = getattr(route, "methods", None) or {"GET"}
        found += [f"{method} {route.path}" for method in sorted(methods - {"HEAD"})]
    return found


@pytest.fixture(scope="module")
def provider(federation):
    """A real OpenID Connect provider, as a process; gives a user's ID token for a client."""
    config = yaml.safe_load((federation.directory / "coordinator.yaml").read_text())["web"]["provider"]
    users = [
        {"sub": "1", "email": "boss@example.org", "email_verified": True, "groups": ["everything"]},
        {"sub": "2", "email": "auditor@example.org", "email_verified": True},
        {"sub": "3", "email": "stranger@example.org", "email_verified": True, "groups": ["elsewhere"]},
        {"sub": "4", "email": "auditor@example.org", "email_verified": False},
    ]
    command = [sys.executable, "-m", "oidc_provider_mock", "--port", str(urlsplit(config["issuer"]).port)]
    process = subprocess.Popen(
        [*command, *(part for user in users for part in ("--user-claims", json.dumps(user)))],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    while True:
        try:
            httpx.get(f"{config['issuer']}/.well-known/openid-configuration").raise_for_status()
            break
        except httpx.TransportError:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
    yield config["issuer"]
    process.terminate()
    process.wait()


def id_token(issuer, subject, client="parley-page"):
    """A user's ID token, as a program of that user gets it."""
    asked = {
        "response_type": "code",
        "client_id": client,
        "redirect_uri": "http://localhost/x",
        "scope": "openid email",
    }
    answer = httpx.post(f"{issuer}/oauth2/authorize", params=asked, data={"sub": subject}, timeout=60)
    code = parse_qs(urlsplit(answer.headers["location"]).query)["code"][0]
    form = {"grant_type": "authorization_code", "code": code, "redirect_uri": "http://localhost/x"}
    return httpx.post(f"{issuer}/oauth2/token", data=form, auth=(client, "any"), timeout=60).json()["id_token"]


@pytest.fixture(scope="module")
def visitors(federation, provider, tmp_path_factory):
    """An HTTP client for each visitor, and one for each permission that a token may lack."""
    state = federation.directory / "state" / "coordinator"
    address, tokens = (state / "web.address").read_text().strip(), TokenFile(state)
    scratch = tmp_path_factory.mktemp("visitors")
    create_authority(scratch / "authority", "elsewhere")
    foreign = issue(scratch / "authority", "client", "client", ["localhost"])

    def visitor(bearer=None, identity=None):
        trust = ssl.create_default_context(cafile=str(federation.identity("client") / "ca.pem"))
        if identity is not None:
            trust.load_cert_chain(identity / "certificate.pem", identity / "key.pem")
        headers = {"x-parley": "1"} | ({} if bearer is None else {"authorization": f"Bearer {bearer}"})
        return httpx.Client(base_url=address, verify=trust, timeout=60, headers=headers)

    session = visitor()
    assert session.post("/login", data={"token": tokens.create("session", ALL_PERMISSIONS)}).status_code == 303
    assert session.get("/api/runs").status_code == 200
    revoked = tokens.create("revoked", ALL_PERMISSIONS)
    made = {
        "nobody": visitor(),
        "party": visitor(identity=federation.identity("shop")),
        "other CA": visitor(identity=foreign),
        "wrong token": visitor("parley_" + "x" * 43),
        "expired token": visitor(tokens.create("expired", ALL_PERMISSIONS, days=1e-9)),
        "revoked token": visitor(revoked),
        "revoked session": session,
        "token with it": visitor(tokens.create("everything", ALL_PERMISSIONS)),
        "page's token": visitor((state / "web.token").read_text().strip()),
        "user of another client": visitor(id_token(provider, "1", "another-page")),
        "user without a line": visitor(id_token(provider, "3")),
        "user with it": visitor(id_token(provider, "1")),
        "auditor": visitor(id_token(provider, "2")),
        "unverified": visitor(id_token(provider, "4")),
    }
    assert made["revoked token"].get("/api/runs").status_code == 200
    tokens.revoke("revoked")
    tokens.revoke("session")
    for permission in ALL_PERMISSIONS:
        others = [each for each in ALL_PERMISSIONS if each != permission]
        made[f"without {permission}"] = visitor(tokens.create(f"without-{permission}", others))
    yield made
    for client in made.values():
        client.close()
    for token in tokens.all():
        tokens.revoke(token.name)


def ask(client, path, body):
    method, _, place = path.partition(" ")
    place = place.replace("{run}", "run-of-nobody").replace("{name}", "nobody").replace("/static", "/static/app.js")
    parameters = {"run": ["a", "b"]} if place == "/api/compare" else None
    return client.request(method, place, json=body, params=parameters)


@pytest.mark.parametrize("caller", VISITORS)
@pytest.mark.parametrize("path", PATHS)
def test_each_path_gives_each_visitor_exactly_the_expected_status(visitors, path, caller):
    needed, body, answer = PATHS[path]
    if caller == "token without it":
        for permission in needed or ():
            found = ask(visitors[f"without {permission}"], path, body)
            assert (found.status_code, found.json()["reason"]) == (403, "NOT_PERMITTED")
            assert f"`{permission}`" in found.json()["message"]
        return
    expected = answer
    if needed is not None and caller not in ("token with it", "page's token", "user with it"):
        known = caller == "user without a line"
        expected = 401 if not known else answer if needed == LOGIN_ONLY else 403
    assert ask(visitors[caller], path, body).status_code == expected


def test_the_table_has_a_line_for_every_path_and_no_other():
    assert sorted(paths()) == sorted(PATHS)


def test_a_user_may_do_what_the_configuration_says_of_name_and_groups(visitors):
    assert visitors["auditor"].get("/api/runs").status_code == 200
    refused = visitors["auditor"].post("/api/runs/nobody/cancel")
    assert (refused.status_code, refused.json()["reason"]) == (403, "NOT_PERMITTED")
    assert "`auditor@example.org: [watch, ledger, cancel]`" in refused.json()["message"]
    assert visitors["unverified"].get("/api/runs").status_code == 401, "anyone could have written that address"


def test_a_browser_logs_in_at_the_provider_and_the_audit_trail_names_the_user(federation, visitors, provider):
    with httpx.Client(base_url=visitors["nobody"].base_url, verify=False) as browser:  # noqa: S501
        begun = browser.get("/login/provider")
        there = httpx.post(begun.headers["location"], data={"sub": "1"}, timeout=60)
        back = there.headers["location"]
        with httpx.Client(base_url=browser.base_url, verify=False) as other:  # noqa: S501
            assert other.get(back).status_code == 401, "a login that was begun in another browser"
        assert browser.get(back.replace("state=", "state=x")).status_code == 401
        assert browser.get(back).status_code == 200
        assert browser.get("/api/runs").status_code == 200
        assert browser.post("/api/runs/nobody/cancel", headers={"x-parley": "1"}).status_code == 404
    entry = list(read_trail(federation.directory / "state" / "coordinator"))[-1]
    assert (entry.role, entry.name, entry.action) == ("user", "boss@example.org", "cancel")


def test_the_audit_trail_names_the_token(federation, visitors):
    visitors["token with it"].post("/api/runs/nobody/cancel")
    entry = list(read_trail(federation.directory / "state" / "coordinator"))[-1]
    assert (entry.role, entry.name, entry.outcome) == ("token", "everything", "RUN_UNKNOWN")
