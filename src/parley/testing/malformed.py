"""Messages of a recorded run, made wrong."""

import random
from collections.abc import Iterator
from typing import Any

from google.protobuf.message import DecodeError, Message

from parley.protocols.protocol import EXTENSION, CrossingProtocol
from parley.protocols.tensor.codec import MessageInvalid
from parley.services.wire.envelopes import packed
from parley.testing.mutation import damaged, mutated, random_message
from parley.testing.recordings import Framed, Recording

TRIES = 200


def variants(message: Message, chance: random.Random, count: int) -> Iterator[Message]:
    """Messages of the same kind: changed, made at random, or read from damaged bytes."""
    for number in range(count):
        match number % 3:
            case 0:
                yield mutated(message, chance)
            case 1:
                yield random_message(type(message), chance)
            case 2:
                try:
                    yield type(message).FromString(damaged(message.SerializeToString(), chance))
                except DecodeError:
                    continue  # these bytes are no message


def undecodable(recording: Recording, framed: Framed, chance: random.Random) -> Any:
    """A changed instruction that the algorithm's decoder refuses; None if no change that was tried is refused."""
    right = recording.message(framed)
    for candidate in variants(right, chance, TRIES):
        candidate.round = right.round  # type: ignore[attr-defined]
        try:
            recording.protocol.decode_instruction(candidate, framed.blobs)
        except MessageInvalid:
            return reframed(recording.protocol, framed, candidate)
    return None


def reframed(protocol: CrossingProtocol, framed: Framed, message: Message) -> tuple[Any, ...]:
    """Another message in the place of one that was sent, with the same chunks after it."""
    envelope = type(framed.envelopes[0])()
    envelope.CopyFrom(framed.envelopes[0])
    getattr(envelope, protocol.body).CopyFrom(packed(protocol, message))
    return envelope, *framed.envelopes[1:]


def changed(recording: Recording, framed: Framed, chance: random.Random) -> tuple[Any, ...]:
    """An instruction with something changed, in the algorithm's message or in its envelope."""
    if chance.random() < 0.2:
        return mutated(framed.envelopes[0], chance), *framed.envelopes[1:]
    right = recording.message(framed)
    candidate = mutated(right, chance)
    if chance.random() < 0.8:
        candidate.round = right.round
    return reframed(recording.protocol, framed, candidate)


def changed_push(recording: Recording, framed: Framed, chance: random.Random) -> Framed:
    """What one party pushes to another, with something changed."""
    envelope = framed.envelopes[0]
    if envelope.WhichOneof("body") != EXTENSION:
        return Framed(framed.sender, framed.receiver, (mutated(envelope, chance), *framed.envelopes[1:]))
    inner = recording.inner(envelope.extension)
    assert inner is not None
    other = type(envelope)()
    other.CopyFrom(envelope)
    other.extension.content = mutated(inner, chance).SerializeToString()
    return Framed(framed.sender, framed.receiver, (other, *framed.envelopes[1:]))
