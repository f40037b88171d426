"""A message to another party is whole or absent, whatever happens to whoever sends it."""

import asyncio
from collections import deque
from typing import Any

import pytest

from parley.contracts.aggregation.v1 import aggregation_pb2 as sums_pb
from parley.contracts.peer.v1 import peer_service_pb2 as pb
from parley.contracts.peer.v1 import peer_service_pb2_grpc as pb_grpc
from parley.protocols.bambi.codec import PROTOCOL
from parley.services.party.peers import PeerLinks
from parley.services.wire.authorisation import Policy
from parley.services.wire.certificates import create_authority, issue
from parley.services.wire.refusals import BoundaryInterceptor
from parley.services.wire.routes import Routes
from parley.services.wire.transport import listen, make_server

PUSH = "/parley.peer.v1.PeerService/Push"


class Recorder(pb_grpc.PeerServiceServicer):
    """A party that keeps what each stream brings."""

    def __init__(self):
        self.streams = []
        self.links: Any = None
        self.received = asyncio.Event()

    async def Push(self, request_iterator, context):  # noqa: N802 (gRPC's name and arguments)
        bodies = []
        self.streams.append(bodies)
        async for request in request_iterator:
            bodies.append(request.WhichOneof("body"))
            self.received.set()
        return pb.PushResponse()


@pytest.fixture
async def recorder(tmp_path):
    authority = create_authority(tmp_path / "authority", "test-authority").parent
    server, recorder = make_server(BoundaryInterceptor(Policy({PUSH: frozenset({"party"})}), {})), Recorder()
    pb_grpc.add_PeerServiceServicer_to_server(recorder, server)
    port = listen(server, "127.0.0.1:0", issue(authority, "shop", "party", []))
    routes = Routes(issue(authority, "bank", "party", []), tmp_path / "sockets")
    recorder.links = PeerLinks("session", ["bank", "shop"], ["", f"127.0.0.1:{port}"], routes, PROTOCOL)
    await server.start()
    yield recorder
    await recorder.links.close()
    await server.stop(0)


async def test_a_sender_that_is_cancelled_while_it_dials_leaves_no_stream_without_its_attach(recorder):
    message = sums_pb.MaskedTheta(round=1)
    sending = asyncio.create_task(recorder.links.push(1, deque(), masked_theta=message))
    await asyncio.sleep(0)  # it has dialled, and waits for the connection
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    await recorder.links.push(1, deque(), masked_theta=message)
    await asyncio.wait_for(recorder.received.wait(), 20)
    await asyncio.sleep(0.2)
    assert [bodies for bodies in recorder.streams if bodies][-1] == ["attach", "masked_theta"]
