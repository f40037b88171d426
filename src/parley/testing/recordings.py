"""What passed between the services of a federation during a run, message by message."""

import importlib
import pkgutil
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from parley import contracts
from parley.contracts.party.v1 import party_service_pb2 as pb
from parley.protocols.protocol import CrossingProtocol
from parley.protocols.tensor.codec import Blobs
from parley.services.wire.envelopes import from_extension, unpacked
from parley.testing.federations import Passed

EXCHANGE = "/parley.party.v1.PartyService/Exchange"
OPEN = "/parley.party.v1.PartyService/OpenSession"
BEGIN = "/parley.party.v1.PartyService/BeginSession"
PUSH = "/parley.peer.v1.PeerService/Push"


@cache
def methods() -> dict[str, Any]:
    """Every method of Parley's services, by its path."""
    found: dict[str, Any] = {}
    for module in pkgutil.walk_packages(contracts.__path__, "parley.contracts."):
        if module.name.endswith("_pb2"):
            for service in importlib.import_module(module.name).DESCRIPTOR.services_by_name.values():
                found |= {f"/{service.full_name}/{method.name}": method for method in service.methods}
    return found


@dataclass(frozen=True)
class Framed:
    """A message in its envelope, with the chunks that follow it."""

    sender: str
    receiver: str
    envelopes: tuple[Any, ...]

    @property
    def blobs(self) -> Blobs:
        """The bytes of the large tensors that it announces."""
        data, blobs = b"".join(chunk.chunk.data for chunk in self.envelopes[1:]), deque[memoryview]()
        for size in self.envelopes[0].following_bytes:
            blobs.append(memoryview(data[:size]))
            data = data[size:]
        return blobs


@dataclass
class Recording:
    """A tap that keeps what passes."""

    protocol: CrossingProtocol
    passed: list[Passed] = field(default_factory=list)

    def __call__(self, passed: Passed) -> bytes:
        """Keep a message, and pass it on as it is."""
        self.passed.append(passed)
        return passed.data

    def messages(self, method: str | None = None) -> Iterator[tuple[Passed, Message]]:
        """Every message of Parley's services, or of one method."""
        for passed in self.passed:
            if passed.method in methods() and method in (None, passed.method):
                called = methods()[passed.method]
                kind = called.output_type if passed.is_answer else called.input_type
                yield passed, GetMessageClass(kind).FromString(passed.data)

    def requests(self, method: str) -> dict[str, Any]:
        """The last request of a method to each party."""
        return {passed.receiver: message for passed, message in self.messages(method) if not passed.is_answer}

    def instructions(self) -> dict[int, list[Framed]]:
        """What each round asked of its parties."""
        return self._rounds(is_answer=False)

    def contributions(self) -> dict[int, list[Framed]]:
        """What the parties answered in each round, in the order of their names."""
        return self._rounds(is_answer=True)

    def pushes(self) -> list[Framed]:
        """What parties sent to each other."""
        return [framed for framed in self._framed(PUSH, False) if _body(framed.envelopes[0]) != "attach"]

    def message(self, framed: Framed) -> Any:
        """The algorithm's message in an instruction or a contribution."""
        envelope = framed.envelopes[0]
        asked = isinstance(envelope, pb.ExchangeRequest)
        return unpacked(self.protocol, envelope, self.protocol.instruction if asked else self.protocol.contribution)

    def inner(self, message: Any) -> Message | None:
        """The algorithm's message in an extension, whichever it is."""
        protocol = self.protocol
        kinds = (protocol.instruction, protocol.contribution, *protocol.peer_messages)
        found: Message = from_extension(protocol, message, kinds)
        return found

    def _rounds(self, is_answer: bool) -> dict[int, list[Framed]]:
        found: dict[int, list[Framed]] = defaultdict(list)
        for framed in self._framed(EXCHANGE, is_answer):
            if _body(framed.envelopes[0]) != "attach":
                found[self.message(framed).round].append(framed)
        return {number: sorted(found[number], key=lambda one: (one.sender, one.receiver)) for number in sorted(found)}

    def _framed(self, method: str, is_answer: bool) -> list[Framed]:
        """Messages of one direction with their chunks; each stream has one sender and one receiver."""
        streams: dict[tuple[str, str], list[list[Any]]] = defaultdict(list)
        for passed, message in self.messages(method):
            if passed.is_answer == is_answer:
                units = streams[passed.sender, passed.receiver]
                if _body(message) == "chunk":
                    units[-1].append(message)
                else:
                    units.append([message])
        return [Framed(*edge, tuple(unit)) for edge, units in streams.items() for unit in units]


def _body(envelope: Any) -> str | None:
    body: str | None = envelope.WhichOneof("body")
    return body


def fields_of(message: Message, recording: Recording) -> Iterator[str]:
    """Full names of the fields that a message has set, and those inside it, whatever carries them."""
    if message.DESCRIPTOR.full_name == "parley.extension.v1.Extension":
        inner = recording.inner(message)
        if inner is not None:
            yield from fields_of(inner, recording)
    for descriptor, value in message.ListFields():
        yield descriptor.full_name
        parts: Sequence[Any] = value if descriptor.is_repeated else [value]
        for part in parts:
            if isinstance(part, Message):
                yield from fields_of(part, recording)
