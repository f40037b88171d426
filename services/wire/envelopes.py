"""An algorithm's messages in the envelopes of a stream: in a field of their own, or as an extension."""

from typing import Any

from google.protobuf.message import DecodeError, Message

from parley.contracts.extension.v1 import extension_pb2 as pb
from parley.protocols.protocol import EXTENSION, CrossingProtocol
from parley.protocols.tensor.codec import MessageInvalid


def packed(protocol: CrossingProtocol, message: Message) -> Message:
    """What the envelope's field `protocol.body` holds for a message of the algorithm."""
    return message if protocol.body != EXTENSION else extension(protocol, message)


def unpacked(protocol: CrossingProtocol, envelope: Any, kind: type[Message]) -> Any:
    """The message of the algorithm that an envelope holds; None if it holds another body."""
    if envelope.WhichOneof("body") != protocol.body:
        return None
    body = getattr(envelope, protocol.body)
    return body if protocol.body != EXTENSION else from_extension(protocol, body, (kind,))


def extension(protocol: CrossingProtocol, message: Message) -> pb.Extension:
    """A message of an algorithm from another distribution."""
    return pb.Extension(algorithm=protocol.name, type=message.DESCRIPTOR.full_name, content=message.SerializeToString())


def from_extension(protocol: CrossingProtocol, body: pb.Extension, kinds: tuple[type[Message], ...]) -> Any:
    """The message that an extension holds, if it is one of these kinds and belongs to the algorithm."""
    kind = next((each for each in kinds if each.DESCRIPTOR.full_name == body.type), None)
    if kind is None or body.algorithm != protocol.name:
        raise MessageInvalid(f"an extension of {body.algorithm!r} with {body.type!r} has no place here")
    try:
        return kind.FromString(body.content)
    except DecodeError:
        raise MessageInvalid(f"the extension holds no {body.type}") from None
