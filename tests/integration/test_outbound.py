"""Parties that listen nowhere: every algorithm, alignment and predictions give the same bits as where all listen."""

import contextlib
import os
import struct
import time
from pathlib import Path

import grpc
import numpy as np
import pytest

from parley.contracts.relay.v1 import relay_service_pb2 as pb
from parley.contracts.relay.v1 import relay_service_pb2_grpc as pb_grpc
from parley.services.wire.certificates import create_authority, issue, load_identity
from parley.services.wire.refusals import reason_of
from parley.services.wire.transport import channel_credentials, channel_options
from parley.testing.federations import TwinFederation
from parley.testing.remains import remains_of, start, wait_for_end
from parley.testing.stage import small_policy, write_tables
from tests.contract_suite import test_asysqn, test_bambi, test_fedbio, test_hgp, test_ldp_dsbo
from tests.contract_suite.built_in import PARTIES
from tests.faults.proxy import Proxy, Weather
from tests.integration.connect_proxy import ConnectProxy

CASES = {
    "asysqn": test_asysqn.TestAsysqn.case,
    "bambi": test_bambi.TestBambi.case,
    "fedbio": test_fedbio.TestFedbio.case,
    "hgp": test_hgp.TestHgp.case,
    "ldp_dsbo": test_ldp_dsbo.TestLdpDsbo.case,
}
TLS_KINDS, TLS_VERSIONS = {20, 21, 22, 23}, {b"\x03\x01", b"\x03\x03"}
LISTENING = "0A"


@pytest.fixture(scope="module")
def proxy():
    with ConnectProxy() as running:
        yield running


@pytest.fixture(scope="module")
def federations(tmp_path_factory, proxy):
    """The same federation three times: all listen, all dial a relay that listens in, two dial the coordinator.

    Of these two, one goes through an HTTP proxy.
    """
    folder = tmp_path_factory.mktemp("o")  # sockets lie below it, and their paths must be short
    tables, labels = write_tables(folder / "data", list(CASES.values()))
    tables = {party: tables[party] for party in PARTIES}
    behind_proxy = ["env", f"http_proxy={proxy.address}", "no_proxy="]
    ways = {
        "direct": {},
        "relayed": {
            "outbound": PARTIES,
            "relay_options": {},
            "modules": {"relay": "tests.integration.recording_relay"},
        },
        "mixed": {"outbound": ("north", "south"), "wrappers": {"south": behind_proxy}},
    }
    with contextlib.ExitStack() as stack:
        made = {}
        for name, options in ways.items():
            made[name] = TwinFederation(
                folder / name, tables, labels, policy=small_policy(list(CASES.values())), **options
            )
            stack.enter_context(made[name])
        yield made


@pytest.fixture(scope="module")
def completed(federations):
    """What a case leaves in one of the federations; made once."""
    known = {}

    def complete(way, algorithm):
        if (way, algorithm) not in known:
            with federations[way].connect() as client:
                run = start(client, CASES[algorithm].patient_spec, f"outbound {algorithm}")
                run = wait_for_end(client, run.run_id)
                assert run.state == "COMPLETED", run.reason
                known[way, algorithm] = run.run_id, remains_of(federations[way], client, run.run_id)
        return known[way, algorithm]

    return complete


@pytest.mark.parametrize("algorithm", CASES)
def test_parties_that_only_dial_out_train_to_the_same_bits(completed, algorithm):
    assert completed("relayed", algorithm) == completed("direct", algorithm)


@pytest.mark.parametrize("algorithm", CASES)
def test_parties_that_dial_out_mix_with_one_that_listens(completed, algorithm):
    assert completed("mixed", algorithm) == completed("direct", algorithm)


def test_predictions_are_the_same_bits(federations, completed):
    scores = []
    for way in federations:
        run_id, _ = completed(way, "bambi")
        with federations[way].connect() as client:
            scores.append(client.run(run_id).predict().scores)
    assert len(scores[0]) == test_bambi.ROWS
    assert np.array_equal(scores[0], scores[1])
    assert np.array_equal(scores[0], scores[2])


def test_rows_are_aligned(federations):
    found = []
    for way in federations:
        with federations[way].connect() as client:
            found.append(client.align("common", list(PARTIES), "asysqn", "asysqn"))
    assert found[0].matched == test_asysqn.ROWS
    assert found[0] == found[1] == found[2]


def test_a_party_that_dials_out_listens_on_no_port(federations):
    for name in PARTIES:
        assert not listening_ports(federations["relayed"].processes[name].pid)
    assert listening_ports(federations["mixed"].processes["east"].pid), "the party that listens shows how it is seen"


def listening_ports(pid):
    """TCP ports on which a process listens."""
    own = set()
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            own.add(os.readlink(file))
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING and f"socket:[{fields[9]}]" in own:
                found.append(int(fields[1].rpartition(":")[2], 16))
    return found


def test_an_http_proxy_is_honoured(federations, completed, proxy):
    completed("mixed", "asysqn")
    assert federations["mixed"].addresses["coordinator"] in proxy.asked


def test_the_relay_carries_tls_records_and_nothing_that_it_could_read(federations, completed):
    """The recording is whole TLS streams, and holds none of what the same runs say in the clear inside."""
    run_id, _ = completed("relayed", "hgp")  # its peers send models in the clear, inside TLS
    completed("relayed", "bambi")
    files = sorted((federations["relayed"].directory / "recording").iterdir())
    streams = [file.read_bytes() for file in files]
    assert sum(map(len, streams)) > 100_000
    assert all(is_tls(stream) for stream in streams if stream)
    everything = b"\0".join(streams)
    model = federations["relayed"].run_directory("north", run_id) / "model.safetensors"
    weights = model.read_bytes()[-64:]  # the last numbers of a model that passed between parties
    secrets = [run_id.encode(), b"PartyService", b"PeerService", b"north-party", weights[:16], b"algorithm: hgp"]
    assert not [secret for secret in secrets if secret in everything]


def is_tls(stream):
    """Whether bytes are TLS records, one after the other; the last may be cut off."""
    at = 0
    while at + 5 <= len(stream):
        kind, version, size = stream[at], stream[at + 1 : at + 3], struct.unpack(">H", stream[at + 3 : at + 5])[0]
        if kind not in TLS_KINDS or version not in TLS_VERSIONS or size > (1 << 14) + 256:
            return False
        at += 5 + size
    return True


@pytest.mark.parametrize("way", ["relayed", "mixed"])
def test_a_relay_that_is_killed_in_the_middle_of_a_run_leaves_the_same_bits(federations, way):
    """In one federation the relay by itself, in the other the coordinator, which is one."""
    victim = "relay" if way == "relayed" else "coordinator"
    spec, request_id = CASES["asysqn"].patient_spec, "killed"
    left = {}
    for name in ("direct", way):
        federation = federations[name]
        with federation.connect() as client:
            run = start(client, spec, request_id)
            if name == way:
                wait_for_step(client, run.run_id, 10)
                federation.kill(victim)
                federation.restart(victim)
            run = wait_for_end(client, run.run_id)
            left[name] = remains_of(federation, client, run.run_id)
            if name == "relayed":
                assert "party" in {event.kind for event in run.events()}, "no party was lost on the way"
    assert left["direct"].state == "COMPLETED"
    assert left[way] == left["direct"]


class ThroughProxy(TwinFederation):
    """A federation in which party `north` dials the coordinator, through a proxy that can swallow bytes."""

    def write(self):
        super().write()
        self.proxy = Proxy(self.addresses["coordinator"])
        self.configure("north", connect=self.proxy.address)

    def stop(self):
        super().stop()
        self.proxy.close()


@pytest.mark.slow
def test_a_line_that_is_half_open_in_the_middle_of_a_run_leaves_the_same_bits(federations, tmp_path_factory):
    """Bytes vanish while the party's one connection stays open: both ends notice, and it dials again."""
    direct, folder = federations["direct"], tmp_path_factory.mktemp("h")
    spec, request_id, tables = CASES["asysqn"].patient_spec, "half-open", direct.tables
    half_open = ThroughProxy(
        folder, tables, direct.labels, policy=small_policy(list(CASES.values())), outbound=("north",)
    )
    with direct.connect() as client:
        run = wait_for_end(client, start(client, spec, request_id).run_id)
        expected = remains_of(direct, client, run.run_id)
    with half_open, half_open.connect() as client:
        run = start(client, spec, request_id)
        wait_for_step(client, run.run_id, 10)
        half_open.proxy.weather = Weather(swallow=True)
        silent = time.monotonic()
        while client.run(run.run_id).state != "PAUSED":
            assert time.monotonic() < silent + 60, "nobody noticed"
            time.sleep(0.1)
        half_open.proxy.weather = Weather()  # the party notices by itself that its line is dead: nothing cuts it
        run = wait_for_end(client, run.run_id)
        assert run.message.attempt > 1
        assert remains_of(half_open, client, run.run_id) == expected
    assert expected.state == "COMPLETED"


def wait_for_step(client, run_id, step):
    deadline = time.monotonic() + 60
    while client.run(run_id).message.step < step:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def registration(federation, service, identity):
    """Status and reason of a first attempt to register."""
    role = "relay" if service == "relay" else "coordinator"
    options = [*channel_options(role, service), ("grpc.use_local_subchannel_pool", 1)]
    with grpc.secure_channel(federation.addresses[service], identity, options=options) as channel:
        try:
            next(pb_grpc.RelayServiceStub(channel).Register(pb.RegisterRequest(), timeout=20))
        except grpc.RpcError as error:
            return error.code().name, reason_of(error)
    return "OK", None


def test_a_name_is_registered_by_the_holder_of_its_certificate_alone(federations, tmp_path):
    mixed, relayed = federations["mixed"], federations["relayed"]
    authority = mixed.directory / "certificates" / "authority"
    create_authority(tmp_path / "elsewhere", "elsewhere")
    foreign = load_identity(issue(tmp_path / "elsewhere", "north", "party", []))
    ours = load_identity(mixed.identity("client"))
    strange = grpc.ssl_channel_credentials(ours.ca, foreign.private_key, foreign.certificate_chain)
    assert registration(mixed, "coordinator", strange) == ("UNAVAILABLE", None)
    client = channel_credentials(ours)
    assert registration(mixed, "coordinator", client) == ("PERMISSION_DENIED", "NOT_AUTHORISED")
    newcomer = channel_credentials(load_identity(issue(authority, "nobody", "party", [], out=tmp_path / "nobody")))
    assert registration(mixed, "coordinator", newcomer) == ("NOT_FOUND", "PARTY_UNKNOWN")
    listener = channel_credentials(load_identity(mixed.identity("east")))
    assert registration(mixed, "coordinator", listener) == ("NOT_FOUND", "PARTY_UNKNOWN")
    hub = channel_credentials(load_identity(relayed.identity("coordinator")))
    assert registration(relayed, "relay", hub) == ("PERMISSION_DENIED", "NOT_AUTHORISED")


def test_a_party_that_has_not_dialled_in_is_named_with_what_to_do(federations):
    federation = federations["mixed"]
    federation.kill("north")
    try:
        with federation.connect() as client:
            deadline = time.monotonic() + 30
            while "has not dialled in" not in (problem := of_party(client, "north").problem):
                assert time.monotonic() < deadline, problem
            assert of_party(client, "south").reachable
    finally:
        federation.restart("north")


def test_a_relay_that_is_away_is_named_and_no_socket_of_this_machine(federations):
    federation = federations["relayed"]
    federation.kill("relay")
    try:
        with federation.connect() as client:
            deadline = time.monotonic() + 30
            while "its relay" not in (problem := of_party(client, "north").problem):
                assert time.monotonic() < deadline, problem
            assert "sockets" not in problem
    finally:
        federation.restart("relay")


def of_party(client, name):
    return next(party for party in client.parties() if party.name == name)
