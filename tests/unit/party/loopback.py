"""Parties of one process: what one pushes, another takes, as bytes."""

from collections import deque

from parley.contracts.peer.v1 import peer_service_pb2
from parley.party.peers import PeerLost


class Loopback:
    """One party's links to the others."""

    def __init__(self, index, everyone, away):
        self._index, self._everyone, self._away, self._takers = index, everyone, away, {}
        self.sent_bytes = 0

    def on(self, body, take):
        self._takers[body] = take

    async def push(self, receiver, blobs, **body):
        if {self._index, receiver} & self._away:
            raise PeerLost(f"party {receiver} cannot be reached")
        assert not blobs, "messages of these tests are small"
        data = peer_service_pb2.PushRequest(**body).SerializeToString()
        self.sent_bytes += len(data)
        request = peer_service_pb2.PushRequest.FromString(data)
        kind = request.WhichOneof("body")
        self._everyone[receiver].take(self._index, kind, getattr(request, kind))

    def take(self, sender, kind, message):
        self._takers[kind](sender, message, deque())


def loopback(parties, away=frozenset()):
    """The links of every party; whoever is in the set `away` can neither send nor be reached."""
    everyone = []
    everyone += [Loopback(index, everyone, away) for index in range(parties)]
    return everyone
