"""A party that keeps to no rule, beside unmodified ones: it has a party's certificate, and asks whom it likes anything.

It opens the session with the coordinator's certificate too, so that nothing but the other parties stands in its way.
"""

import contextlib
import queue
import secrets
from concurrent.futures import ThreadPoolExecutor

import grpc

from parley.contracts.party.v1 import party_service_pb2 as pb
from parley.contracts.party.v1 import party_service_pb2_grpc as pb_grpc
from parley.contracts.peer.v1 import peer_service_pb2 as peer_pb
from parley.contracts.peer.v1 import peer_service_pb2_grpc as peer_grpc
from parley.privacy.consent import Agreement, Beginning, Member, consent_of, fresh_nonce
from parley.privacy.requested_sums import RequestedMaskedSums
from parley.privacy.session_keys import SessionKey, pair_secret
from parley.protocols.asysqn.codec import decode_partial, encode_request
from parley.protocols.asysqn.messages import ThetaRequest
from parley.protocols.tensor.codec import Blobs
from parley.services.party.config import PartyConfig
from parley.services.party.signed_keys import decode_vouched, encode_key
from parley.services.wire.certificates import load_identity
from parley.services.wire.configuration import load_config
from parley.services.wire.transport import channel_credentials, channel_options
from parley.services.wire.version import PROTOCOLS, VERSION
from parley.spec.digests import spec_digest
from parley.spec.parsing import parse_spec

OUTPUTS = 1


class _Inbox(peer_grpc.PeerServiceServicer):
    """Takes what the other parties push."""

    def __init__(self):
        self.shares = queue.Queue()

    def Push(self, request_iterator, context):  # noqa: N802 (as gRPC calls it)
        for request in request_iterator:
            if request.WhichOneof("body") == "partial_theta":
                self.shares.put(decode_partial(request.partial_theta, Blobs())[1:])
        return peer_pb.PushResponse()


class DeviatingParty:
    """One party of an AsySQN session; the others are real."""

    def __init__(self, federation, name, text):
        self._federation, self._spec = federation, parse_spec(text)
        self.names = [entry.name for entry in self._spec.parties]
        self.index = self.names.index(name)
        self.others = [other for other in self.names if other != name]
        self._session_id = f"s-{secrets.token_hex(8)}"
        self._open = contextlib.ExitStack()
        self._inbox = _Inbox()
        self._stubs = {other: self._stub(other, name, peer_grpc.PeerServiceStub) for other in self.others}
        address = self._listen(name)
        members = self._begin(name, text, address)
        consent = consent_of(Beginning(self._session_id, self._session_id, OUTPUTS, 0), members)
        settings = self._spec.privacy.aggregation

        def shared(requester):
            return {
                place: pair_secret(
                    self._key,
                    name,
                    member.name,
                    member.public_key,
                    run_id=self._session_id,
                    attempt=0,
                    purpose=f"asysqn/{requester}",
                    consent=consent,
                )
                for place, member in enumerate(members)
                if place != self.index
            }

        self.sums = RequestedMaskedSums(self.index, len(members), settings, shared)

    def ask(self, number, rows):
        """Ask each other party for its share of a sum over rows of its own; their addends, in the order of parties."""
        for other in self.others:
            request = encode_request(ThetaRequest(number, rows[other]))
            attach = peer_pb.PushRequest(attach=peer_pb.Attach(session_id=self._session_id))
            self._stubs[other].Push(iter([attach, peer_pb.PushRequest(theta_request=request)]), timeout=60)
        found = [self._inbox.shares.get(timeout=60) for _ in self.others]
        assert [each for each, _ in found] == [number] * len(self.others)
        return [addend for _, addend in found]

    def close(self):
        for other in self.others:
            stub = self._stub(other, "coordinator", pb_grpc.PartyServiceStub)
            stub.CloseSession(pb.CloseSessionRequest(session_id=self._session_id), timeout=60)
        self._open.close()

    def _begin(self, name, text, address):
        opening = pb.OpenSessionRequest(
            run_id=self._session_id,
            session_id=self._session_id,
            spec_yaml=text,
            version=VERSION,
            protocol=PROTOCOLS[-1],
            purpose=pb.PURPOSE_TRAIN,
        )
        stubs = {other: self._stub(other, "coordinator", pb_grpc.PartyServiceStub) for other in self.others}
        opened = {other: stub.OpenSession(opening, timeout=60) for other, stub in stubs.items()}
        one, self._key = opened[self.others[0]], SessionKey.generate()
        digest = bytes.fromhex(spec_digest(self._spec))
        agreement = Agreement("train", digest, fresh_nonce(), one.rows, one.id_digest, one.upper_size, PROTOCOLS[-1])
        config = load_config(self._federation.directory / f"{name}.yaml", PartyConfig)
        own = encode_key(config, self._key, self._session_id, agreement)
        keys = [own if each == name else opened[each].key for each in self.names]
        beginning = pb.BeginSessionRequest(
            session_id=self._session_id,
            keys=keys,
            upper_sizes=[one.upper_size] * len(keys),
            peer_addresses=[address if each == name else self._federation.addresses[each] for each in self.names],
            outputs=OUTPUTS,
        )
        for stub in stubs.values():
            stub.BeginSession(beginning, timeout=60)
        vouched = [decode_vouched(key, self._session_id) for key in keys]
        return [Member(each.key.name, each.key.public_key, each.agreement) for each in vouched]

    def _listen(self, name):
        identity = load_identity(self._federation.identity(name))
        server = grpc.server(ThreadPoolExecutor(8))
        peer_grpc.add_PeerServiceServicer_to_server(self._inbox, server)
        credentials = grpc.ssl_server_credentials(
            [(identity.private_key, identity.certificate_chain)], identity.ca, require_client_auth=True
        )
        port = server.add_secure_port("127.0.0.1:0", credentials)
        server.start()
        self._open.callback(lambda: server.stop(0).wait())
        return f"127.0.0.1:{port}"

    def _stub(self, party, caller, kind):
        credentials = channel_credentials(load_identity(self._federation.identity(caller)))
        address, options = self._federation.addresses[party], channel_options("party", party)
        return kind(self._open.enter_context(grpc.secure_channel(address, credentials, options=options)))
